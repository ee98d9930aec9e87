"""The table of data sets of federated experiments: how to load each, its settings.

To add a data set, write a function that returns a `FederatedDataset`, and a line of
`DATASETS`. The function's keywords are the user's options, also on the command line:
`--dataset=NAME:KEYWORD=VALUE,...`. See `DatasetSpec`.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tff_fedss import models
from tff_fedss.datasets import (
    imagenet21k,
    images,
    landmarks,
    omniglot,
    splits,
    stanford_online_products,
    synthetic,
    tiny_imagenet,
)
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.tasks.federated import Classification, Retrieval

# Kinds of tasks on images, by their names on the command line.
KINDS = {"classification": Classification, "retrieval": Retrieval}
# Keywords of a load that the run decides; the others are its options.
_OF_THE_RUN = frozenset(
    {
        "data_dir",
        "image_size",
        "partition",
        "retrieval",
        "validation_share",
        "on_validation",
    }
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The default hyper-parameters of one experiment.

    The values for the paper's data sets are those of FedSS, sections 4.2, 4.3, A.2 and
    A.4. Values that are the same for all data (A.2: d = 64, server learning rate 1.0
    and momentum 0.9) are the flags' own defaults.

    Attributes:
        rounds: The paper's number of rounds.
        clients_per_round: K; with `follows_data`, an upper limit.
        client_learning_rate: eta.
        num_negatives: m = |N_k|, the largest of those that the paper compares; with
            `follows_data`, an upper limit.
        image_size: Height and width of the model's images, in pixels; with
            `follows_data`, an upper limit.
        model: phi, by its name on the command line.
        warm_start_epochs: Central epochs on public images before the rounds.
        starts_pretrained: Whether the paper starts phi from ImageNet-1k.
        logit_scale: tau; None: `models.adacos_scale` of n.
        gradient_clip_norm: Largest norm of clients' gradients; 0: they are not clipped.
        initial_norm: Norm of the rows of the initial W, see
            `models.initial_classifier`.
        follows_data: Whether the values are for any images, and reduced to what the
            data allow.
        learning_rates: eta by method, for methods that need another.
    """

    rounds: int
    clients_per_round: int
    client_learning_rate: float
    num_negatives: int
    image_size: int = 224
    model: str = "mobilenet_v3_paper"
    warm_start_epochs: int = 0
    rounds_per_evaluation: int = 100
    starts_pretrained: bool = False
    batch_size: int = 32
    logit_scale: float | None = models.LOGIT_SCALE
    gradient_clip_norm: float = 0.0
    initial_norm: float = models.INITIAL_NORM
    follows_data: bool = False
    learning_rates: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def image_size_for(self, model: str) -> int | None:
        """Returns the image size of a model; None: the images' own, up to the limit."""
        if self.follows_data and not model.startswith("mobilenet"):
            return None
        return self.image_size  # MobileNetV3 needs 32 pixels or more.


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
    """A data set of federated experiments.

    Attributes:
        settings: Its hyper-parameters for each of `KINDS` that it supports, the default
            first.
        load: Loads it. Of the keywords that a run decides it takes image_size and,
            where they apply, data_dir, partition, retrieval (for the test of unseen
            classes; needed if it supports both kinds), and validation_share with
            on_validation (if not, `splits.hold_out_clients` applies them). The
            annotation of partition is a union of `partitioners`, or a `Literal` of
            words. All other keywords are the data set's options, documented in the
            docstring.
        forwards_to: The function that gets load's **keywords, if it has them: its
            keywords are also options.
    """

    title: str
    settings: Mapping[str, Settings]
    load: Callable[..., FederatedDataset]
    forwards_to: Callable[..., FederatedDataset] | None = None

    @property
    def keywords(self) -> dict[str, inspect.Parameter]:
        """The keywords of `load`, by name."""
        found: dict[str, inspect.Parameter] = {}
        for function in filter(None, (self.forwards_to, self.load)):
            found |= {
                name: parameter
                for name, parameter in inspect.signature(function).parameters.items()
                if name in _OF_THE_RUN
                or parameter.kind is parameter.KEYWORD_ONLY
                or parameter.default is not parameter.empty
            }
        return found

    @property
    def options(self) -> list[str]:
        """The names of the user's options."""
        return [name for name in self.keywords if name not in _OF_THE_RUN]

    @property
    def partitions(self) -> dict[str, type | None]:
        """The ways to split it over clients, the default first; empty if only one.

        Maps names to a partitioner or, for a word without options, None.
        """
        if "partition" not in self.keywords:
            return {}
        annotation = self.keywords["partition"].annotation
        choices = typing.get_args(annotation)
        if isinstance(annotation, types.UnionType):
            return {choice.__name__.lower(): choice for choice in choices}
        return dict.fromkeys(choices)

    def open(
        self,
        kind: str,
        *,
        validation_share: float = 0.0,
        on_validation: bool = False,
        **keywords: Any,
    ) -> FederatedDataset:
        """Loads the data set for a task of `KINDS`, with arguments of `keywords`.

        `splits.hold_out_clients` describes validation_share and on_validation. Raises
        InvalidInputError if the data are missing or damaged.
        """
        if "retrieval" in self.keywords:
            keywords["retrieval"] = kind == "retrieval"
        validation = dict(
            validation_share=validation_share, on_validation=on_validation
        )
        if "validation_share" in self.keywords:
            return self.load(**keywords, **validation)
        return splits.hold_out_clients(self.load(**keywords), **validation)


# Settings for two cores.
_SMALL = Settings(
    rounds=100,
    clients_per_round=16,
    client_learning_rate=0.1,
    num_negatives=80,
    image_size=28,
    model="small_cnn",
    warm_start_epochs=4,
    rounds_per_evaluation=10,
)

# Images of any kind, from scratch or a warm start: docs/results/own_images.md.
_OWN_IMAGES = dataclasses.replace(
    _SMALL,
    client_learning_rate=0.3,
    # NegOnly's loss only pushes classes apart: at 0.3 all features become equal.
    learning_rates={"neg_only": 0.01},
    num_negatives=20,
    image_size=56,
    warm_start_epochs=0,
    batch_size=16,
    logit_scale=None,
    gradient_clip_norm=1.0,
    initial_norm=0.03,
    follows_data=True,
)

DATASETS = {
    # Images drawn on request: nothing to download, any n.
    "glyphs": DatasetSpec(
        "glyphs",
        {"classification": dataclasses.replace(_SMALL, num_negatives=40)},
        synthetic.glyphs,
    ),
    # The paper's two tasks: classification as in section 4.2, on drawings by people who
    # are not clients; retrieval as in section 4.3, of characters that no client has.
    "omniglot": DatasetSpec(
        "Omniglot",
        {
            "classification": _SMALL,
            # The best of the rates at which every method stays above its warm start:
            # docs/results/searches.
            "retrieval": dataclasses.replace(_SMALL, client_learning_rate=0.03),
        },
        omniglot.load,
    ),
    "tiny_imagenet": DatasetSpec(
        "Tiny-ImageNet",
        {
            "classification": dataclasses.replace(
                _OWN_IMAGES,
                rounds=200,
                num_negatives=_SMALL.num_negatives,
                follows_data=False,
            )
        },
        tiny_imagenet.load,
    ),
    # Landmark recognition with natural clients (FedSS, section 4.2, Table 1).
    "landmarks": DatasetSpec(
        "Landmarks-User-160k",
        {
            "classification": Settings(
                rounds=5000,
                clients_per_round=64,
                client_learning_rate=0.01,
                num_negatives=80,
                starts_pretrained=True,
            )
        },
        landmarks.load,
    ),
    # Retrieval of unseen products (FedSS, section 4.3, Tables 2 and 4).
    "sop": DatasetSpec(
        "Stanford Online Products",
        {
            "retrieval": Settings(
                rounds=2000,
                clients_per_round=32,
                client_learning_rate=0.01,
                num_negatives=80,
                starts_pretrained=True,
            )
        },
        stanford_online_products.load,
    ),
    # Classification among 21 thousand classes (FedSS, A.4, Table 3).
    "imagenet21k": DatasetSpec(
        "ImageNet-21k",
        {
            "classification": Settings(
                rounds=25_000,
                # The paper does not give K for this data set; this is Landmarks'.
                clients_per_round=64,
                client_learning_rate=0.001,
                num_negatives=800,
                rounds_per_evaluation=500,
            )
        },
        imagenet21k.load,
    ),
    "images": DatasetSpec(
        "own images",
        {"classification": _OWN_IMAGES, "retrieval": _OWN_IMAGES},
        images.load_folder,
        forwards_to=images.federated,
    ),
    "tfds": DatasetSpec(
        "TFDS",
        {"classification": _OWN_IMAGES, "retrieval": _OWN_IMAGES},
        images.load_tfds,
        forwards_to=images.federated,
    ),
}


def load_clients(
    name: str, kind: str, keywords: Mapping[str, Any]
) -> tuple[Callable[..., Mapping[str, Any]], Fingerprint]:
    """Loads a data set on a machine where clients train, such as one of a cluster.

    Args:
        name: The data set's, of `DATASETS`.
        kind: One of `KINDS`.
        keywords: Keywords of `DatasetSpec.open`, with absolute paths.

    Returns:
        The function that makes a client's argument, `Task.client`, and the fingerprint
        of the data.

    Raises:
        InvalidInputError: If the data are missing or damaged.
    """
    task = KINDS[kind](DATASETS[name].open(kind, **keywords), _no_model)
    return task.client, task.fingerprint()


def _no_model() -> tf.keras.Model:
    raise NotImplementedError("Here are clients' data alone.")
