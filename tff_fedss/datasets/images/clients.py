"""The partitions of own images by name, and their options."""

import dataclasses
import math

import numpy as np

from tff_fedss.datasets import splits
from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.federated.class_slots import class_slots
from tff_fedss.datasets.federated.partitions import Partition
from tff_fedss.errors import InvalidInputError, check_choice

PARTITIONS = ("iid", "natural", "dirichlet", "classes", "chunks", "quantity")
_IMAGES_PER_CLIENT = 100  # of clients whose number nobody has given


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
        client_names: Of the numbers in clients; None: nothing says them.
        options: How.
        rng: Where the draws come from.

    Returns:
        The clients. With "natural" they have their own names.
    """
    name = options.partition
    check_choice("partition", name, PARTITIONS)
    if name == "natural":
        if clients is None:
            raise InvalidInputError(f"partition=natural {splits.NEEDS_CLIENTS}")
        return partitions.natural(clients, client_names, rng)
    num_clients = options.num_clients
    if num_clients is None:
        num_clients = max(1, round(len(labels) / _IMAGES_PER_CLIENT))
    partitions.check_num_clients(num_clients, len(labels))
    if name == "iid":
        return partitions.iid(len(labels), num_clients, rng)
    if name == "dirichlet":
        return partitions.dirichlet(
            labels, num_clients, options.dirichlet_alpha, options.min_client_size, rng
        )
    if name == "quantity":
        return partitions.quantity(
            len(labels),
            num_clients,
            options.quantity_sigma,
            options.min_client_size,
            rng,
        )
    if name == "chunks":
        return partitions.chunks(labels, math.ceil(len(labels) / num_clients), rng)
    return class_slots(labels, num_clients, options.classes_per_client, rng)
