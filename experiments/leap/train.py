r"""Trains a classifier with LEAP, SPLD or random mini-batches.

    ./run.sh leap --cell=1/mini/cifar10_mini/leap \
        --data_dir=DIR --seed=0 --results_dir=results/leap/cifar10_mini/leap/seed0

"LEAP: Learning Embeddings for Adaptive Pace". A student is trained on examples that are
easy for it and spread over many clusters; the clusters come from an embedding network,
trained beside it with the Magnet loss (LEAP), or from the pixels (SPLD). `./run.sh
table leap/1` does all runs of the paper, at its size or a smaller one.

The results folder has metrics.csv (a row per round of --steps_per_round mini-batches),
curves.png and .pdf, the weights, the representations for figures, flags.txt and
run.json. The same flags resume a run that was stopped or killed, to the same bytes,
except LEAP without --in_turn, whose embedding trains in its own process.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from experiments.common import (
    config,
    dataset_words,
    launch,
    memory_needs,
    program,
    runtime_config,
)
from tff_fedss import algorithms, memory, models, tasks, training
from tff_fedss.datasets.central import augmentation, labelled_images
from tff_fedss.errors import InvalidInputError
from tff_fedss.samplers import self_paced


@dataclasses.dataclass(frozen=True)
class Config(runtime_config.DeviceConfig):
    """The flags of the program."""

    method: str = config.flag(
        "leap",
        "The selection of examples: `leap`, easy examples, spread over the clusters "
        "of an embedding network; `spld`, over clusters of pixels; `spl`, over "
        "none; `random`, all examples.",
        group="The run",
        choices=("leap", "spld", "spl", "random"),
    )
    dataset: str = config.flag(
        "cifar10",
        "The images: known ones; `images`, your own; or `tfds`, any image data set of "
        "TFDS.",
        words=dataset_words.central(
            name for name, s in labelled_images.SOURCES.items() if s.image_size
        ),
    )
    data_dir: str | None = config.flag(
        None,
        "A folder or an archive with train/CLASS/IMAGE and test/CLASS/IMAGE, or a "
        "folder with MNIST's IDX files. Without it, TFDS downloads the data set (not "
        "tiny_imagenet). " + dataset_words.DATA_DIR,
    )
    image_size: int | None = config.flag(
        None,
        "Height and width to which images are resized. Default: not resized.",
        low=8,
    )
    num_train: int | None = config.flag(
        None,
        "Train on this number of images, equally many of each class. Default: all.",
        low=1,
    )
    label_noise: float = config.flag(
        0.0, "The share of wrong training labels.", low=0.0, high=0.99
    )
    results_dir: str = launch.results_dir()
    seed: int = launch.seed()
    student: str = config.flag(
        "resnet18", "The classifier.", group="Networks", choices=models.NETWORKS
    )
    embedding: str = config.flag(
        "vgg16", "The embedding network, for leap.", choices=models.NETWORKS
    )
    embedding_dim: int = config.flag(
        64, "d, the dimension of its representations.", low=1
    )
    in_turn: bool = config.flag(
        False,
        "Train the embedding network in the same process, an update for each of the "
        "student's: the same bytes each time.",
    )
    pace: str = config.flag(
        "share",
        "The schedule of lambda. `share`: the lambda that selects a share of "
        "--pace_start of the examples, and --pace_growth more in each epoch, up to "
        "--pace_cap. `threshold`: lambda is --pace_start, times 1 + --pace_growth "
        "after each epoch (Algorithm 2, line 24).",
        group="Pace (leap, spld, spl)",
        choices=("share", "threshold"),
    )
    pace_start: float = config.flag(0.1, "See --pace.", low=1e-6, high=1e6)
    pace_growth: float = config.flag(0.1, "See --pace.", low=1e-3, high=1e6)
    pace_cap: float = config.flag(1.0, "The largest share.", low=1e-6, high=1.0)
    diversity: float | None = config.flag(
        None,
        "gamma of the first selection, in units of the loss. Default: 0.5; spl: 0.",
        low=0.0,
    )
    diversity_growth: float | None = config.flag(
        None,
        "Relative growth of gamma in each epoch. Default: --pace_growth.",
        low=0.0,
        high=1e6,
    )
    clusters_per_class: int = config.flag(
        8, "K.", group="Clusters (leap, spld) and the Magnet loss (leap)", low=1
    )
    clusters_per_batch: int = config.flag(
        8, "M, the clusters in the embedding's mini-batches.", low=2
    )
    examples_per_cluster: int = config.flag(
        8, "D, the examples of a cluster in the embedding's mini-batches.", low=2
    )
    alpha: float = config.flag(
        1.0, "alpha of the Magnet loss: the margin between classes.", low=0.0
    )
    embedding_learning_rate: float = config.flag(
        1e-4, "Learning rate of the embedding's Adam.", low=0.0
    )
    epochs_per_refresh: int = config.flag(
        1, "R: epochs of the embedding per clustering.", low=1
    )
    rounds: int = config.flag(
        200, "How many rounds to train.", group="The student's optimization", low=1
    )
    steps_per_round: int = config.flag(
        390, "How many of the student's mini-batches are a round.", low=1
    )
    batch_size: int = config.flag(128, "B.", low=1)
    learning_rate: float = config.flag(0.1, "Initial learning rate of SGD.", low=0.0)
    learning_rate_drops: tuple[int, ...] = config.flag(
        (),
        "Numbers of mini-batches after which the rate is divided by 10: "
        "23400,46800,62400 in the paper.",
        low=1,
    )
    momentum: float = config.flag(0.9, "Momentum of SGD.", low=0.0, high=1.0)
    nesterov: bool = config.flag(True, "Whether the momentum is Nesterov's.")
    weight_decay: float = config.flag(
        5e-4, "Weight decay: this times a weight is added to its gradient.", low=0.0
    )
    augmentation: str = config.flag(
        "none",
        "Augmentation of training images: `flip_crop` mirrors half and shifts all by "
        "up to 4 pixels; `flips_crop_rotation` also turns half upside down and rotates "
        "all by up to 15 degrees.",
        choices=augmentation.AUGMENTATIONS,
    )
    rounds_per_evaluation: int = config.flag(
        1, "Rounds between two evaluations.", group="Evaluation and checkpoints", low=1
    )
    rounds_per_checkpoint: int = launch.checkpoints(1)


_COLUMNS = (
    "steps",
    "loss",
    "accuracy",
    "top1",
    "test_loss",
    "epoch",
    "selected_share",
    "selected_classes",
    "mislabelled_share",
    "easiness",
    "diversity",
    "embedding_loss",
    "num_examples",
)
# Number of training images whose representations are kept, for t-SNE.
_NUM_REPRESENTATIONS = 2000


def main(config: Config) -> None:
    """Trains and prints the result."""
    with contextlib.ExitStack() as stack:
        launch.run(
            config,
            _COLUMNS,
            functools.partial(_build_run, stack),
            _finish,
            results=("steps", "top1", "test_loss"),
            curves=("test_loss", "loss"),
        )


def _build_run(stack: contextlib.ExitStack, config: Config) -> training.LeapRun:
    """Builds the student and, for leap, the embedding.

    Args:
        stack: Ends the embedding's process, if it has one.
    """
    optimizer = _optimizer(config)
    data = dataset_words.load_labelled(
        config.chosen("dataset"), config.data_dir, config.image_size, config.num_train
    )
    if config.label_noise:
        data = with_label_noise(data, config.label_noise, config.seed)
    task = tasks.LabelledClassification(
        data,
        functools.partial(
            models.NETWORKS[config.student],
            data.image_shape,
            data.num_classes,
            config.seed,
        ),
        augmentation.AUGMENTATIONS[config.augmentation],
    )
    embedding = None
    magnet = _magnet_settings(config, data) if config.method == "leap" else None
    _check_memory(config, task, magnet)
    if magnet is not None:
        arguments = magnet, data.train_images, data.train_labels
        embedding = stack.enter_context(
            contextlib.closing(
                algorithms.MagnetEmbedding(*arguments)
                if config.in_turn
                else training.EmbeddingProcess(
                    *arguments,
                    functools.partial(runtime_config.configure_gpus, config),
                )
            )
        )
    student = algorithms.SelfPacedStudent(
        task.classifier_fn(),
        data.train_images,
        data.train_labels,
        optimizer,
        _pace(config),
        _clusters_fn(config, data, embedding),
        batch_size=config.batch_size,
        weight_decay=config.weight_decay,
        augmentation=task.augmentation,
        seed=config.seed,
    )
    return training.LeapRun(
        config.method, task, student, embedding, config.steps_per_round
    )


def with_label_noise(
    data: labelled_images.LabelledImages, share: float, seed: int
) -> labelled_images.LabelledImages:
    """Makes training labels wrong, to test LEAP's claims: symmetric noise.

    Args:
        share: Share of the training images that get another label, in [0, 1): each of
            the n - 1 with the same probability. The labels of the test stay right.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, 2**32 + 1]))
    count = round(share * len(data.train_labels))
    is_wrong = np.zeros(len(data.train_labels), bool)
    is_wrong[generator.permutation(len(is_wrong))[:count]] = True
    labels = data.train_labels.copy()
    labels[is_wrong] += generator.integers(1, data.num_classes, count)
    note = f"{share:.0%} of the training labels are wrong"
    return dataclasses.replace(
        data,
        train_labels=(labels % data.num_classes).astype(data.train_labels.dtype),
        note="; ".join(filter(None, [data.note, note])),
        mislabelled=is_wrong,
    )


def _finish(
    config: Config, run: training.LeapRun, folder: training.ResultsFolder
) -> str:
    """Writes the weights and the data of figures; returns the result in words."""
    del config
    folder.write_arrays(
        f"{run.name}.npz",
        {
            f"{kind}_{i:03d}": value
            for kind, values in run.weights._asdict().items()
            for i, value in enumerate(values)
        },
    )
    if run.embedding is not None:
        _write_representations(folder, run.embedding, run.task.dataset)
    last = folder.rows[-1]
    return (
        f"top-1 {run.task.format_metric(last['top1'])} after {last['steps']:,} "
        "mini-batches"
    )


def _check_memory(
    config: Config,
    task: tasks.LabelledClassification,
    magnet: algorithms.MagnetSettings | None,
) -> None:
    """Refuses what cannot fit into memory."""
    size = min(config.batch_size, len(task.dataset.train_labels))
    # Besides weights and gradient, SGD has a momentum for each number.
    needs = memory_needs.network("the student", task.classifier_fn, size, 3)
    if magnet is not None:
        size = magnet.clusters_per_batch * magnet.examples_per_cluster
        num_clusters = magnet.num_classes * magnet.clusters_per_class
        # Adam has two moments.
        needs |= memory_needs.network("the embedding", magnet.network_fn, size, 4)
        needs |= memory_needs.matrix("clusters", num_clusters, config.embedding_dim)
    memory.check({}, device_needs=needs)


def _optimizer(config: Config) -> tf.keras.optimizers.Optimizer:
    """Returns SGD whose rate falls to a tenth at each drop."""
    rate, drops = config.learning_rate, sorted(set(config.learning_rate_drops))
    if drops:
        # The mini-batch with the boundary's number is the last one with the old rate.
        rate = tf.keras.optimizers.schedules.PiecewiseConstantDecay(
            [drop - 1 for drop in drops], [rate / 10**i for i in range(len(drops) + 1)]
        )
    return tf.keras.optimizers.SGD(rate, config.momentum, config.nesterov)


def _pace(config: Config) -> self_paced.Pace | None:
    if config.method == "random":
        return None
    growth, diversity_growth = config.pace_growth, config.diversity_growth
    diversity_growth = 1 + (growth if diversity_growth is None else diversity_growth)
    diversity = 0.5 if config.diversity is None else config.diversity
    if config.method == "spl":
        if config.diversity:
            raise InvalidInputError(
                f"--diversity={config.diversity:g} goes with --method=leap or spld, "
                "found --method=spl."
            )
        diversity = 0.0
    if config.pace == "threshold":
        return self_paced.ThresholdPace(
            config.pace_start, diversity, 1 + growth, diversity_growth
        )
    return self_paced.SharePace(
        config.pace_start, growth, diversity, diversity_growth, config.pace_cap
    )


def _magnet_settings(
    config: Config, data: labelled_images.LabelledImages
) -> algorithms.MagnetSettings:
    return algorithms.MagnetSettings(
        functools.partial(
            models.NETWORKS[config.embedding],
            data.image_shape,
            config.embedding_dim,
            # Not the student's initial weights, if both are the same network.
            config.seed + 1,
        ),
        data.num_classes,
        clusters_per_class=config.clusters_per_class,
        clusters_per_batch=config.clusters_per_batch,
        examples_per_cluster=config.examples_per_cluster,
        alpha=config.alpha,
        learning_rate=config.embedding_learning_rate,
        epochs_per_refresh=config.epochs_per_refresh,
        augmentation=augmentation.AUGMENTATIONS[config.augmentation],
        seed=config.seed,
    )


def _clusters_fn(
    config: Config,
    data: labelled_images.LabelledImages,
    embedding: training.Embedding | None,
) -> Callable[[], np.ndarray] | None:
    """Returns a function to the cluster of each example; None without clusters."""
    if config.method == "random":
        return None
    if config.method == "leap":
        return lambda: embedding.clusters
    if config.method == "spl":  # Without diversity they have no effect.
        return lambda: np.zeros(len(data.train_labels), np.int32)
    return functools.cache(
        functools.partial(
            algorithms.pixel_clusters,
            data.train_images,
            data.num_classes * config.clusters_per_class,
            config.seed,
        )
    )


def _write_representations(
    folder: training.ResultsFolder,
    embedding: training.Embedding,
    data: labelled_images.LabelledImages,
) -> None:
    """Keeps some training images' positions in the learned space, for t-SNE."""
    # The same images for every seed, so that seeds can be compared.
    generator = np.random.Generator(np.random.Philox(0))
    count = min(_NUM_REPRESENTATIONS, len(data.train_labels))
    examples = np.sort(generator.permutation(len(data.train_labels))[:count])
    trained = embedding.trained()
    folder.write_arrays(
        "representations.npz",
        {
            "representations": trained.represent(data.train_images[examples]),
            "labels": data.train_labels[examples],
            "clusters": trained.clusters[examples],
            "class_names": np.array(data.class_names),
        },
    )


if __name__ == "__main__":
    program.run(main, Config(), paper="leap")
