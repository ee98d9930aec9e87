"""Partitioners: the ways to split labelled images over clients, and their options.

`partitions` computes them and checks the options.
"""

import abc
import dataclasses
import math

import numpy as np

from tff_fedss.datasets import splits
from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.federated.partitions import Partition
from tff_fedss.errors import InvalidInputError

_IMAGES_PER_CLIENT = 100  # images per client, if the number of clients is not given


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
        """Splits images over clients.

        Args:
            labels: The class of every image, int[N].
            rng: Generator of the draws.
            owners: The owner of every image in the data, int[N], positions in
                owner_names; None: the data have none.
            owner_names: The names of the data's own clients.

        Raises:
            InvalidInputError: If the options do not fit the images.
        """


def _num_clients(clients: int | None, labels: np.ndarray) -> int:
    if clients is None:
        clients = max(1, round(len(labels) / _IMAGES_PER_CLIENT))
    partitions.check_num_clients(clients, len(labels))
    return clients


@dataclasses.dataclass(frozen=True)
class Iid(Partitioner):
    """A partition of images in random order into equal parts.

    Attributes:
        clients: Number of clients; by default about 100 images each.
    """

    clients: int | None = None

    def split(self, labels, rng, owners=None, owner_names=None):
        """See the base class."""
        return partitions.iid(len(labels), _num_clients(self.clients, labels), rng)


@dataclasses.dataclass(frozen=True)
class Natural(Partitioner):
    """The data's own clients, with their names."""

    def split(self, labels, rng, owners=None, owner_names=None):
        """See the base class."""
        if owners is None:
            raise InvalidInputError(f"partition=natural {splits.NEEDS_CLIENTS}")
        return partitions.natural(owners, owner_names, rng)


@dataclasses.dataclass(frozen=True)
class Dirichlet(Partitioner):
    """A partition of each class in proportions from a Dirichlet distribution.

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
        return partitions.dirichlet(labels, num_clients, self.alpha, self.min_size, rng)


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
        size = math.ceil(len(labels) / _num_clients(self.clients, labels))
        return partitions.chunks(labels, size, rng)


@dataclasses.dataclass(frozen=True)
class Quantity(Partitioner):
    """A random partition into clients of log-normal sizes.

    Attributes:
        sigma: The standard deviation of the logarithm of a client's share.
        clients: Number of clients; by default about 100 images each.
        min_size: No client has fewer images.
    """

    sigma: float = 1.0
    clients: int | None = None
    min_size: int = 1

    def split(self, labels, rng, owners=None, owner_names=None):
        """See the base class."""
        num_clients = _num_clients(self.clients, labels)
        return partitions.quantity(
            len(labels), num_clients, self.sigma, self.min_size, rng
        )


@dataclasses.dataclass(frozen=True)
class Mixed(Partitioner):
    """A partition with a few classes on each client, as in the paper (FedSS, A.4).

    Attributes:
        classes_per_client: Mean number of classes of a client.
        images_per_class: Mean number of images of each of them.
    """

    classes_per_client: int = 20
    images_per_class: int = 5

    def split(self, labels, rng, owners=None, owner_names=None):
        """See the base class."""
        return partitions.grouped_shares(
            labels, self.classes_per_client, self.images_per_class, rng
        )
