"""Learns features without labels by MoCo v2, optionally with a focal loss.

    ./run.sh moco --dataset=cifar10 --data_dir=DIR --results_dir=results/moco/a_gamma0
    ./run.sh moco --dataset=cifar10 --data_dir=DIR --results_dir=results/moco/d_gamma1 \
        --pretrained=results/moco/a_gamma0 --loss=filtered --gamma=1

Kaminsky and Rotstein, "Focal Loss for Contrastive Learning" (2021). The first command
is its experiment A (from scratch), the second its experiment D (post-training, without
the keys of the queue that k-means assigns to the query's cluster). --loss=plain and
--loss=clustered are experiments B and C; --clusters=labels uses an oracle instead of
k-means. --epochs=0 trains nothing: it measures the --pretrained encoder, or a random
one. Published runs are cells (experiments/moco/cells.py): `./run.sh table moco/4` runs
those of Table 4.

The results folder has metrics.csv (a row per epoch, linear accuracy where it was
measured), losses.npz (the loss of each example in the three forms, for figures 3 to 5),
moco.npz (both encoders and the queue, for --pretrained), curves.png and .pdf, flags.txt
and run.json. The same flags resume a run that was stopped or killed, which ends with
the same bytes.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from experiments.common import (
    config,
    dataset_words,
    launch,
    memory_needs,
    program,
    run_encoder,
    runtime_config,
)
from tff_fedss import algorithms, files, losses, memory, models, tasks, training
from tff_fedss.datasets.central import labelled_images
from tff_fedss.datasets.central.augmentation import TwoViews
from tff_fedss.errors import InvalidInputError

NAME = "moco"
WEIGHTS = f"{NAME}.npz"
LOSSES = "losses.npz"


# The defaults are MoCo v2's and the paper's, except the queue: "its suggested
# hyper-parameters" are 65,536 keys, as in the paper's cells. 4,096 is less than half of
# Imagenette: a tenth of the queries meet the key of their own image from the epoch
# before. BatchNorm is over parts of the batch, as in MoCo: over all of it, its means
# would tell which key belongs to a query. For small images: a short training of a
# small network, where the keys must be updated faster.
_SETTINGS = {
    "imagenette": dict(
        backbone="resnet50_split",
        blur=True,
        key_momentum=0.999,
        temperature=0.2,
        epochs=1250,
        learning_rate=0.03,
    ),
    "small images": dict(
        backbone="small_cnn",
        blur=False,
        key_momentum=0.99,
        temperature=0.1,
        epochs=30,
        learning_rate=0.06,
    ),
}
_IMAGE_SIZES = {
    "imagenette": 224,
    "cifar10": 32,
    "cifar100": 32,
    "svhn_cropped": 32,
    "tiny_imagenet": 64,
    **dict.fromkeys(dataset_words.OWN_IMAGES, 56),
}
_by_dataset = functools.partial(launch.by_dataset, _SETTINGS)


@dataclasses.dataclass(frozen=True)
class Config(runtime_config.DeviceConfig):
    """The flags of the program."""

    dataset: str = config.flag(
        "cifar10",
        "The images, and the defaults below. `images` are your own, `tfds` is any "
        "image data set of TFDS.",
        group="The run",
        words=dataset_words.central(_IMAGE_SIZES),
    )
    data_dir: str | None = config.flag(
        None,
        "A folder or an archive with train/CLASS/IMAGE and test/CLASS/IMAGE (or val). "
        "Without it, TFDS downloads the data set (not tiny_imagenet). "
        + dataset_words.DATA_DIR,
    )
    results_dir: str = launch.results_dir()
    pretrained: str | None = config.flag(
        None,
        "Start from a finished run, with its queue: its results folder, or the "
        f"{WEIGHTS} in it. Default: random weights.",
    )
    seed: int = launch.seed()
    loss: str = config.flag(
        "plain",
        "The use of keys in the query's cluster: `plain` has no clusters (Eq. 1), "
        "`clustered` also attracts them (Eq. 5), `filtered` leaves them out (Eq. 6).",
        group="Loss",
        choices=losses.INFO_NCE_FORMS,
    )
    gamma: float = config.flag(
        0.0, "gamma of the focal loss (Eq. 4); 0 is cross-entropy.", low=0.0
    )
    clusters: str | None = config.flag(
        None,
        "The query's cluster: by the `k_means` of the queue, as in the paper, or the "
        "images' `labels`. Default: k_means.",
        choices=algorithms.MOCO_CLUSTERS,
    )
    num_clusters: int = config.flag(
        10, "Number of clusters of the queue, found before each epoch.", low=1
    )
    temperature: float | None = config.flag(
        None,
        "T, by which similarities are divided." + _by_dataset("temperature"),
        low=1e-3,
    )
    epochs: int | None = config.flag(
        None, "The number of epochs." + _by_dataset("epochs"), group="Training", low=0
    )
    num_train: int | None = config.flag(
        None,
        "Use only this number of training images, equally many of each class. "
        "Default: all.",
        low=1,
    )
    batch_size: int = config.flag(256, "The mini-batch.", low=1)
    learning_rate: float | None = config.flag(
        None,
        "Learning rate of SGD in the first epoch; it falls by a half cosine."
        + _by_dataset("learning_rate"),
        low=0.0,
    )
    weight_decay: float = config.flag(1e-4, "Weight decay of all weights.", low=0.0)
    queue_size: int = config.flag(4096, "K, the keys that are kept.", low=1)
    key_momentum: float | None = config.flag(
        None,
        "m, the momentum of the key encoder." + _by_dataset("key_momentum"),
        low=0.0,
        high=1.0,
    )
    image_size: int | None = config.flag(
        None,
        "Height and width of a view, in pixels. Default: 224 for imagenette (cut from "
        "256), 64 for tiny_imagenet, 56 for images and tfds (cut from 64), 32 for the "
        "others.",
        group="Views and model",
        low=8,
    )
    blur: bool | None = config.flag(
        None, "Whether to blur half of the views." + _by_dataset("blur")
    )
    backbone: str | None = config.flag(
        None,
        "The network of the features. `resnet50_split` has the BatchNorm of 8 parts of "
        "a mini-batch, as MoCo on 8 GPUs; `resnet50` that of all of it; "
        "`resnet50_group` has GroupNorm." + _by_dataset("backbone"),
        choices=models.BACKBONES,
    )
    epochs_per_evaluation: int | None = config.flag(
        None,
        "Epochs between two measurements of linear accuracy. Default: only at the "
        "start and the end.",
        group="Evaluation and checkpoints",
        low=1,
    )
    epochs_per_checkpoint: int = launch.checkpoints(1)


_COLUMNS = (
    "steps",
    "loss",
    "accuracy",
    tasks.Contrastive.metric,
    "cluster_share",
    "cluster_purity",
    "num_examples",
)
_MOMENTUM = 0.9
_KEY_DIM = 128
_SPLIT = "resnet50_split"


def main(config: Config) -> None:
    """Trains and prints the result."""
    config = _with_defaults(config)
    launch.run(
        config,
        _COLUMNS,
        _build_run,
        _finish,
        results=(tasks.Contrastive.metric,),
        unit="epoch",
        curves=("loss", "accuracy"),
        inputs=_pretrained_fingerprint,
    )


def _finish(
    config: Config, run: training.MocoRun, folder: training.ResultsFolder
) -> str:
    """Writes the weights and the losses; returns the result in words."""
    folder.write_arrays(WEIGHTS, run.arrays())
    folder.write_arrays(LOSSES, run.measure_losses())
    image_input = models.ImageInput(
        config.image_size,
        resize_size=_loaded_size(config),
        resizing="bilinear",
        cut_square=True,
    )
    run_encoder.write(folder, run_encoder.Encoder(config.backbone, None, image_input))
    task = run.task
    return f"{task.metric_title} {task.format_metric(folder.rows[-1][task.metric])}"


def _with_defaults(config: Config) -> Config:
    """Sets unset flags, and checks the flags."""
    dataset = config.chosen("dataset").name
    settings = _SETTINGS.get(dataset, _SETTINGS["small images"])
    config = config.filled(dict(settings, image_size=_IMAGE_SIZES[dataset]))
    for name in ("batch_size", "num_clusters"):
        if getattr(config, name) > config.queue_size:
            raise InvalidInputError(
                f"--{name}={getattr(config, name)} is more than the --queue_size="
                f"{config.queue_size} keys of the queue."
            )
    if config.backbone == _SPLIT and config.batch_size % models.BATCH_NORM_SPLITS:
        raise InvalidInputError(
            f"--batch_size={config.batch_size} must be a multiple of "
            f"{models.BATCH_NORM_SPLITS} with --backbone={_SPLIT}."
        )
    launch.check_image_size(config, "backbone")
    return config


def _load_pretrained(config: Config) -> dict[str, np.ndarray] | None:
    """Reads the file of --pretrained."""
    if not config.pretrained:
        return None
    path = _pretrained_path(config)
    if not path.is_file():
        raise InvalidInputError(
            f"--pretrained={config.pretrained}: there is no {path}; expected the "
            f"results folder of a finished run, or the {WEIGHTS} in it."
        )
    return training.read_arrays(path)


def _pretrained_path(config: Config) -> pathlib.Path:
    path = pathlib.Path(config.pretrained)
    return path / WEIGHTS if path.is_dir() else path


def _pretrained_fingerprint(config: Config) -> dict[str, dict[str, str]]:
    if not config.pretrained:
        return {}
    return {"pretrained": {"--pretrained": files.sha256(_pretrained_path(config))}}


def _load_task(config: Config) -> tasks.Contrastive:
    size = config.image_size
    backbone_fn = functools.partial(
        models.BACKBONES[config.backbone], (size, size, 3), seed=config.seed
    )
    _check_memory(config, backbone_fn)
    data = dataset_words.load_labelled(
        config.chosen("dataset"),
        config.data_dir,
        _loaded_size(config),
        config.num_train,
    )
    if config.batch_size > len(data.train_images):
        raise InvalidInputError(
            f"--batch_size={config.batch_size} is more than the "
            f"{len(data.train_images)} training images."
        )
    return tasks.Contrastive(
        data,
        backbone_fn,
        TwoViews(size, blur=config.blur),
        batch_size=config.batch_size,
        seed=config.seed,
    )


def _loaded_size(config: Config) -> int:
    """Returns the size of loaded images: photographs are larger, by 256 to 224."""
    known = labelled_images.SOURCES.get(config.chosen("dataset").name)
    is_photograph = known is None or known.image_size is None
    return round(config.image_size * 256 / 224) if is_photograph else config.image_size


def _check_memory(config: Config, backbone_fn: Callable[[], tf.keras.Model]) -> None:
    """Refuses what cannot fit into memory, before the data are read."""
    batch_size, queue_size = config.batch_size, config.queue_size
    images = memory_needs.images(batch_size, config.image_size, 3)
    memory.check(images)  # First: a backbone for larger images cannot be measured.
    memory.check(
        images | memory_needs.matrix("the queue", queue_size, _KEY_DIM),
        # Two encoders, and one's gradient and momentum.
        device_needs=memory_needs.network(
            "the backbone", backbone_fn, batch_size, copies=4
        )
        | memory_needs.matrix(
            "similarities of queries and keys", batch_size, queue_size
        ),
    )


def _build_run(config: Config) -> training.MocoRun:
    start = _load_pretrained(config)
    task = _load_task(config)
    floor = losses.info_nce_floor(config.queue_size, config.temperature)
    print(
        f"With {config.queue_size:,} keys at temperature {config.temperature:g} the "
        f"mean InfoNCE (plain, gamma = 0) is never below {floor:.2f}, where 1 - p is "
        f"{-math.expm1(-floor):.3f}.",
        flush=True,
    )
    learning_rate = algorithms.CosineByEpoch(
        config.learning_rate, max(config.epochs, 1), task.steps_per_epoch
    )
    algorithm = algorithms.MoCo(
        task.backbone_fn,
        algorithms.SGDUnderRate(learning_rate, momentum=_MOMENTUM),
        queue_size=config.queue_size,
        embedding_dim=_KEY_DIM,
        temperature=config.temperature,
        key_momentum=config.key_momentum,
        weight_decay=config.weight_decay,
        gamma=config.gamma,
        form=config.loss,
        num_clusters=config.num_clusters,
        clusters=config.clusters or "k_means",
        shuffle_keys=config.backbone == _SPLIT,
        seed=config.seed,
    )
    if start is not None:
        try:
            algorithm.start_from(start)
        except ValueError as error:
            raise InvalidInputError(
                f"--pretrained={config.pretrained} {error}: give the flags of the "
                "model that it was trained with."
            ) from error
    return training.MocoRun(NAME, task, algorithm, config.loss != "plain")


if __name__ == "__main__":
    program.run(main, Config(), paper="moco")
