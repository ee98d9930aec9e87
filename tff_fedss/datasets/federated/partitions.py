"""How the training examples of a data set are dealt out to clients.

Every function here takes the labels of all examples and a random generator, and gives
each example to exactly one client. They read no image, so that a data set of millions
is split from its labels alone. The examples of a client come in random order: a local
epoch takes them as they come. The same labels, arguments and generator give the same
clients.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tff_fedss import errors

CLIENT_PREFIX = "client_"


class Partition(NamedTuple):
    """Which client holds which examples.

    Attributes:
        client_ids: K names, `client_` and a number with leading zeros.
        order: The examples, client after client, int64[N]; each of 0..N-1 once.
        starts: Where the examples of a client start in `order`, and N at the end,
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
        """Returns the examples of a client.

        Args:
            k: The client's position in `client_ids`, 0 <= k < K.

        Returns:
            Indices into the labels that were split, int64[n_k], a view.
        """
        return self.order[self.starts[k] : self.starts[k + 1]]

    def items(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the id and the examples of every client, in order."""
        for k, client_id in enumerate(self.client_ids):
            yield client_id, self.examples(k)


class ClassCounts(NamedTuple):
    """How many examples of which class each client has, without the zeros.

    Attributes:
        clients: Positions of clients, int64[M], ascending.
        classes: int64[M], ascending for a client.
        images: How many, int64[M], at least 1.
    """

    clients: np.ndarray
    classes: np.ndarray
    images: np.ndarray


def class_counts(partition: Partition, labels: np.ndarray) -> ClassCounts:
    """Counts the classes of every client.

    Args:
        partition: How the examples are split.
        labels: The class of every example, int[N].

    Returns:
        A row for each client and each of its classes.
    """
    num_classes = int(labels.max()) + 1
    clients = np.repeat(np.arange(partition.num_clients), partition.sizes)
    pairs, images = np.unique(
        clients * num_classes + labels[partition.order], return_counts=True
    )
    return ClassCounts(*np.divmod(pairs, num_classes), images)


def client_ids(num_clients: int) -> list[str]:
    """Returns the names of clients 0..num_clients-1, which sort in this order."""
    digits = len(str(num_clients - 1))
    return [f"{CLIENT_PREFIX}{k:0{digits}}" for k in range(num_clients)]


def check_seed(seed: int) -> None:
    """Checks the seed of a partition.

    Raises:
        errors.InvalidInputError: If it is not in 0..2^63-1.
    """
    if not 0 <= seed < 2**63:
        raise errors.InvalidInputError(f"seed={seed} must be in 0..2^63-1.")


def generator(seed: int, stream: int) -> np.random.Generator:
    """Makes the generator of a data set's draws.

    Args:
        seed: Which partition; 0 <= seed < 2^63.
        stream: Keeps the draws of a data set apart from others of the same seed.

    Raises:
        errors.InvalidInputError: If the seed is out of range.
    """
    check_seed(seed)
    return np.random.Generator(np.random.Philox(key=[seed, stream]))


def chunks(
    labels: np.ndarray, images_per_client: int, rng: np.random.Generator
) -> Partition:
    """Cuts the classes, one after the other, into clients of equal size.

    This meets the figures of the paper's SOP clients (Section 4.3): the 59,551 training
    images of 11,318 products give 596 clients of 100 images (the last one has 51) and
    20 products each: only a product at a cut is in two clients.

    Args:
        labels: The class of every example, int[N].
        images_per_client: n_k of all clients but the last, which may have fewer.
        rng: Where the order of the classes and of their images is drawn from.

    Returns:
        ceil(N / images_per_client) clients.

    Raises:
        errors.InvalidInputError: If there are no examples, or images_per_client is less
            than 1.
    """
    _check(labels, images_per_client=images_per_client)
    position = rng.permutation(int(labels.max()) + 1)
    order = _random_order_by(position[labels], rng)
    starts = np.append(np.arange(0, len(labels), images_per_client), len(labels))
    return _shuffled(order, starts, rng)


def class_slots(
    labels: np.ndarray,
    num_clients: int,
    classes_per_client: int,
    rng: np.random.Generator,
) -> Partition:
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

    Raises:
        errors.InvalidInputError: If there are no examples, an argument is less than 1,
            or the classes cannot fill the slots: more classes than slots, or too few
            images or classes.
    """
    _check(labels, num_clients=num_clients, classes_per_client=classes_per_client)
    sizes = np.bincount(labels)
    slots = _slots_per_class(sizes, num_clients, classes_per_client)
    class_order = rng.permutation(len(sizes))

    # One entry per slot from here on, the slots of a class side by side.
    of_class = np.repeat(class_order, slots[class_order])
    within_class = _ranges(slots[class_order])
    share, extra = np.divmod(sizes, np.maximum(slots, 1))
    length = share[of_class] + (within_class < extra[of_class])
    first = (np.cumsum(sizes) - sizes)[of_class]
    first += within_class * share[of_class] + np.minimum(within_class, extra[of_class])
    client = _clients_of_slots(of_class, num_clients, rng)

    by_client = np.argsort(client, kind="stable")
    first, length = first[by_client], length[by_client]
    by_class = _random_order_by(labels, rng)
    order = by_class[np.repeat(first, length) + _ranges(length)]
    ends = np.cumsum(length)[classes_per_client - 1 :: classes_per_client]
    return _shuffled(order, np.append(0, ends), rng)


def _slots_per_class(
    sizes: np.ndarray, num_clients: int, classes_per_client: int
) -> np.ndarray:
    """Chooses s_c, int64[n]; 0 for a class without images."""
    total = num_clients * classes_per_client
    most = np.minimum(sizes, num_clients)
    least = np.minimum(sizes, 1)
    wanted = (
        f"num_clients={num_clients:,} with classes_per_client={classes_per_client:,} "
        f"have {total:,} places for a class"
    )
    if total < least.sum():
        raise errors.InvalidInputError(
            f"{wanted}, but each of {least.sum():,} classes needs at least one."
        )
    if total > most.sum():
        raise errors.InvalidInputError(
            f"{wanted}, but the {sizes.sum():,} images of {least.sum():,} classes fill "
            f"at most {most.sum():,}: a client has a class once, with an image or more."
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


def grouped_shares(
    labels: np.ndarray,
    classes_per_client: int,
    images_per_class: int,
    rng: np.random.Generator,
) -> Partition:
    """Deals every class into shares, and the classes of a share to clients in groups.

    Each share groups the classes anew, so that two clients have few in common. The
    clients have the proportions of the paper's ImageNet-21k clients (Appendix A.4)
    at any number of classes and images.

    Args:
        labels: The class of every example, int[N].
        classes_per_client: Mean number of classes of a client.
        images_per_class: Mean number of images that a client has of a class.
        rng: Where the draws come from.

    Returns:
        The clients. If classes differ much in size, small classes are missing from some
        shares, and a client that would hold only such classes is left out.

    Raises:
        errors.InvalidInputError: If there are no examples, or an argument is less than
            1.
    """
    _check(
        labels, classes_per_client=classes_per_client, images_per_class=images_per_class
    )
    sizes = np.bincount(labels)
    num_classes = len(sizes)
    # of_class[c][s] are the examples of class c in share s.
    num_shares = max(1, round(len(labels) / num_classes / images_per_class))
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    of_class = [
        np.array_split(rng.permuted(examples), num_shares) for examples in by_class
    ]
    num_groups = max(1, round(num_classes / classes_per_client))

    def clients() -> Iterator[np.ndarray]:
        for share in range(num_shares):
            for group in np.array_split(rng.permutation(num_classes), num_groups):
                yield rng.permutation(
                    np.concatenate([of_class[c][share] for c in group])
                )

    return _from_clients([examples for examples in clients() if len(examples)])


def dirichlet(
    labels: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator
) -> Partition:
    """Draws a client's mixture of classes from a Dirichlet distribution.

    As in Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution
    for Federated Visual Classification" (arXiv:1909.06335), Section 3: client k has
    q_k ~ Dirichlet(alpha * p), with p the class frequencies, and draws its images from
    q_k without replacement. The probability of a class that is used up goes to the
    others. Clients follow each other, so the last ones get what is left.

    Args:
        labels: The class of every example, int[N].
        num_clients: K; all clients have N / K images, rounded down or up.
        alpha: The concentration, above 0 and finite. Near 0 clients have one class;
            for a large alpha all are alike.
        rng: Where the draws come from.

    Returns:
        The clients.

    Raises:
        errors.InvalidInputError: If there are no examples, num_clients is less than 1
            or more than N, or alpha is out of range.
    """
    _check(labels, num_clients=num_clients)
    if num_clients > len(labels):
        raise errors.InvalidInputError(
            f"num_clients={num_clients:,} is more than the {len(labels):,} images."
        )
    if not 0 < alpha < math.inf:
        raise errors.InvalidInputError(f"alpha={alpha} must be above 0 and finite.")
    left = np.bincount(labels)
    present = left > 0
    concentration = alpha * left[present] / len(labels)
    by_class = _random_order_by(labels, rng)
    next_one = np.cumsum(left) - left
    clients = []
    for size in _near_equal(len(labels), num_clients):
        log_mixture = np.full(len(left), -np.inf)
        # The logarithm of a gamma variate, which is 0 in floats if alpha is small:
        # gamma(a) = gamma(a + 1) * U^(1/a).
        log_mixture[present] = (
            np.log(rng.standard_gamma(concentration + 1))
            - rng.standard_exponential(len(concentration)) / concentration
        )
        counts = _draw_without_replacement(log_mixture, left, size, rng)
        clients.append(
            rng.permutation(by_class[np.repeat(next_one, counts) + _ranges(counts)])
        )
        next_one += counts
        left -= counts
    return _from_clients(clients)


def _draw_without_replacement(
    log_mixture: np.ndarray, left: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    """Draws `size` images one after the other, from the classes that have any left.

    To draw from those only is to draw from all and to reject the others, so the draws
    can be made many at a time, and those of a class beyond its images made again.

    Args:
        log_mixture: Logarithm of the classes' weights, any scale, float64[n].
        left: How many images each class has, int64[n]; together at least `size`.
        size: How many to draw.
        rng: Where the draws come from.

    Returns:
        How many of each class, int64[n].
    """
    counts = np.zeros_like(left)
    while missing := size - counts.sum():
        logs = np.where(counts < left, log_mixture, -np.inf)
        weights = np.exp(logs - logs.max())
        counts += rng.multinomial(missing, weights / weights.sum())
        counts = np.minimum(counts, left)
    return counts


def _check(labels: np.ndarray, **arguments: int) -> None:
    for name, value in arguments.items():
        if value < 1:
            raise errors.InvalidInputError(f"{name}={value} must be at least 1.")
    if not len(labels):
        raise errors.InvalidInputError("There are no images to split over clients.")


def _near_equal(total: int, parts: int) -> np.ndarray:
    """Sizes that sum to `total` and differ by at most 1, larger ones first."""
    share, extra = divmod(total, parts)
    return share + (np.arange(parts) < extra).astype(np.int64)


def _ranges(lengths: np.ndarray) -> np.ndarray:
    """Counts from 0 anew for each of the lengths: [2, 3] gives [0, 1, 0, 1, 2]."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) - np.repeat(starts, lengths)


def _random_order_by(keys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sorts by key, in random order where keys are equal; the permutation, int64[N]."""
    shuffled = rng.permutation(len(keys))
    return shuffled[np.argsort(keys[shuffled], kind="stable")]


def _shuffled(
    order: np.ndarray, starts: np.ndarray, rng: np.random.Generator
) -> Partition:
    """Makes a partition, with the examples of each client in random order."""
    clients = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
    order = order[_random_order_by(clients, rng)]
    return Partition(client_ids(len(starts) - 1), order, starts)


def _from_clients(clients: list[np.ndarray]) -> Partition:
    starts = np.cumsum([0, *map(len, clients)])
    return Partition(client_ids(len(clients)), np.concatenate(clients), starts)
