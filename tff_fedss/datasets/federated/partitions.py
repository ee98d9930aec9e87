"""Partitions: assignments of a data set's training examples to clients.

`partitioners` has the ways that a user chooses among. The functions here are those of
the FedSS paper (Sections 4.3 and A.4), which data sets also use with their own sizes.

Every function takes the labels of all examples and a random generator, and assigns each
example to exactly one client. It reads no image, so that a data set of millions is
split by its labels alone. A client's examples are in random order, the order of a local
epoch. The same labels, arguments and generator give the same clients.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tff_fedss.errors import InvalidInputError, check_at_least, check_range

CLIENT_PREFIX = "client_"


class Partition(NamedTuple):
    """The assignment of examples to clients.

    Attributes:
        client_ids: K names; of made clients, `client_` and a number.
        order: The examples, client after client, int64[N].
        starts: The start of each client's examples in `order`, and N at the end,
            int64[K + 1]; strictly increasing, as no client is empty.
    """

    client_ids: list[str]
    order: np.ndarray
    starts: np.ndarray

    @property
    def num_clients(self) -> int:
        """K, the number of clients."""
        return len(self.client_ids)

    @property
    def sizes(self) -> np.ndarray:
        """n_k of every client, int64[K]."""
        return np.diff(self.starts)

    def examples(self, k: int) -> np.ndarray:
        """Returns indices of the k-th client's examples, int64[n_k], a view."""
        return self.order[self.starts[k] : self.starts[k + 1]]

    def items(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the id and the examples of every client, in order."""
        for k, client_id in enumerate(self.client_ids):
            yield client_id, self.examples(k)


def client_ids(num_clients: int) -> list[str]:
    """Returns the names of clients 0..num_clients-1, which sort in this order."""
    digits = len(str(num_clients - 1))
    return [f"{CLIENT_PREFIX}{k:0{digits}}" for k in range(num_clients)]


def generator(seed: int, stream: int) -> np.random.Generator:
    """Makes the generator of a data set's draws, from a seed in 0..2^63-1.

    `stream` separates them from those of other data sets with the same seed.
    """
    check_range("seed", seed, 0, 2**63 - 1)
    return np.random.Generator(np.random.Philox(key=[seed, stream]))


def natural(
    clients: np.ndarray, client_names: list[str], rng: np.random.Generator
) -> Partition:
    """Makes a partition of the data's own clients, without those that have no image.

    `clients` are the owners of the images, int[N], positions in `client_names`; a
    client's images are in random order.
    """
    order = random_order_by(clients, rng)
    present, sizes = np.unique(clients, return_counts=True)
    names = [client_names[k] for k in present]
    return Partition(names, order, np.append(0, np.cumsum(sizes)))


def chunks(
    labels: np.ndarray, starts: np.ndarray, rng: np.random.Generator
) -> Partition:
    """Cuts the classes, one after the other, at `starts`, int64[K + 1].

    At those of `equal_sizes` this reproduces the numbers of the paper's SOP clients
    (Section 4.3): the 59,551 training images of 11,318 products give 596 clients of 100
    images (the last one has 51) and 19.8 products on average. Only a product at a cut
    is on two clients.
    """
    position = rng.permutation(int(labels.max()) + 1)
    return shuffled(random_order_by(position[labels], rng), starts, rng)


def equal_sizes(num_images: int, images_per_client: int) -> np.ndarray:
    """Returns where clients of equal sizes start; only the last one may be smaller."""
    check_at_least(1, images_per_client=images_per_client)
    return np.append(np.arange(0, num_images, images_per_client), num_images)


def equal_parts(num_images: int, num_clients: int) -> np.ndarray:
    """Returns where K clients start whose sizes differ by one at most."""
    return np.arange(num_clients + 1) * num_images // num_clients


def ranges(lengths: np.ndarray) -> np.ndarray:
    """Counts from 0 up to each length: [2, 3] gives [0, 1, 0, 1, 2]."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) - np.repeat(starts, lengths)


def random_order_by(keys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns the permutation int64[N] by key, with equal keys in random order."""
    shuffled = rng.permutation(len(keys))
    return shuffled[np.argsort(keys[shuffled], kind="stable")]


def shuffled(
    order: np.ndarray, starts: np.ndarray, rng: np.random.Generator
) -> Partition:
    """Makes a partition, with the examples of each client in random order."""
    clients = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
    order = order[random_order_by(clients, rng)]
    return Partition(client_ids(len(starts) - 1), order, starts)


def class_slots(
    labels: np.ndarray,
    num_clients: int,
    classes_per_client: int,
    rng: np.random.Generator,
) -> Partition:
    """Assigns exactly the same number of different classes to every client.

    This reproduces the numbers of the paper's ImageNet-21k clients (Appendix A.4):
    25,691 clients with 20 classes each, and 442 images on average.

    A client has classes_per_client slots. Class c fills s_c slots, proportional to its
    n_c images within 1 <= s_c <= min(n_c, num_clients), and its images are distributed
    evenly over them. So the images of a slot, and of a client, vary little.

    Args:
        labels: The class of every example, int[N].
        num_clients: K.
        classes_per_client: |P_k| of every client.

    Returns:
        The clients. The combination of classes on a client is random.
    """
    check_at_least(1, num_clients=num_clients, classes_per_client=classes_per_client)
    sizes = np.bincount(labels)
    slots = _slots_per_class(sizes, num_clients, classes_per_client)
    class_order = rng.permutation(len(sizes))

    # From here on one entry per slot, the slots of a class side by side.
    of_class = np.repeat(class_order, slots[class_order])
    within_class = ranges(slots[class_order])
    share, extra = np.divmod(sizes, np.maximum(slots, 1))
    length = share[of_class] + (within_class < extra[of_class])
    first = (np.cumsum(sizes) - sizes)[of_class]
    first += within_class * share[of_class] + np.minimum(within_class, extra[of_class])
    client = _clients_of_slots(of_class, num_clients, rng)

    by_client = np.argsort(client, kind="stable")
    first, length = first[by_client], length[by_client]
    by_class = random_order_by(labels, rng)
    order = by_class[np.repeat(first, length) + ranges(length)]
    ends = np.cumsum(length)[classes_per_client - 1 :: classes_per_client]
    return shuffled(order, np.append(0, ends), rng)


def _slots_per_class(
    sizes: np.ndarray, num_clients: int, classes_per_client: int
) -> np.ndarray:
    """Chooses s_c, int64[n]; 0 for a class without images."""
    total = num_clients * classes_per_client
    most = np.minimum(sizes, num_clients)
    least = np.minimum(sizes, 1)
    if not least.sum() <= total <= most.sum():
        raise InvalidInputError(
            f"{num_clients:,} clients of {classes_per_client:,} classes each are "
            f"{total:,} places; expected {least.sum():,} (a client for each class) to "
            f"{most.sum():,} (as many as it has images for)."
        )

    def ideal(rate: float) -> np.ndarray:
        return np.clip(rate * sizes, least, most)

    # A slot has 1 / rate images if no bound is active: at least 1.
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if ideal(middle).sum() > total:
            high = middle
        else:
            low = middle
    slots = np.floor(ideal(low)).astype(np.int64)
    # The largest remainders are rounded up; two passes in case arithmetic has rounded a
    # remainder to zero.
    while missing := total - slots.sum():
        remainder = np.where(slots < most, ideal(low) - slots, -1)
        up = np.argsort(-remainder, kind="stable")[:missing]
        slots[up[slots[up] < most[up]]] += 1
    return slots


def _clients_of_slots(
    of_class: np.ndarray, num_clients: int, rng: np.random.Generator
) -> np.ndarray:
    """Assigns K clients to slots, equally often, and no class twice to a client.

    Slots of a class are side by side: int64[K * rounds] to int64[K * rounds]. A
    pass assigns one slot to each client, in random order. A class has at most K
    consecutive slots, so it is in one pass or in two consecutive ones. In the
    second, the clients that had it in the first are moved back.
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
