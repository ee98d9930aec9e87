"""Partitioners: the ways to split labelled images over clients, and their options.

Names and definitions are those of Flower Datasets' partitioners (Beutel et al.,
arXiv:2007.14390; `IidPartitioner`, `DirichletPartitioner`, `NaturalIdPartitioner`) and
of FedArtML (Gutierrez et al., IEEE Access 2024: label skew by a Dirichlet distribution,
quantity skew), and those of the FedSS paper, see `partitions`.
"""

import abc
import dataclasses

import numpy as np

from tff_fedss.datasets import splits
from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.federated.partitions import Partition
from tff_fedss.errors import InvalidInputError, check_at_least, check_range

_IMAGES_PER_CLIENT = 100  # images per client, if the number of clients is not given
_MAX_TRIES = 100


class Partitioner(abc.ABC):
    """A way to split images over clients."""

    @abc.abstractmethod
    def split(
        self,
        labels: np.ndarray,
        rng: np.random.Generator,
        owners: np.ndarray | None = None,
        owner_names: list[str] | None = None,
    ) -> Partition:
        """Splits images over clients; InvalidInputError if its options do not fit them.

        `labels` are the class of every image, int[N]. If the data have clients of their
        own, `owners` are those of the images, int[N], positions in `owner_names`.
        """


def _num_clients(clients: int | None, labels: np.ndarray) -> int:
    if clients is None:
        clients = max(1, round(len(labels) / _IMAGES_PER_CLIENT))
    check_range("clients", clients, 1, len(labels), whole=True)
    return clients


@dataclasses.dataclass(frozen=True)
class Iid(Partitioner):
    """A random partition into clients whose sizes differ by at most one.

    Attributes:
        clients: Number of clients; by default about 100 images each.
    """

    clients: int | None = None

    def split(self, labels, rng, owners=None, owner_names=None):
        """See the base class."""
        num_clients = _num_clients(self.clients, labels)
        return Partition(
            partitions.client_ids(num_clients),
            rng.permutation(len(labels)),
            partitions.equal_parts(len(labels), num_clients),
        )


@dataclasses.dataclass(frozen=True)
class Natural(Partitioner):
    """The data's own clients, with their names."""

    def split(self, labels, rng, owners=None, owner_names=None):
        """See the base class."""
        splits.check_clients("partition=natural", owners)
        return partitions.natural(owners, owner_names, rng)


@dataclasses.dataclass(frozen=True)
class Dirichlet(Partitioner):
    """A partition of each class in proportions from a Dirichlet distribution.

    As in Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural
    Networks" (arXiv:1905.12022), Section 4: class c has p_c ~ Dir_K(alpha), and client
    k gets the share p_ck of its images. Draws are repeated until every client has
    min_size images.

    Attributes:
        alpha: The concentration; smaller is more uneven.
        clients: Number of clients; by default about 100 images each.
        min_size: No client has fewer images.
    """

    alpha: float = 0.5
    clients: int | None = None
    min_size: int = 1

    def split(self, labels, rng, owners=None, owner_names=None):
        """See the base class."""
        num_clients = _num_clients(self.clients, labels)
        check_range("alpha", self.alpha, 0, above=True)
        check_range("min_size", self.min_size, 1, len(labels) // num_clients)
        by_class = partitions.random_order_by(labels, rng)
        class_sizes = np.bincount(labels)
        for _ in range(_MAX_TRIES):
            client_of = np.concatenate(
                [_dirichlet(size, num_clients, self.alpha, rng) for size in class_sizes]
            )
            smallest = np.bincount(client_of, minlength=num_clients).min()
            if smallest >= self.min_size:
                of_image = np.empty(len(labels), np.int64)
                of_image[by_class] = client_of
                names = partitions.client_ids(num_clients)
                return partitions.natural(of_image, names, rng)
        raise InvalidInputError(
            f"{_MAX_TRIES} draws with alpha={self.alpha:g} left one of {num_clients:,} "
            f"clients fewer than min_size={self.min_size} images."
        )


def _dirichlet(
    size: int, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Returns the clients of one class's images, int64[size], in random order."""
    # The logarithm of a gamma variate, which itself underflows if alpha is small:
    # gamma(a) = gamma(a + 1) * U^(1/a).
    logs = np.log(rng.standard_gamma(alpha + 1, num_clients))
    logs -= rng.standard_exponential(num_clients) / alpha
    shares = np.exp(logs - logs.max())
    ends = np.round(np.cumsum(shares) / shares.sum() * size).astype(np.int64)
    # A fixed order would give the first clients less where there are few images.
    order = rng.permutation(num_clients)
    return np.repeat(order, np.diff(ends, prepend=0))


@dataclasses.dataclass(frozen=True)
class Classes(Partitioner):
    """A partition with the same number of classes on each client.

    Attributes:
        per_client: How many classes a client has.
        clients: Number of clients; by default about 100 images each.
    """

    per_client: int = 20
    clients: int | None = None

    def split(self, labels, rng, owners=None, owner_names=None):
        """See the base class."""
        num_clients = _num_clients(self.clients, labels)
        return partitions.class_slots(labels, num_clients, self.per_client, rng)


@dataclasses.dataclass(frozen=True)
class Chunks(Partitioner):
    """A partition into equal numbers of images, of whole classes except at the cuts.

    Attributes:
        clients: Number of clients; by default about 100 images each.
    """

    clients: int | None = None

    def split(self, labels, rng, owners=None, owner_names=None):
        """See the base class."""
        num_clients = _num_clients(self.clients, labels)
        starts = partitions.equal_parts(len(labels), num_clients)
        return partitions.chunks(labels, starts, rng)


@dataclasses.dataclass(frozen=True)
class Quantity(Partitioner):
    """A random partition into clients of log-normal sizes.

    Attributes:
        sigma: The standard deviation of the logarithm of a client's share; 0: all have
            the same size.
        clients: Number of clients; by default about 100 images each.
        min_size: No client has fewer images.
    """

    sigma: float = 1.0
    clients: int | None = None
    min_size: int = 1

    def split(self, labels, rng, owners=None, owner_names=None):
        """See the base class."""
        num_images, num_clients = len(labels), _num_clients(self.clients, labels)
        check_range("sigma", self.sigma, 0)
        check_range("min_size", self.min_size, 1, num_images // num_clients, whole=True)
        shares = rng.standard_normal(num_clients) * self.sigma
        shares = np.exp(shares - shares.max())
        spare = num_images - num_clients * self.min_size
        ideal = shares / shares.sum() * spare
        sizes = np.floor(ideal).astype(np.int64)
        missing = spare - int(sizes.sum())
        sizes[np.argsort(sizes - ideal, kind="stable")[:missing]] += 1
        return Partition(
            partitions.client_ids(num_clients),
            rng.permutation(num_images),
            np.append(0, np.cumsum(sizes + self.min_size)),
        )


@dataclasses.dataclass(frozen=True)
class Mixed(Partitioner):
    """A partition with a few classes on each client.

    It splits the images of each class into shares, and assigns the classes of a share
    to clients in groups. Each share has other groups, so that two clients have few
    classes in common. The clients have the proportions of the paper's ImageNet-21k
    clients (Appendix A.4) at any number of classes and images. If class sizes differ
    much, small classes are missing from some shares, and a client with such classes
    only is left out.

    Attributes:
        classes_per_client: Mean number of classes of a client.
        images_per_class: Mean number of images of each of them.
    """

    classes_per_client: int = 20
    images_per_class: int = 5

    def split(self, labels, rng, owners=None, owner_names=None):
        """See the base class."""
        check_at_least(1, **dataclasses.asdict(self))
        sizes = np.bincount(labels)
        num_classes = len(sizes)
        # of_class[c][s] are the examples of class c in share s.
        num_shares = max(1, round(len(labels) / num_classes / self.images_per_class))
        by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
        of_class = [
            np.array_split(rng.permuted(examples), num_shares) for examples in by_class
        ]
        num_groups = max(1, round(num_classes / self.classes_per_client))
        clients = []
        for share in range(num_shares):
            for group in np.array_split(rng.permutation(num_classes), num_groups):
                examples = np.concatenate([of_class[c][share] for c in group])
                clients.append(rng.permutation(examples))
        clients = list(filter(len, clients))
        starts = np.cumsum([0, *map(len, clients)])
        names = partitions.client_ids(len(clients))
        return Partition(names, np.concatenate(clients), starts)
