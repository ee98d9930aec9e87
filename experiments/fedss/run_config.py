"""The flags of a federated run, and their defaults by data set."""

import dataclasses
from typing import Any, TypeVar

from experiments.common import (
    config,
    dataset_words,
    launch,
    option_words,
    runtime_config,
)
from experiments.fedss import optimizers, privacy_config
from tff_fedss import models, tasks
from tff_fedss.class_sets import LOGIT_CORRECTIONS
from tff_fedss.errors import InvalidInputError

# With `Settings.follows_data` these flags depend on the data, and are unset until the
# data are loaded.
_FOLLOW_DATA = ("num_negatives", "clients_per_round", "image_size")
# Flags that are unset in flags.txt: the same data give the same values.
LATE = ("logit_scale", "gradient_clip_norm", "initial_norm")


def _by_dataset(name: str) -> str:
    """Returns a flag's default for each data set, for --help."""
    values = {}
    for key, spec in tasks.DATASETS.items():
        own = next(iter(spec.settings.values()))
        limit = "at most " if own.follows_data and name in _FOLLOW_DATA else ""
        values[key] = {name: f"{limit}{getattr(own, name)}"}
    return launch.by_dataset(values, name)


def _all_partitions() -> dict[str, option_words.Word]:
    """Returns all data sets' words of --partition; of equal names, one with options."""
    words: dict[str, option_words.Word] = {}
    for spec in tasks.DATASETS.values():
        for name, word in dataset_words.partitions(spec).items():
            words[name] = word if word.options else words.get(name, word)
    return words


@dataclasses.dataclass(frozen=True)
class RunConfig(privacy_config.PrivacyConfig, runtime_config.RuntimeConfig):
    """The flags of a federated run of any method."""

    dataset: str = config.flag(
        "glyphs",
        "The data, which decide the defaults of the flags below: `glyphs` are "
        "generated, without a download; `images` are your own, see "
        "docs/own_images.md; `tfds` is any image data set of TFDS; data/README.md "
        "describes how to get the others. A data set's own options follow its name.",
        group="The run",
        words=dataset_words.FEDERATED,
    )
    data_dir: str | None = config.flag(
        None,
        "The folder or archive of the data set, see data/README.md. Without it, "
        "TFDS downloads Omniglot. " + dataset_words.DATA_DIR,
    )
    task: str | None = config.flag(
        None,
        "The task on held-out images. Default: `retrieval` (MAP@10, of classes that "
        "no client has) for sop, `classification` (top-1) for the others; omniglot, "
        "images and tfds support both.",
        group="Data",
        choices=tasks.KINDS,
    )
    partition: str | None = config.flag(
        None,
        "How images are split over clients. omniglot: `mixed` (20 classes with "
        "about 5 drawings of each; the default), `drawer` (natural: one person's "
        "hand in one alphabet) or `chunks` (100 drawings of whole classes except at "
        "the cuts, as in SOP). tiny_imagenet: `mixed` (the default) or `dirichlet`. "
        "images and tfds: `iid` (the default), `natural`, `dirichlet`, `classes`, "
        "`chunks`, `quantity`. The others have one partition.",
        words=_all_partitions(),
    )
    validation_share: float | None = config.flag(
        None,
        "Hold out this share of the clients as validation clients, neither for "
        "training nor for the test: for choices such as those of `./run.sh tune`. "
        "Default: 0.",
        low=0.0,
        high=0.999999,
    )
    on_validation: bool | None = config.flag(
        None,
        "Measure on the images of the validation clients, not on the test. For "
        "retrieval of unseen classes this is a substitute: most of their classes "
        "are trained.",
    )
    image_size: int | None = config.flag(
        None,
        "Height and width of the model's images, in pixels."
        + _by_dataset("image_size"),
        low=8,
    )
    num_negatives: int | None = config.flag(
        None,
        "m, the negative classes that a client draws per round; a client with fewer "
        "other classes takes them all. Only fedss, neg_only and fedprox draw any."
        + _by_dataset("num_negatives"),
        group="Method",
        low=1,
    )
    logit_correction: str = config.flag(
        "inclusion",
        "How the logits of sampled negatives are corrected: `inclusion` by the inverse "
        "of their inclusion probability, `none` not at all.",
        choices=LOGIT_CORRECTIONS,
    )
    rounds: int | None = config.flag(
        None, "How many rounds." + _by_dataset("rounds"), group="Optimization", low=1
    )
    clients_per_round: int | None = config.flag(
        None, "K, the clients of a round." + _by_dataset("clients_per_round"), low=1
    )
    batch_size: int | None = config.flag(
        None, "The mini-batch of a client." + _by_dataset("batch_size"), low=1
    )
    client_learning_rate: float | None = config.flag(
        None,
        "eta, of SGD on the clients (and of centralized SGD)."
        + _by_dataset("client_learning_rate")
        + " For neg_only on tiny_imagenet, images and tfds 0.01, for retrieval on "
        "omniglot 0.03.",
        low=0.0,
    )
    gradient_clip_norm: float | None = config.flag(
        None,
        "The largest norm of a client's gradient, phi's and its rows' as one "
        "vector: longer ones are scaled to it, so that first steps from scratch "
        "cannot collapse the features. 0: not clipped, as in the paper."
        + _by_dataset("gradient_clip_norm"),
        low=0.0,
    )
    server_optimizer: str = config.flag(
        "sgdm",
        "The server's optimizer, applied to the mean update.",
        words=optimizers.SERVER_WORDS,
    )
    schedule: str | None = config.flag(
        None,
        "The schedule of the learning rate over the rounds. Default: constant.",
        words=optimizers.SCHEDULE_WORDS,
        off="constant",
    )
    model: str | None = config.flag(
        None,
        "phi, the feature extractor. MobileNetV3 needs --image_size of at least 32; "
        "`paper` has the paper's shares of parameters, ImageNet weights fit `large`."
        + _by_dataset("model"),
        group="Model",
        choices=models.FEATURE_EXTRACTORS,
    )
    pretrained: str | None = config.flag(
        None,
        "Start phi from `imagenet`, Keras's weights of mobilenet_v3_small or "
        "_large, downloaded once; or from this file: Keras .h5, .keras or "
        "SavedModel, by the names of the layers (such as from `./run.sh export`), "
        "or the METHOD.npz or moco.npz of another run. Default, for images and "
        "tfds: imagenet, if the file exists and --warm_start_epochs is not given.",
    )
    embedding_dim: int = config.flag(
        64, "d, the length of an image's representation.", low=1
    )
    logit_scale: float | None = config.flag(
        None,
        "tau, the scale of the cosine logits. 20 is the paper's, for thousands of "
        "classes and a pretrained phi; few classes need less. Default: 20; for "
        "tiny_imagenet, images and tfds AdaCos's, sqrt(2) log(n - 1), at least 3.",
        low=1e-6,
    )
    initial_norm: float | None = config.flag(
        None,
        "The norm of the rows of the initial W: a step turns a row by about the "
        "learning rate over its square. The paper does not state it. With clipped "
        "gradients, short rows learn before phi changes much, which keeps a warm "
        "start." + _by_dataset("initial_norm"),
        low=1e-6,
    )
    warm_start_epochs: int | None = config.flag(
        None,
        "The number of epochs of central training of phi before the rounds, on "
        "public classes, which no client holds (the paper starts from ImageNet-1k). "
        "0: from scratch." + _by_dataset("warm_start_epochs"),
        low=0,
    )
    warm_start_cache: str | None = config.flag(
        None,
        "A folder that caches warm starts, for other runs with the same warm start.",
        decides=False,
    )
    rounds_per_evaluation: int | None = config.flag(
        None,
        "Rounds between two evaluations on the held-out images."
        + _by_dataset("rounds_per_evaluation"),
        group="Evaluation and checkpoints",
        low=1,
    )
    train_top1: bool = config.flag(
        False,
        "Also measure the accuracy on the training images after the last round "
        "(Table 4).",
    )
    keep: str | None = config.flag(
        None,
        "The weights that the run keeps: those of the `last` round or of the `best` "
        "one on validation clients (--validation_share, a tenth), never on the "
        "test. Default: last; for images and tfds best.",
        choices=("last", "best"),
    )
    patience: int | None = config.flag(
        None,
        "End a method after this number of rounds without a better evaluation on the "
        "validation clients; for --keep=best. Its last round may then lack "
        "--train_top1.",
        low=1,
    )
    rounds_per_checkpoint: int = launch.checkpoints(25)
    results_dir: str = launch.results_dir()
    seed: int = launch.seed(2**31 - 1)

    @property
    def spec(self) -> tasks.DatasetSpec:
        """The row of the table of data sets."""
        return tasks.DATASETS[self.chosen("dataset").name]

    @property
    def method_words(self) -> tuple[str, ...]:
        """The methods, with their own settings."""
        return ()

    @property
    def settings(self) -> tasks.Settings:
        """The hyper-parameters of the data set for the task, if that is known."""
        return self.spec.settings[self.task]

    def learning_rate(self, method: str) -> float:
        """Returns eta: the flag's, or the default of the data set for the method."""
        if self.client_learning_rate is not None:
            return self.client_learning_rate
        settings = self.settings
        return settings.learning_rates.get(method, settings.client_learning_rate)

    @property
    def server(self) -> Any:
        """The optimizer of the server, one of `optimizers.SERVER`."""
        name, options = self.chosen("server_optimizer")
        return optimizers.SERVER[name](**options)

    def learning_rate_fn(self, whose: str, rate: float) -> Any:
        """Returns a rate of "clients" or "server" by round, from 0; None: constant."""
        name, options = self.chosen("schedule")
        if name == "constant":
            return None
        schedule = optimizers.SCHEDULES[name](**options)
        if schedule.of not in (whose, "both"):
            return None
        return lambda round_num: rate * schedule.share(round_num, self.rounds)

    def dataset_keywords(self) -> dict[str, Any]:
        """Returns the keywords to load the data set, see `tasks.DatasetSpec.open`.

        Raises:
            InvalidInputError: If the data set has no such partition, or no --data_dir.
        """
        spec, dataset = self.spec, self.chosen("dataset")
        keywords = {
            "image_size": self.image_size,
            "validation_share": self.validation_share or 0.0,
            "on_validation": bool(self.on_validation),
            **dataset_words.keywords(dataset, self.data_dir, "dataset"),
        }
        if self.partition is not None:
            name, options = self.chosen_partition()
            kind = spec.partitions[name]
            keywords["partition"] = name if kind is None else kind(**options)
        return keywords

    def chosen_partition(self) -> option_words.Chosen:
        """Returns the data set's word of --partition.

        Raises:
            InvalidInputError: If it has no such word.
        """
        name = self.chosen("dataset").name
        words = dataset_words.partitions(self.spec)
        if not words:
            raise InvalidInputError(
                f"--partition={self.partition}: --dataset={name} has one way to split "
                "its images over clients."
            )
        text = next(iter(words)) if self.partition is None else self.partition
        return option_words.parse("partition", text, words, f" with --dataset={name}")


_ConfigT = TypeVar("_ConfigT", bound=RunConfig)


def with_defaults(config: _ConfigT) -> _ConfigT:
    """Sets unset flags by the data set and this machine.

    Raises:
        InvalidInputError: If a flag does not suit the data set, another flag or this
            machine.
    """
    spec = config.spec
    task = dataset_words.chosen_task(config)
    if config.patience is not None and config.keep == "last":
        raise InvalidInputError(
            f"--patience={config.patience} needs --keep=best: it counts the rounds "
            "since the best one."
        )
    if config.validation_share == 0 and (config.patience or config.keep == "best"):
        raise InvalidInputError(
            "--validation_share=0 leaves no validation clients, which --keep=best and "
            "--patience need."
        )
    config = dataclasses.replace(config, task=task)
    if spec.partitions or config.partition is not None:
        partition = str(config.chosen_partition())
        config = dataclasses.replace(config, partition=partition)
    settings = config.settings
    known = {}
    if settings.follows_data:
        known = dict.fromkeys(_FOLLOW_DATA)
    known["image_size"] = settings.image_size_for(config.model or settings.model)
    is_unset = config.pretrained is None and config.warm_start_epochs is None
    if settings.follows_data and is_unset:
        weights = models.imagenet_file(config.model or settings.model)
        if weights is not None and weights.is_file():
            config = dataclasses.replace(config, pretrained="imagenet")
    # `run_parts.with_data_defaults` sets the flags that are unset here.
    known |= dict.fromkeys(LATE)
    if settings.learning_rates:
        known["client_learning_rate"] = None  # See RunConfig.learning_rate.
    config = config.filled({**vars(settings), **known})
    config = runtime_config.with_defaults(config)
    if config.requests == "union" and config.runtime == "cluster":
        raise InvalidInputError(
            "--requests=union cannot be trained on a cluster: its clients need each "
            "other's requests, which parts of a cohort do not have. "
            "--requests=sampled gives the same weights."
        )
    return config
