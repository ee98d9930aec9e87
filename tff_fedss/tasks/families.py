"""The data sets of federated experiments: how each is loaded, and its settings.

One table: a data set is a `Family`, by the name that a user gives it.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import tensorflow as tf

from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.datasets.fingerprint import Fingerprint
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
        dirichlet_alpha: The concentration of a Dirichlet partition; None: the default.
        clients_csv: A file that says which client has which image; else None.
        characters: Which of Omniglot's are the classes; None: the default.
        num_public_classes: How many classes are kept from the clients, for the warm
            start, where that is free.
        num_unseen_classes: How many more are kept from everyone, to be retrieved among
            each other, where that is free.
        folders: And from here to quantity_sigma, and from tfds_name on: for images of
            one's own, see `datasets.images`.
        validation_share: The share of clients that are kept apart, see
            `datasets.splits`; None: none.
        on_validation: Whether they are measured on, in the place of the test.
    """

    data_dir: str | os.PathLike | None
    kind: str
    partition: str
    image_size: int
    resize_size: int | None = None
    num_classes: int | None = None
    num_clients: int | None = None
    dirichlet_alpha: float | None = None
    clients_csv: str | None = None
    characters: str | None = None
    num_public_classes: int = 0
    num_unseen_classes: int = 0
    folders: str = "auto"
    test: str | None = None
    test_share: float | None = None
    min_client_size: int | None = None
    classes_per_client: int | None = None
    quantity_sigma: float | None = None
    validation_share: float | None = None
    on_validation: bool | None = None
    tfds_name: str | None = None
    image_key: str | None = None
    label_key: str | None = None
    client_key: str | None = None


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
            kind, partition, image_size, validation_share and on_validation, which all
            do.
    """

    title: str
    settings: Mapping[str, Settings]
    partitions: tuple[str, ...]
    load: Callable[[DataOptions], FederatedDataset]
    options: frozenset[str] = frozenset()


def _loader(
    module: str,
    arguments: Callable[[DataOptions], Mapping[str, object]],
    function: Callable[[DataOptions], str] = lambda options: "load",
) -> Callable[[DataOptions], FederatedDataset]:
    """Returns a function that imports a module of `datasets` and calls its loader.

    Imported when asked for: the readers of other data sets need not be there.

    Args:
        module: Its name.
        arguments: Those of the loader, by name, but for `image_size`.
        function: The name of the loader.

    Returns:
        It, and after it what takes the validation clients apart.
    """

    def load(options: DataOptions) -> FederatedDataset:
        loader = getattr(
            import_module(f"tff_fedss.datasets.{module}"), function(options)
        )
        dataset = loader(image_size=options.image_size, **arguments(options))
        # TFF takes seconds to import.
        from tff_fedss.datasets import splits

        return splits.hold_out_clients(dataset, **_given(options, *_VALIDATION_OPTIONS))

    return load


def _given(options: DataOptions, *names: str) -> dict[str, object]:
    """Those of the options that a user has given."""
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


_SPLIT_OPTIONS = (
    "num_clients",
    "dirichlet_alpha",
    "min_client_size",
    "classes_per_client",
    "quantity_sigma",
)
_HELD_OUT_OPTIONS = (
    "resize_size",
    "test",
    "test_share",
    "num_public_classes",
)
# Heeded by all families.
_VALIDATION_OPTIONS = ("validation_share", "on_validation")


def _own_images(title: str, dataset: str, options: Sequence[str]) -> Family:
    """Other people's images; options are those of their index."""

    def load(given: DataOptions) -> FederatedDataset:
        # TFF takes seconds to import, and TFDS.
        from tff_fedss.datasets import images

        index = images.open_index(
            dataset,
            given.data_dir,
            needs_clients=given.partition == "natural" or given.test == "clients",
            **_given(given, *options),
        )
        split = images.ClientOptions(given.partition, **_given(given, *_SPLIT_OPTIONS))
        what = images.ImageOptions(
            image_size=given.image_size,
            retrieval=given.kind == "retrieval",
            split=split,
            **_given(given, *_HELD_OUT_OPTIONS, *_VALIDATION_OPTIONS),
        )
        return images.federated(index, what)

    return Family(
        title=title,
        settings={"classification": _OWN_IMAGES, "retrieval": _OWN_IMAGES},
        partitions=("iid", "natural", "dirichlet", "classes", "chunks", "quantity"),
        load=load,
        options=frozenset({"data_dir", *_SPLIT_OPTIONS, *_HELD_OUT_OPTIONS, *options}),
    )


def _landmarks(title: str, split: str) -> Family:
    """Landmark recognition with natural clients (FedSS, section 4.2, Table 1)."""
    return Family(
        title=title,
        settings={
            "classification": Settings(
                rounds=5000,
                clients_per_round=64,
                client_learning_rate=0.01,
                num_negatives=(5, 10, 20, 40, 80),
                starts_pretrained=True,
            )
        },
        partitions=("author",),
        load=_loader(
            "landmarks",
            lambda o: dict(data_dir=o.data_dir, split=split, resize_size=o.resize_size),
        ),
        options=frozenset({"data_dir", "resize_size"}),
    )


# For two cores.
_SMALL = Settings(
    rounds=100,
    clients_per_round=16,
    client_learning_rate=0.1,
    num_negatives=(5, 10, 20, 40, 80),
    image_size=28,
    model="small_cnn",
    warm_start_epochs=4,
    rounds_per_evaluation=10,
)

# Photographs of any kind: m is that of 20 classes and more.
_OWN_IMAGES = dataclasses.replace(
    _SMALL,
    num_negatives=(20,),
    image_size=56,
    warm_start_epochs=0,
)

FAMILIES = {
    # Drawn as they are asked for: nothing to download, any n.
    "glyphs": Family(
        title="glyphs",
        settings={
            "classification": dataclasses.replace(_SMALL, num_negatives=(5, 10, 20, 40))
        },
        partitions=("mixed",),
        load=_loader(
            "synthetic",
            lambda o: dict(num_classes=o.num_classes or 500),
            lambda o: "glyphs",
        ),
        options=frozenset({"num_classes"}),
    ),
    # The paper's two tasks: classification as in section 4.2, on the hands of people
    # who are no clients; retrieval as in section 4.3, of characters no client has.
    "omniglot": Family(
        title="Omniglot",
        settings={"classification": _SMALL, "retrieval": _SMALL},
        partitions=("mixed", "drawer", "chunks"),
        load=_loader(
            "omniglot",
            lambda o: dict(
                data_dir=o.data_dir, partition=o.partition, **_given(o, "characters")
            ),
            lambda o: "load" if o.kind == "classification" else "load_unseen",
        ),
        options=frozenset({"data_dir", "characters"}),
    ),
    "tiny_imagenet": Family(
        title="Tiny-ImageNet",
        settings={
            "classification": dataclasses.replace(
                _SMALL, rounds=200, image_size=56, warm_start_epochs=0
            )
        },
        partitions=("mixed", "dirichlet"),
        load=_loader(
            "tiny_imagenet",
            lambda o: dict(
                data_dir=o.data_dir,
                partition=o.partition,
                resize_size=o.resize_size,
                num_clients=o.num_clients,
                alpha=0.5 if o.dirichlet_alpha is None else o.dirichlet_alpha,
                num_public_classes=o.num_public_classes,
                num_unseen_classes=o.num_unseen_classes,
            ),
        ),
        options=frozenset(
            {
                "data_dir",
                "resize_size",
                "num_clients",
                "dirichlet_alpha",
                "num_public_classes",
                "num_unseen_classes",
            }
        ),
    ),
    "landmarks": _landmarks("Landmarks-User-160k", "160k"),
    "landmarks_23k": _landmarks("Landmarks-User-23k", "23k"),
    # Retrieval of unseen products (FedSS, section 4.3, Tables 2 and 4).
    "sop": Family(
        title="Stanford Online Products",
        settings={
            "retrieval": Settings(
                rounds=2000,
                clients_per_round=32,
                client_learning_rate=0.01,
                num_negatives=(5, 10, 20, 40, 80),
                starts_pretrained=True,
            )
        },
        partitions=("mixed",),
        load=_loader(
            "stanford_online_products",
            lambda o: dict(
                data_dir=o.data_dir,
                resize_size=o.resize_size,
                clients_csv=o.clients_csv,
            ),
        ),
        options=frozenset({"data_dir", "resize_size", "clients_csv"}),
    ),
    # Classification among 21 thousand classes (FedSS, A.4, Table 3).
    "imagenet21k": Family(
        title="ImageNet-21k",
        settings={
            "classification": Settings(
                rounds=25_000,
                # The paper does not say K for this data set; this is Landmarks'.
                clients_per_round=64,
                client_learning_rate=0.001,
                num_negatives=(50, 100, 200, 400, 800),
                rounds_per_evaluation=500,
            )
        },
        partitions=("mixed",),
        load=_loader(
            "imagenet21k",
            lambda o: dict(
                data_dir=o.data_dir,
                resize_size=o.resize_size,
                num_clients=o.num_clients,
            ),
        ),
        options=frozenset({"data_dir", "resize_size", "num_clients"}),
    ),
    "images": _own_images("own images", "images", ["folders"]),
    "tfds": _own_images(
        "TFDS", "tfds", ["tfds_name", "image_key", "label_key", "client_key"]
    ),
}


def load_clients(
    name: str, options: DataOptions
) -> tuple[Callable[..., Mapping[str, Any]], Fingerprint]:
    """Loads a data set where clients train on it, such as on a machine of a cluster.

    Args:
        name: The data set's, of `FAMILIES`.
        options: With absolute paths.

    Returns:
        What makes a client's argument, `Task.client`, and the fingerprint of the data.

    Raises:
        InvalidInputError: If the data are not there, or damaged.
    """
    task = KINDS[options.kind](FAMILIES[name].load(options), _no_model)
    return task.client, task.fingerprint()


def _no_model() -> tf.keras.Model:
    raise NotImplementedError("Here are clients' data alone.")
