"""The form in which each family of experiments declares itself."""

import dataclasses
import os
from collections.abc import Callable, Mapping

from tff_fedss.datasets.federated_dataset import FederatedDataset
from tff_fedss.tasks.classification import Classification
from tff_fedss.tasks.retrieval import Retrieval

# What can be asked of images, by the name that a user gives it.
KINDS = {"classification": Classification, "retrieval": Retrieval}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The hyper-parameters of one experiment, where the user names no others.

    The values for the paper's data sets are those of FedSS, sections 4.2, 4.3, A.2 and
    A.4. What is the same for all of them (A.2: d = 64, batches of 32, server learning
    rate 1.0 and momentum 0.9) is the default of the flags themselves.

    Attributes:
        rounds: How many rounds the paper trains.
        clients_per_round: K.
        client_learning_rate: eta.
        num_negatives: The values of m = |N_k| that the tables compare, increasing.
        image_size: Height and width of what the model sees, in pixels.
        model: phi, by its name on the command line.
        warm_start_epochs: Central epochs on public images before the rounds.
        rounds_per_evaluation: How often to measure.
        starts_pretrained: Whether the paper starts phi from ImageNet-1k.
    """

    rounds: int
    clients_per_round: int
    client_learning_rate: float
    num_negatives: tuple[int, ...]
    image_size: int = 224
    model: str = "mobilenet_v3_paper"
    warm_start_epochs: int = 0
    rounds_per_evaluation: int = 100
    starts_pretrained: bool = False


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """What a user may ask of a data set.

    Attributes:
        data_dir: Where its files are; None if that was not said.
        kind: One of `KINDS`.
        partition: How it is split over clients; one of the family's partitions.
        image_size: Height and width of what the model sees, in pixels.
        resize_size: What images are resized to before the crop; None: the paper's
            ratio. Only for photographs.
        num_classes: n, where it is free; else None.
        num_clients: How many clients, where that is free; None: the default.
        dirichlet_alpha: The concentration of a Dirichlet partition.
        clients_csv: A file that says which client has which image; else None.
        num_public_classes: How many classes are kept from the clients, for the warm
            start, where that is free.
    """

    data_dir: str | os.PathLike | None
    kind: str
    partition: str
    image_size: int
    resize_size: int | None = None
    num_classes: int | None = None
    num_clients: int | None = None
    dirichlet_alpha: float = 10.0
    clients_csv: str | None = None
    num_public_classes: int = 0


@dataclasses.dataclass(frozen=True)
class Family:
    """The experiments on one data set.

    Attributes:
        title: How to write the data set in tables.
        settings: For each kind of task that the data set serves, the default kind
            first, its hyper-parameters.
        partitions: The ways to split it over clients, the default first.
        load: Loads the data.
        options: The names of the attributes of `DataOptions` that `load` heeds, beside
            kind, partition and image_size, which all do.
    """

    title: str
    settings: Mapping[str, Settings]
    partitions: tuple[str, ...]
    load: Callable[[DataOptions], FederatedDataset]
    options: frozenset[str] = frozenset()
