"""How images are split over clients, by the names that the field uses.

The names and definitions are those of Flower Datasets' partitioners (Beutel et al.,
arXiv:2007.14390; `IidPartitioner`, `DirichletPartitioner`, `PathologicalPartitioner`,
`NaturalIdPartitioner`) and of FedArtML (Gutierrez et al., IEEE Access 2024: label skew
by a Dirichlet distribution, quantity skew), beside the two of the FedSS paper (Sections
4.3 and A.4).
"""

import dataclasses
import math

import numpy as np

from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.federated.partitions import Partition
from tff_fedss.errors import InvalidInputError

PARTITIONS = ("iid", "natural", "dirichlet", "classes", "chunks", "quantity")
_IMAGES_PER_CLIENT = 100  # of clients whose number nobody has given
_MAX_TRIES = 100


@dataclasses.dataclass(frozen=True)
class ClientOptions:
    """How to split images over clients.

    Attributes:
        partition: One of `PARTITIONS`.
        num_clients: K; None: about 100 images a client. Not for "natural".
        dirichlet_alpha: For "dirichlet": the concentration.
        min_client_size: For "dirichlet" and "quantity": every client has so many images
            or more.
        classes_per_client: For "classes".
        quantity_sigma: For "quantity": the standard deviation of the logarithm of a
            client's share.
    """

    partition: str = "iid"
    num_clients: int | None = None
    dirichlet_alpha: float = 0.5
    min_client_size: int = 1
    classes_per_client: int = 20
    quantity_sigma: float = 1.0


def split(
    labels: np.ndarray,
    clients: np.ndarray | None,
    client_names: list[str] | None,
    options: ClientOptions,
    rng: np.random.Generator,
) -> Partition:
    """Splits images over clients.

    Args:
        labels: The class of every image, int[N].
        clients: Whose every image is, int[N], positions in client_names; None: nothing
            says it.
        client_names: Likewise.
        options: How.
        rng: Where the draws come from.

    Returns:
        The clients. With "natural" they have their own names.

    Raises:
        InvalidInputError: If the options do not go with the images.
    """
    name = options.partition
    if name not in PARTITIONS:
        raise InvalidInputError(
            f"partition={name!r} must be one of {', '.join(PARTITIONS)}."
        )
    if not len(labels):
        raise InvalidInputError("there are no images left to split over clients.")
    if name == "natural":
        if clients is None:
            raise InvalidInputError(
                "partition=natural needs clients: CLIENT/CLASS/image with "
                "folders=client/class, or a column `client` in images.csv."
            )
        if options.num_clients is not None:
            raise InvalidInputError(
                f"num_clients={options.num_clients} does not go with "
                "partition=natural, whose clients are those of the data."
            )
        return natural(clients, client_names, rng)
    num_clients = options.num_clients
    if num_clients is None:
        num_clients = max(1, round(len(labels) / _IMAGES_PER_CLIENT))
    if not 1 <= num_clients <= len(labels):
        raise InvalidInputError(
            f"num_clients={num_clients:,} must be in 1..{len(labels):,}, the number of "
            "training images."
        )
    if name == "iid":
        return iid(len(labels), num_clients, rng)
    if name == "dirichlet":
        return dirichlet(
            labels, num_clients, options.dirichlet_alpha, options.min_client_size, rng
        )
    if name == "quantity":
        return quantity(
            len(labels),
            num_clients,
            options.quantity_sigma,
            options.min_client_size,
            rng,
        )
    if name == "chunks":
        return partitions.chunks(labels, math.ceil(len(labels) / num_clients), rng)
    return partitions.class_slots(labels, num_clients, options.classes_per_client, rng)


def natural(
    clients: np.ndarray, client_names: list[str], rng: np.random.Generator
) -> Partition:
    """Gives every client the images that are its own.

    Args:
        clients: Whose every image is, int[N].
        client_names: Of the numbers in clients.
        rng: Where the order of a client's images is drawn from.

    Returns:
        The clients that have images, by their names.
    """
    shuffled = rng.permutation(len(clients))
    order = shuffled[np.argsort(clients[shuffled], kind="stable")]
    present, sizes = np.unique(clients, return_counts=True)
    names = [client_names[k] for k in present]
    return Partition(names, order, np.append(0, np.cumsum(sizes)))


def iid(num_images: int, num_clients: int, rng: np.random.Generator) -> Partition:
    """Deals images out at random, as many to each client.

    Args:
        num_images: N.
        num_clients: K; sizes differ by one at most.
        rng: Where the order is drawn from.
    """
    ends = [num_images * k // num_clients for k in range(num_clients + 1)]
    return Partition(
        partitions.client_ids(num_clients),
        rng.permutation(num_images),
        np.array(ends, np.int64),
    )


def quantity(
    num_images: int,
    num_clients: int,
    sigma: float,
    min_size: int,
    rng: np.random.Generator,
) -> Partition:
    """Deals images out at random, to clients whose sizes are log-normal.

    Args:
        num_images: N.
        num_clients: K.
        sigma: The standard deviation of the logarithm of a client's share; 0: all
            clients are alike.
        min_size: What every client has before the rest is shared out.
        rng: Where sizes and order are drawn from.

    Raises:
        InvalidInputError: If sigma is out of range, or there are too few images.
    """
    if not 0 <= sigma < math.inf:
        raise InvalidInputError(
            f"quantity_sigma={sigma} must be at least 0 and finite."
        )
    _check_min_size(num_images, num_clients, min_size)
    shares = rng.standard_normal(num_clients) * sigma
    shares = np.exp(shares - shares.max())
    ideal = shares / shares.sum() * (num_images - num_clients * min_size)
    sizes = np.floor(ideal).astype(np.int64)
    missing = num_images - num_clients * min_size - int(sizes.sum())
    sizes[np.argsort(sizes - ideal, kind="stable")[:missing]] += 1
    return Partition(
        partitions.client_ids(num_clients),
        rng.permutation(num_images),
        np.append(0, np.cumsum(sizes + min_size)),
    )


def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    alpha: float,
    min_size: int,
    rng: np.random.Generator,
) -> Partition:
    """Cuts each class over the clients in proportions from a Dirichlet distribution.

    As in Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural
    Networks" (arXiv:1905.12022), Section 4: class c has p_c ~ Dir_K(alpha), and client
    k gets the share p_ck of its images. Drawn anew until every client has min_size
    images. (`partitions.dirichlet` draws a mixture of classes for each client instead,
    and its clients are of equal size.)

    Args:
        labels: The class of every image, int[N].
        num_clients: K.
        alpha: The concentration, above 0 and finite. Near 0 a class lies on one client.
        min_size: Every client has so many images or more.
        rng: Where the draws come from.

    Raises:
        InvalidInputError: If alpha is out of range, or no draw gives every client
            enough images.
    """
    if not 0 < alpha < math.inf:
        raise InvalidInputError(f"dirichlet_alpha={alpha} must be above 0 and finite.")
    min_size = max(1, min_size)
    _check_min_size(len(labels), num_clients, min_size)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    class_sizes = np.bincount(labels)
    for _ in range(_MAX_TRIES):
        client_of = np.concatenate(
            [_dirichlet_clients(size, num_clients, alpha, rng) for size in class_sizes]
        )
        smallest = np.bincount(client_of, minlength=num_clients).min()
        if smallest >= min_size:
            return natural_of(by_class, client_of, num_clients, rng)
    raise InvalidInputError(
        f"{_MAX_TRIES} draws with dirichlet_alpha={alpha:g} left one of "
        f"{num_clients:,} clients with fewer than min_client_size={min_size} images: "
        "take fewer clients, or a larger alpha."
    )


def _dirichlet_clients(
    size: int, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """The clients of the images of one class, int64[size], in random order of them."""
    # The logarithm of a gamma variate, which is 0 in floats if alpha is small:
    # gamma(a) = gamma(a + 1) * U^(1/a).
    logs = np.log(rng.standard_gamma(alpha + 1, num_clients))
    logs -= rng.standard_exponential(num_clients) / alpha
    shares = np.exp(logs - logs.max())
    ends = np.round(np.cumsum(shares) / shares.sum() * size).astype(np.int64)
    # By position, the first clients would go short where there are few images.
    order = rng.permutation(num_clients)
    return np.repeat(order, np.diff(ends, prepend=0))


def natural_of(
    images: np.ndarray, clients: np.ndarray, num_clients: int, rng: np.random.Generator
) -> Partition:
    """The partition in which image images[i] belongs to client clients[i]."""
    of_image = np.empty(len(images), np.int64)
    of_image[images] = clients
    return natural(of_image, partitions.client_ids(num_clients), rng)


def _check_min_size(num_images: int, num_clients: int, min_size: int) -> None:
    if min_size < 1 or num_clients * min_size > num_images:
        raise InvalidInputError(
            f"min_client_size={min_size} must be in 1..{num_images // num_clients}: "
            f"{num_images:,} images for {num_clients:,} clients."
        )
