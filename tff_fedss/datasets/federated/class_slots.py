"""The partition of clients with exactly the same number of classes (FedSS, A.4)."""

import numpy as np

from tff_fedss import errors
from tff_fedss.datasets.federated import partitions


def class_slots(
    labels: np.ndarray,
    num_clients: int,
    classes_per_client: int,
    rng: np.random.Generator,
) -> partitions.Partition:
    """Gives every client exactly the same number of different classes.

    This meets the figures of the paper's ImageNet-21k clients (Appendix A.4): 25,691
    clients with 20 classes each, and 442 images on average.

    A client has classes_per_client slots. Class c fills s_c of them, in proportion to
    its n_c images as far as 1 <= s_c <= min(n_c, num_clients) allows, and its images
    are dealt evenly over these. So the images of a slot, and of a client, vary little.

    Args:
        labels: The class of every example, int[N].
        num_clients: K.
        classes_per_client: |P_k| of every client.
        rng: Where the draws come from.

    Returns:
        The clients. Which classes meet in a client is random.
    """
    errors.check_at_least(
        1, num_clients=num_clients, classes_per_client=classes_per_client
    )
    sizes = np.bincount(labels)
    slots = _slots_per_class(sizes, num_clients, classes_per_client)
    class_order = rng.permutation(len(sizes))

    # One entry per slot from here on, the slots of a class side by side.
    of_class = np.repeat(class_order, slots[class_order])
    within_class = partitions.ranges(slots[class_order])
    share, extra = np.divmod(sizes, np.maximum(slots, 1))
    length = share[of_class] + (within_class < extra[of_class])
    first = (np.cumsum(sizes) - sizes)[of_class]
    first += within_class * share[of_class] + np.minimum(within_class, extra[of_class])
    client = _clients_of_slots(of_class, num_clients, rng)

    by_client = np.argsort(client, kind="stable")
    first, length = first[by_client], length[by_client]
    by_class = partitions.random_order_by(labels, rng)
    order = by_class[np.repeat(first, length) + partitions.ranges(length)]
    ends = np.cumsum(length)[classes_per_client - 1 :: classes_per_client]
    return partitions.shuffled(order, np.append(0, ends), rng)


def _slots_per_class(
    sizes: np.ndarray, num_clients: int, classes_per_client: int
) -> np.ndarray:
    """Chooses s_c, int64[n]; 0 for a class without images."""
    total = num_clients * classes_per_client
    most = np.minimum(sizes, num_clients)
    least = np.minimum(sizes, 1)
    if not least.sum() <= total <= most.sum():
        raise errors.InvalidInputError(
            f"num_clients={num_clients:,} times classes_per_client="
            f"{classes_per_client:,} is {total:,}; expected {least.sum():,} (a client "
            f"for each class) to {most.sum():,} (as many as it has images for)."
        )

    def ideal(rate: float) -> np.ndarray:
        return np.clip(rate * sizes, least, most)

    # The images of a slot are 1 / rate where no bound is met: at least 1.
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if ideal(middle).sum() > total:
            high = middle
        else:
            low = middle
    slots = np.floor(ideal(low)).astype(np.int64)
    # The largest remainders are rounded up; two rounds are for a remainder that the
    # arithmetic has rounded to zero.
    while missing := total - slots.sum():
        remainder = np.where(slots < most, ideal(low) - slots, -1)
        up = np.argsort(-remainder, kind="stable")[:missing]
        slots[up[slots[up] < most[up]]] += 1
    return slots


def _clients_of_slots(
    of_class: np.ndarray, num_clients: int, rng: np.random.Generator
) -> np.ndarray:
    """Gives a client to every slot, as many to each and none a class twice.

    A round gives one slot to each client, in random order. A class has at most
    num_clients slots in a row, so it lies in one round or in two that follow each
    other. In the second, the clients that had it in the first are moved back.

    Args:
        of_class: The class of every slot, equal ones side by side, int64[K * rounds].
        num_clients: K.
        rng: Where the orders are drawn from.

    Returns:
        int64[K * rounds].
    """
    rounds = of_class.reshape(-1, num_clients)
    clients = np.empty_like(rounds)
    for r, row in enumerate(rounds):
        clients[r] = rng.permutation(num_clients)
        if r == 0 or rounds[r - 1, -1] != row[0]:
            continue
        taken = np.zeros(num_clients, bool)
        taken[clients[r - 1, rounds[r - 1] == row[0]]] = True
        straddles = row == row[0]
        is_taken = taken[clients[r]]
        back = np.flatnonzero(straddles & is_taken)
        forth = rng.choice(
            np.flatnonzero(~straddles & ~is_taken), len(back), replace=False
        )
        clients[r, back], clients[r, forth] = clients[r, forth], clients[r, back]
    return clients.reshape(-1)
