r"""Trains a classifier with LEAP, SPLD or random mini-batches.

    ./run.sh leap --cell=1/mini/cifar10_mini/leap \
        --data_dir=DIR --seed=0 --results_dir=results/leap/cifar10_mini/leap/seed0

"LEAP: Learning Embeddings for Adaptive Pace". A student is trained on the examples that
are easy for it and spread over many clusters; the clusters come from an embedding
network, trained beside it with the Magnet loss (LEAP), or from the pixels (SPLD).
`random` trains on everything. experiments/leap/cells.py has the runs of the paper
(GPUs) and mini ones for a CPU; `./run.sh table leap/1` does them all, and
docs/results/leap says what came of them, and how long it took.

The results folder has metrics.csv (a row per round of --steps_per_round mini-batches),
curves.png and .pdf, the weights, the representations that figures are drawn of,
flags.txt and run.json. A run that was stopped or killed goes on when it is given the
same flags again. It ends with the same bytes, except LEAP without --in_turn: there the
embedding network is trained in a process of its own, as fast as the machine can.
"""

import contextlib
import functools
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from absl import flags

from experiments.common import launch as single_run
from experiments.common import memory_needs, program
from experiments.leap import figures as leap_figures
from tff_fedss import algorithms, memory, models, tasks, training
from tff_fedss.datasets import augmentation, labelled_images
from tff_fedss.errors import InvalidInputError
from tff_fedss.samplers import self_paced

METHODS = tuple(leap_figures.METHODS)

_DATASET = flags.DEFINE_enum(
    "dataset",
    "cifar10",
    [name for name, s in labelled_images.SOURCES.items() if s.image_size],
    "The images.",
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "A folder or an archive with train/CLASS/IMAGE and test/CLASS/IMAGE, or a folder "
    "with MNIST's IDX files. Default: TFDS, which downloads what it does not have.",
)
_NUM_TRAIN = flags.DEFINE_integer(
    "num_train",
    None,
    "Train on so many images, equally many of each class. Default: on all.",
    lower_bound=1,
)
_METHOD = flags.DEFINE_enum(
    "method",
    "leap",
    METHODS,
    "How examples are selected. `leap`: easy ones, spread over the clusters of an "
    "embedding network. `spld`: easy ones, spread over clusters of pixels. `random`: "
    "all of them.",
)
_IN_TURN = flags.DEFINE_boolean(
    "in_turn",
    False,
    "Train the embedding network in the same process, an update for each of the "
    "student's: slower on many cores, and the same bytes each time.",
)
_STUDENT = flags.DEFINE_enum(
    "student", "resnet18", list(models.NETWORKS), "The classifier."
)
_EMBEDDING = flags.DEFINE_enum(
    "embedding", "vgg16", list(models.NETWORKS), "The embedding network, for leap."
)
_EMBEDDING_DIM = flags.DEFINE_integer(
    "embedding_dim", 64, "d, of its representations.", lower_bound=1
)
_PACE = flags.DEFINE_enum(
    "pace",
    "share",
    ["share", "threshold"],
    "What lambda is. `share`: the quantile of all losses below which a share of "
    "--pace_start lies in the first epoch, and --pace_growth more in each one after. "
    "`threshold`: --pace_start itself, times 1 + --pace_growth after each epoch "
    "(Algorithm 2, line 24).",
)
_PACE_START = flags.DEFINE_float(
    "pace_start", 0.1, "See --pace.", lower_bound=1e-6, upper_bound=1e6
)
_PACE_GROWTH = flags.DEFINE_float(
    "pace_growth", 0.1, "See --pace.", lower_bound=1e-6, upper_bound=1e6
)
_DIVERSITY = flags.DEFINE_float(
    "diversity",
    0.5,
    "gamma in the first epoch, in units of the loss; then times 1 + --pace_growth.",
    lower_bound=0.0,
)
_CLUSTERS_PER_CLASS = flags.DEFINE_integer("clusters_per_class", 8, "K.", lower_bound=1)
_CLUSTERS_PER_BATCH = flags.DEFINE_integer(
    "clusters_per_batch", 8, "M, of the embedding's mini-batches.", lower_bound=2
)
_EXAMPLES_PER_CLUSTER = flags.DEFINE_integer(
    "examples_per_cluster", 8, "D, of the embedding's mini-batches.", lower_bound=2
)
_ALPHA = flags.DEFINE_float(
    "alpha", 1.0, "Of the Magnet loss: the margin between classes.", lower_bound=0.0
)
_EMBEDDING_LEARNING_RATE = flags.DEFINE_float(
    "embedding_learning_rate", 1e-4, "Of the embedding's Adam.", lower_bound=0.0
)
_EPOCHS_PER_REFRESH = flags.DEFINE_integer(
    "epochs_per_refresh", 1, "R: epochs of the embedding per clustering.", lower_bound=1
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 200, "How many rounds to train.", lower_bound=1
)
_STEPS_PER_ROUND = flags.DEFINE_integer(
    "steps_per_round", 390, "How many of its mini-batches make a round.", lower_bound=1
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 128, "B.", lower_bound=1)
_LEARNING_RATE = flags.DEFINE_float(
    "learning_rate", 0.1, "Of SGD, at the start.", lower_bound=0.0
)
_LEARNING_RATE_DROPS = flags.DEFINE_list(
    "learning_rate_drops",
    [],
    "After so many mini-batches it is divided by 10: 23400,46800,62400 in the paper.",
)
_MOMENTUM = flags.DEFINE_float(
    "momentum", 0.9, "Of SGD.", lower_bound=0.0, upper_bound=1.0
)
_NESTEROV = flags.DEFINE_boolean("nesterov", True, "Whether it is Nesterov's.")
_WEIGHT_DECAY = flags.DEFINE_float(
    "weight_decay", 5e-4, "Times a weight, added to its gradient.", lower_bound=0.0
)
_AUGMENTATION = flags.DEFINE_enum(
    "augmentation",
    "none",
    list(augmentation.AUGMENTATIONS),
    "What is done to training images: mirroring and crops of the image with 4 pixels "
    "around it; or also upside down, and rotations up to 15 degrees.",
)
_ROUNDS_PER_EVALUATION = flags.DEFINE_integer(
    "rounds_per_evaluation", 1, "How often to measure.", lower_bound=1
)
_ROUNDS_PER_CHECKPOINT = flags.DEFINE_integer(
    "rounds_per_checkpoint",
    1,
    "How often to save what a killed run goes on from.",
    lower_bound=1,
)

flags.adopt_module_key_flags(single_run)  # --help shows them.

GROUPS = {
    "The run": ("method", "dataset", "data_dir", "num_train", "results_dir", "seed"),
    "Networks": ("student", "embedding", "embedding_dim", "in_turn"),
    "Pace (leap, spld)": ("pace", "pace_start", "pace_growth", "diversity"),
    "Clusters (leap, spld) and the Magnet loss (leap)": (
        "clusters_per_class",
        "clusters_per_batch",
        "examples_per_cluster",
        "alpha",
        "embedding_learning_rate",
        "epochs_per_refresh",
    ),
    "The student's optimization": (
        "rounds",
        "steps_per_round",
        "batch_size",
        "learning_rate",
        "learning_rate_drops",
        "momentum",
        "nesterov",
        "weight_decay",
        "augmentation",
    ),
    "Evaluation and checkpoints": ("rounds_per_evaluation", "rounds_per_checkpoint"),
}

_COLUMNS = (
    "steps",
    "loss",
    "accuracy",
    "top1",
    "test_loss",
    "epoch",
    "selected_share",
    "selected_classes",
    "easiness",
    "diversity",
    "embedding_loss",
    "num_examples",
)
# Of so many training images the representations are kept, for t-SNE.
_NUM_REPRESENTATIONS = 2000


def main() -> None:
    """Trains and prints the result."""
    drops = _learning_rate_drops()
    folder = single_run.open_folder(GROUPS, _COLUMNS)
    if folder is None:
        return
    data = labelled_images.load(_DATASET.value, _DATA_DIR.value)
    if _NUM_TRAIN.value is not None:
        data = data.subset(_NUM_TRAIN.value)
    if data.num_classes < 2:
        raise InvalidInputError(
            f"--data_dir={_DATA_DIR.value} holds images of one class: there is nothing "
            "to classify."
        )
    _check_memory(data)
    print(data.summary(), flush=True)
    task = tasks.LabelledClassification(
        data,
        functools.partial(
            models.NETWORKS[_STUDENT.value],
            data.image_shape,
            data.num_classes,
            single_run.SEED.value,
        ),
        augmentation.AUGMENTATIONS[_AUGMENTATION.value],
    )
    with _embedding(data) as embedding:
        run = training.LeapRun(
            _METHOD.value,
            task,
            _student(task, embedding, drops),
            embedding,
            _STEPS_PER_ROUND.value,
        )
        single_run.train(
            run,
            folder,
            rounds=_ROUNDS.value,
            rounds_per_evaluation=_ROUNDS_PER_EVALUATION.value,
            rounds_per_checkpoint=_ROUNDS_PER_CHECKPOINT.value,
            plot=lambda: leap_figures.plot_curves(
                {run.name: [folder.rows]}, folder.path / "curves.png"
            ),
        )
        if embedding is not None:
            _write_representations(folder, embedding, data)
    _finish(run, folder)


def _finish(run: training.LeapRun, folder: training.ResultsFolder) -> None:
    weights = run.weights
    folder.write_arrays(
        f"{run.name}.npz",
        {
            f"{kind}_{i:03d}": value
            for kind, values in weights._asdict().items()
            for i, value in enumerate(values)
        },
    )
    last = folder.rows[-1]
    text = (
        f"{run.name}: top-1 {run.task.format_metric(last['top1'])} after "
        f"{last['steps']:,} mini-batches"
    )
    values = {name: last[name] for name in ("steps", "top1", "test_loss")}
    single_run.finish(folder, run.task.metric, text, values)


def _check_memory(data: labelled_images.LabelledImages) -> None:
    """Refuses what cannot fit into memory."""
    seed = single_run.SEED.value
    # The others select some, maybe few; every mini-batch is of those.
    size = min(_BATCH_SIZE.value, len(data.train_labels))
    if _METHOD.value != "random":
        size = 1
    # Beside weights and gradient, SGD has a momentum for each number.
    needs = memory_needs.network(
        "the student",
        lambda: models.NETWORKS[_STUDENT.value](
            data.image_shape, data.num_classes, seed
        ),
        size,
        copies=3,
    )
    num_clusters = data.num_classes * _CLUSTERS_PER_CLASS.value
    if _METHOD.value == "leap":
        # And Adam two moments.
        needs |= memory_needs.network(
            "the embedding",
            lambda: models.NETWORKS[_EMBEDDING.value](
                data.image_shape, _EMBEDDING_DIM.value, seed
            ),
            _CLUSTERS_PER_BATCH.value * _EXAMPLES_PER_CLUSTER.value,
            copies=4,
        )
        needs |= memory_needs.matrix("clusters", num_clusters, _EMBEDDING_DIM.value)
    elif _METHOD.value == "spld":
        needs |= memory_needs.matrix("clusters", num_clusters, 1)
    memory.check({}, device_needs=needs)


def _learning_rate_drops() -> list[int]:
    texts = _LEARNING_RATE_DROPS.value
    drops = [int(text) if text.isdecimal() else 0 for text in texts]
    if drops != sorted(set(drops)) or 0 in drops:
        raise InvalidInputError(
            f"--learning_rate_drops={','.join(texts)} must be numbers of mini-batches "
            "in increasing order, such as 23400,46800,62400."
        )
    return drops


def _optimizer(drops: list[int]) -> tf.keras.optimizers.Optimizer:
    rate = _LEARNING_RATE.value
    if drops:
        # The last mini-batch with the old rate is the one with the boundary's number.
        rate = tf.keras.optimizers.schedules.PiecewiseConstantDecay(
            [drop - 1 for drop in drops],
            [rate / 10**i for i in range(len(drops) + 1)],
        )
    return tf.keras.optimizers.SGD(rate, _MOMENTUM.value, _NESTEROV.value)


def _pace() -> self_paced.Pace | None:
    if _METHOD.value == "random":
        return None
    growth = 1 + _PACE_GROWTH.value
    if _PACE.value == "threshold":
        return self_paced.ThresholdPace(
            _PACE_START.value, _DIVERSITY.value, growth, growth
        )
    return self_paced.SharePace(
        _PACE_START.value, _PACE_GROWTH.value, _DIVERSITY.value, growth
    )


@contextlib.contextmanager
def _embedding(
    data: labelled_images.LabelledImages,
) -> Iterator[training.InTurnEmbedding | training.EmbeddingProcess | None]:
    """Makes the embedding network, and ends its process afterwards if it has one."""
    if _METHOD.value != "leap":
        yield None
        return
    embedding_class = (
        training.InTurnEmbedding if _IN_TURN.value else training.EmbeddingProcess
    )
    with contextlib.closing(
        embedding_class(_magnet_settings(data), data.train_images, data.train_labels)
    ) as embedding:
        yield embedding


def _magnet_settings(
    data: labelled_images.LabelledImages,
) -> algorithms.MagnetSettings:
    impostors = _CLUSTERS_PER_CLASS.value * (data.num_classes - 1)
    if _CLUSTERS_PER_BATCH.value - 1 > impostors:
        raise InvalidInputError(
            f"--clusters_per_batch={_CLUSTERS_PER_BATCH.value} must be at most "
            f"{impostors + 1}: so many clusters have other classes than the first."
        )
    return algorithms.MagnetSettings(
        functools.partial(
            models.NETWORKS[_EMBEDDING.value],
            data.image_shape,
            _EMBEDDING_DIM.value,
            # Not the student's initial weights, if both are the same network.
            single_run.SEED.value + 1,
        ),
        data.num_classes,
        clusters_per_class=_CLUSTERS_PER_CLASS.value,
        clusters_per_batch=_CLUSTERS_PER_BATCH.value,
        examples_per_cluster=_EXAMPLES_PER_CLUSTER.value,
        alpha=_ALPHA.value,
        learning_rate=_EMBEDDING_LEARNING_RATE.value,
        epochs_per_refresh=_EPOCHS_PER_REFRESH.value,
        augmentation=augmentation.AUGMENTATIONS[_AUGMENTATION.value],
        seed=single_run.SEED.value,
    )


def _student(
    task: tasks.LabelledClassification,
    embedding: training.InTurnEmbedding | training.EmbeddingProcess | None,
    drops: list[int],
) -> algorithms.SelfPacedStudent:
    data = task.data

    @functools.cache
    def pixel_clusters() -> np.ndarray:
        return algorithms.pixel_clusters(
            data.train_images,
            data.train_labels,
            data.num_classes,
            _CLUSTERS_PER_CLASS.value,
            single_run.SEED.value,
        )

    return algorithms.SelfPacedStudent(
        task.classifier_fn(),
        data.train_images,
        data.train_labels,
        _optimizer(drops),
        _pace(),
        pixel_clusters if embedding is None else lambda: embedding.clusters,
        batch_size=_BATCH_SIZE.value,
        weight_decay=_WEIGHT_DECAY.value,
        augmentation=task.augmentation,
        seed=single_run.SEED.value,
    )


def _write_representations(
    folder: training.ResultsFolder,
    embedding: training.InTurnEmbedding | training.EmbeddingProcess,
    data: labelled_images.LabelledImages,
) -> None:
    """Keeps some training images' places in the learned space, for t-SNE."""
    # The same images whatever the seed, so that seeds can be compared.
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
    program.run(main, groups=GROUPS, paper="leap")
