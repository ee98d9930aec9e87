"""Learns features without labels by MoCo v2, with a focal loss if asked for.

    ./run.sh moco --dataset=cifar10 --data_dir=DIR --results_dir=results/moco/a_gamma0
    ./run.sh moco --dataset=cifar10 --data_dir=DIR --results_dir=results/moco/d_gamma1 \
        --pretrained=results/moco/a_gamma0 --loss=filtered --gamma=1

Kaminsky and Rotstein, "Focal Loss for Contrastive Learning" (2021). The first command
is its experiment A (from scratch), the second its experiment D (post-training, without
the keys of the queue that k-means puts into the query's cluster). --loss=plain and
--loss=clustered post-train as experiments B and C do. --epochs=0 trains nothing: it
measures the --pretrained encoder, or a random one. Published runs are cells
(experiments/moco/cells.py): `./run.sh table moco/4` does those of Table 4.

With --cell=1/mini/a_gamma0, a run should take about 9 minutes on one core (from the
time of 3 of its 30 epochs); docs/results/moco has what came out.

The results folder has metrics.csv (a row per epoch, linear accuracy where it was
measured), losses.npz (the loss of each example in the three forms, for figures 3 to 5),
moco.npz (both encoders and the queue, for --pretrained), curves.png and .pdf, flags.txt
and run.json. A run that was stopped or killed goes on when it is given the same flags
again, and ends with the same bytes.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import flags

from experiments.common import launch as single_run
from experiments.common import memory_needs, plots, program
from tff_fedss import algorithms, files, losses, memory, models, tasks, training
from tff_fedss.datasets import labelled_images
from tff_fedss.datasets.two_views import TwoViews
from tff_fedss.errors import InvalidInputError

NAME = "moco"
WEIGHTS = f"{NAME}.npz"
LOSSES = "losses.npz"


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a flag is by default; the attributes have the flags' names.

    The defaults are those of MoCo v2 and the paper. It does not state its queue; 4,096
    is less than half of Imagenette, so that the queue never holds a key of the image
    itself from the epoch before.
    """

    image_size: int
    backbone: str = "resnet50"
    blur: bool = True
    queue_size: int = 4096
    key_momentum: float = 0.999
    temperature: float = 0.2
    epochs: int = 1250
    batch_size: int = 256
    learning_rate: float = 0.03
    weight_decay: float = 1e-4


# Small images: a short training of a small network, where the keys must follow faster.
_SMALL = _Settings(
    32, "small_cnn", False, 4096, 0.99, 0.1, epochs=30, learning_rate=0.06
)
_SETTINGS = {
    "imagenette": _Settings(224),
    "cifar10": _SMALL,
    "cifar100": _SMALL,
    "svhn_cropped": _SMALL,
    "tiny_imagenet": dataclasses.replace(_SMALL, image_size=64),
}


def _by_dataset(name: str) -> str:
    small, large = getattr(_SMALL, name), getattr(_SETTINGS["imagenette"], name)
    return f" Default: {large} for imagenette, {small} for small images."


_DATASET = flags.DEFINE_enum(
    "dataset", "cifar10", list(_SETTINGS), "The images, and the defaults below."
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "A folder or an archive with train/CLASS/IMAGE and test/CLASS/IMAGE (or val). "
    "Without it, TFDS downloads the data set (not tiny_imagenet).",
)
_PRETRAINED = flags.DEFINE_string(
    "pretrained",
    None,
    "Start from what a finished run has learned, its queue included: its results "
    f"folder, or the {WEIGHTS} in it. Default: from random weights.",
)
_NUM_TRAIN = flags.DEFINE_integer(
    "num_train",
    None,
    "Take so many training images only, of each class as many. Default: all.",
    lower_bound=1,
)
_LOSS = flags.DEFINE_enum(
    "loss",
    "plain",
    list(losses.INFO_NCE_FORMS),
    "What to do with the keys in the query's cluster: `plain` knows no clusters (Eq. "
    "1), `clustered` pulls them, too (Eq. 5), `filtered` leaves them out (Eq. 6).",
)
_GAMMA = flags.DEFINE_float(
    "gamma",
    0.0,
    "Of the focal loss (Eq. 4); 0 is cross-entropy.",
    lower_bound=0.0,
)
_NUM_CLUSTERS = flags.DEFINE_integer(
    "num_clusters", 10, "Of the queue, found before each epoch.", lower_bound=1
)
_TEMPERATURE = flags.DEFINE_float(
    "temperature",
    None,
    "Similarities are divided by it." + _by_dataset("temperature"),
    lower_bound=1e-3,
)
_QUEUE_SIZE = flags.DEFINE_integer(
    "queue_size",
    None,
    "K, the keys that are kept." + _by_dataset("queue_size"),
    lower_bound=1,
)
_KEY_MOMENTUM = flags.DEFINE_float(
    "key_momentum",
    None,
    "m, with which the key encoder follows." + _by_dataset("key_momentum"),
    lower_bound=0.0,
    upper_bound=1.0,
)
_BACKBONE = flags.DEFINE_enum(
    "backbone",
    None,
    list(models.BACKBONES),
    "What gives the features. `resnet50_group` has GroupNorm for BatchNorm, which "
    "MoCo shuffles between GPUs and we cannot." + _by_dataset("backbone"),
)
_IMAGE_SIZE = flags.DEFINE_integer(
    "image_size",
    None,
    "Height and width of a view, in pixels. Default: 224 for imagenette (of images of "
    "256), 64 for tiny_imagenet, 32 for the others.",
    lower_bound=8,
)
_BLUR = flags.DEFINE_bool(
    "blur", None, "Whether to blur half of the views." + _by_dataset("blur")
)
_EPOCHS = flags.DEFINE_integer(
    "epochs",
    None,
    "How long to train; the learning rate falls to 0 by then." + _by_dataset("epochs"),
    lower_bound=0,
)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", None, "The mini-batch." + _by_dataset("batch_size"), lower_bound=1
)
_LEARNING_RATE = flags.DEFINE_float(
    "learning_rate",
    None,
    "At the start, of SGD with momentum 0.9; it falls by a half cosine."
    + _by_dataset("learning_rate"),
    lower_bound=0.0,
)
_WEIGHT_DECAY = flags.DEFINE_float(
    "weight_decay", None, "Of all weights. Default: 0.0001.", lower_bound=0.0
)
_EPOCHS_PER_EVALUATION = flags.DEFINE_integer(
    "epochs_per_evaluation",
    None,
    "How often to measure linear accuracy. Default: at the start and the end only.",
    lower_bound=1,
)
_EPOCHS_PER_CHECKPOINT = flags.DEFINE_integer(
    "epochs_per_checkpoint",
    1,
    "How often to save what a killed run goes on from.",
    lower_bound=1,
)

flags.adopt_module_key_flags(single_run)  # --help shows them.

GROUPS = {
    "The run": ("dataset", "data_dir", "results_dir", "pretrained", "seed"),
    "Loss": ("loss", "gamma", "num_clusters", "temperature"),
    "Training": (
        "epochs",
        "num_train",
        "batch_size",
        "learning_rate",
        "weight_decay",
        "queue_size",
        "key_momentum",
    ),
    "Views and model": ("image_size", "blur", "backbone"),
    "Evaluation and checkpoints": ("epochs_per_evaluation", "epochs_per_checkpoint"),
}
_BY_DATASET = (
    _TEMPERATURE,
    _QUEUE_SIZE,
    _KEY_MOMENTUM,
    _BACKBONE,
    _IMAGE_SIZE,
    _BLUR,
    _EPOCHS,
    _BATCH_SIZE,
    _LEARNING_RATE,
    _WEIGHT_DECAY,
)

_COLUMNS = (
    "steps",
    "loss",
    "accuracy",
    tasks.Contrastive.metric,
    "cluster_share",
    "num_examples",
)
_MOMENTUM = 0.9
_KEY_DIM = 128


def main() -> None:
    """Trains and prints the result."""
    _take_defaults()
    folder = single_run.open_folder(GROUPS, _COLUMNS)
    if folder is None:
        return
    start = _load_pretrained()
    task = _load_task()
    print(task.summary, flush=True)
    algorithm = _build_algorithm(task)
    if start is not None:
        try:
            algorithm.start_from(start)
        except ValueError as error:
            raise InvalidInputError(
                f"--pretrained={_PRETRAINED.value} {error}: give the flags of the "
                "model that it was trained with."
            ) from error
    clusters = _LOSS.value != "plain"
    run = training.MocoRun(NAME, task, algorithm, clusters)
    single_run.train(
        run,
        folder,
        rounds=_EPOCHS.value,
        rounds_per_evaluation=_EPOCHS_PER_EVALUATION.value or max(_EPOCHS.value, 1),
        rounds_per_checkpoint=_EPOCHS_PER_CHECKPOINT.value,
        plot=lambda: _plot(folder),
        unit="epoch",
        inputs=_pretrained_fingerprint(),
    )
    folder.write_arrays(WEIGHTS, algorithm.arrays())
    folder.write_arrays(LOSSES, run.measure_losses())
    accuracy = folder.rows[-1][task.metric]
    text = f"{run.name}: {task.metric_title} {task.format_metric(accuracy)}"
    single_run.finish(folder, task.metric, text, {task.metric: accuracy})


def _take_defaults() -> None:
    """Gives the flags that were left open their values, and checks them.

    Raises:
        InvalidInputError: If they do not go together.
    """
    single_run.set_defaults(_BY_DATASET, _SETTINGS[_DATASET.value])
    for flag in (_BATCH_SIZE, _NUM_CLUSTERS):
        if flag.value > _QUEUE_SIZE.value:
            raise InvalidInputError(
                f"--{flag.name}={flag.value} is more than the --queue_size="
                f"{_QUEUE_SIZE.value} keys of the queue."
            )
    if _BACKBONE.value.startswith("resnet") and _IMAGE_SIZE.value < 32:
        raise InvalidInputError(
            f"--backbone={_BACKBONE.value} needs --image_size of at least 32, found "
            f"{_IMAGE_SIZE.value}."
        )


def _load_pretrained() -> dict[str, np.ndarray] | None:
    """Reads what --pretrained names.

    Raises:
        InvalidInputError: If it is not there or damaged.
    """
    if not _PRETRAINED.value:
        return None
    path = _pretrained_path()
    if not path.is_file():
        raise InvalidInputError(
            f"--pretrained={_PRETRAINED.value}: there is no {path}; expected the "
            f"results folder of a finished run, or the {WEIGHTS} in it."
        )
    try:
        return training.read_arrays(path)
    except InvalidInputError as error:
        raise InvalidInputError(f"--pretrained={_PRETRAINED.value}: {error}") from error


def _pretrained_path() -> pathlib.Path:
    path = pathlib.Path(_PRETRAINED.value)
    return path / WEIGHTS if path.is_dir() else path


def _pretrained_fingerprint() -> dict[str, dict[str, str]]:
    if not _PRETRAINED.value:
        return {}
    return {"pretrained": {"--pretrained": files.sha256(_pretrained_path())}}


def _load_task() -> tasks.Contrastive:
    """Loads the data.

    Raises:
        InvalidInputError: If they are not there, damaged, or do not go with the flags.
    """
    size = _IMAGE_SIZE.value
    backbone_fn = functools.partial(
        models.BACKBONES[_BACKBONE.value], (size, size, 3), seed=single_run.SEED.value
    )
    _check_memory(backbone_fn)
    # Photographs are loaded larger, for crops, by the ratio of 256 to 224.
    is_photograph = labelled_images.SOURCES[_DATASET.value].image_size is None
    data = labelled_images.load(
        _DATASET.value,
        _DATA_DIR.value,
        image_size=round(size * 256 / 224) if is_photograph else size,
    )
    if _NUM_TRAIN.value is not None:
        data = data.subset(_NUM_TRAIN.value)
    if data.num_classes < 2:
        raise InvalidInputError(
            f"--data_dir={_DATA_DIR.value} holds images of one class: linear accuracy "
            "needs at least two."
        )
    if _BATCH_SIZE.value > len(data.train_images):
        raise InvalidInputError(
            f"--batch_size={_BATCH_SIZE.value} is more than the "
            f"{len(data.train_images)} training images."
        )
    return tasks.Contrastive(
        data,
        backbone_fn,
        TwoViews(size, blur=_BLUR.value),
        batch_size=_BATCH_SIZE.value,
        seed=single_run.SEED.value,
    )


def _check_memory(backbone_fn: Callable[[], tf.keras.Model]) -> None:
    """Refuses what cannot fit into memory, before the data are read."""
    batch_size, queue_size = _BATCH_SIZE.value, _QUEUE_SIZE.value
    images = memory_needs.images(batch_size, _IMAGE_SIZE.value, 3)
    memory.check(images)  # The backbone of yet larger ones has no numbers.
    memory.check(
        images | memory_needs.matrix("the queue", queue_size, _KEY_DIM),
        # Two encoders, of one the gradient and the momentum.
        device_needs=memory_needs.network(
            "the backbone", backbone_fn, batch_size, copies=4
        )
        | memory_needs.matrix(
            "similarities of queries and keys", batch_size, queue_size
        ),
    )


def _build_algorithm(task: tasks.Contrastive) -> algorithms.MoCo:
    learning_rate = tf.keras.optimizers.schedules.CosineDecay(
        _LEARNING_RATE.value, max(_EPOCHS.value, 1) * task.steps_per_epoch
    )
    return algorithms.MoCo(
        task.backbone_fn,
        tf.keras.optimizers.SGD(learning_rate, momentum=_MOMENTUM),
        queue_size=_QUEUE_SIZE.value,
        embedding_dim=_KEY_DIM,
        temperature=_TEMPERATURE.value,
        key_momentum=_KEY_MOMENTUM.value,
        weight_decay=_WEIGHT_DECAY.value,
        gamma=_GAMMA.value,
        form=_LOSS.value,
        num_clusters=_NUM_CLUSTERS.value,
        seed=single_run.SEED.value,
    )


def _plot(folder: training.ResultsFolder) -> None:
    """Draws the loss and the accuracies by epochs."""
    if len(folder.rows) < 2:
        return
    columns = {
        "loss": "training loss",
        "accuracy": "share of queries whose own key is the nearest",
        tasks.Contrastive.metric: "linear top-1",
    }
    series = [plots.Series("", plots.style(0), [folder.rows])]
    plots.write_curves(
        folder.path / "curves.png",
        [
            plots.panel(series, "round", column, "epochs", title)
            for column, title in columns.items()
        ],
    )


if __name__ == "__main__":
    program.run(main, groups=GROUPS, paper="moco")
