"""Trains with sampled softmax, centrally, with negatives from one sampler.

    ./run.sh rf_softmax --task=ptb --data_dir=DIR --sampler=rff --results_dir=DIR
    ./run.sh rf_softmax --task=extreme --data_dir=DIR --sampler=exp --results_dir=DIR
    ./run.sh rf_softmax --task=omniglot --data_dir=DIR --results_dir=DIR

RF-softmax (Rawat et al., NeurIPS 2019) beside what it is compared with: an LSTM on Penn
Treebank (perplexity), one hidden layer on sparse features with very many labels
(precision@k), and the image tasks of `./run.sh train` (top-1). It is a research
baseline; see README.md about the patent that is said to cover it.

The results folder has metrics.csv (a row per round of --steps_per_round steps),
curves.png and .pdf, the weights, flags.txt and run.json. A run that was stopped or
killed goes on when it is given the same flags again, and ends with the same bytes.
"""

import dataclasses
import functools

import tensorflow as tf
from absl import flags

from experiments.common import launch as single_run
from experiments.common import memory_needs, program
from experiments.rf_softmax import report
from tff_fedss import algorithms, memory, models, samplers, tasks, training
from tff_fedss.datasets import extreme, penn_treebank
from tff_fedss.errors import InvalidInputError

FULL = "full"
_IMAGES = tuple(
    name for name, f in tasks.FAMILIES.items() if "classification" in f.settings
)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a flag is by default; the attributes have the flags' names."""

    num_negatives: int
    logit_scale: float
    batch_size: int
    rounds: int
    learning_rate: float
    optimizer: str = "adagrad"


_SETTINGS = {
    "ptb": _Settings(100, 12.0, 20, 40, 0.05),
    "extreme": _Settings(10, 12.0, 32, 40, 0.05),
    **dict.fromkeys(_IMAGES, _Settings(20, 20.0, 32, 40, 0.1, "sgd")),
}


def _by_task(name: str) -> str:
    values = {key: getattr(_SETTINGS[key], name) for key in ("ptb", "extreme")}
    values["images"] = getattr(_SETTINGS[_IMAGES[0]], name)
    texts = [f"{key} {value}" for key, value in values.items()]
    return f" Default: {', '.join(texts)}."


_TASK = flags.DEFINE_enum(
    "task",
    "ptb",
    list(_SETTINGS),
    "What to train: `ptb`, the next word of Penn Treebank; `extreme`, labels of rows "
    "with sparse features; or a data set of images, with the model that `./run.sh "
    "train` has for it.",
)
_SAMPLER = flags.DEFINE_enum(
    "sampler",
    "rff",
    [FULL, *samplers.SAMPLERS],
    "Where negatives come from. `full`: no sampling, the full softmax. `exp`: the "
    "softmax distribution itself. `quadratic`: alpha (h.c)^2 + 1. `rff`: random "
    "Fourier features. `log_uniform`: Zipf's law, for text.",
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "ptb: a folder or zip with ptb.train.txt, ptb.valid.txt and ptb.test.txt. extreme: "
    "a folder with a train and a test file, XMC (.txt) or sparse ARFF (.arff). Images: "
    "as for `./run.sh train`.",
)
_NUM_NEGATIVES = flags.DEFINE_integer(
    "num_negatives",
    None,
    "m, drawn for each example." + _by_task("num_negatives"),
    lower_bound=1,
)
_SHARE_NEGATIVES = flags.DEFINE_bool(
    "share_negatives",
    False,
    "Draw m negatives for the mini-batch, not for each example: cheaper, and noisier. "
    "An example leaves those out that are its target.",
)
_LOGIT_SCALE = flags.DEFINE_float(
    "logit_scale",
    None,
    "tau: logits are tau h.c, of embeddings at length 1." + _by_task("logit_scale"),
    lower_bound=1e-6,
)
_NU = flags.DEFINE_float(
    "nu",
    4.0,
    "Of rff's Gaussian kernel exp(-nu |h - c|^2 / 2). The softmax's is tau; less makes "
    "the estimate more exact (the poster's T is 1 / sqrt(nu)).",
    lower_bound=1e-6,
)
_NUM_FREQUENCIES = flags.DEFINE_integer(
    "num_frequencies", 256, "D, of rff: there are 2 D features.", lower_bound=1
)
_ALPHA = flags.DEFINE_float("alpha", 100.0, "Of the quadratic kernel.", lower_bound=0.0)
_LEAF_SIZE = flags.DEFINE_integer(
    "leaf_size",
    None,
    "How many classes make a bucket at the bottom of the tree of rff or quadratic: "
    "more take less memory and more time. Default: d / 2 for quadratic; for rff 1, or "
    "as few as fit in 1 GiB.",
    lower_bound=1,
)
_EMBEDDING_DIM = flags.DEFINE_integer(
    "embedding_dim", 64, "d, of inputs and classes.", lower_bound=1
)
_NUM_UNITS = flags.DEFINE_integer(
    "num_units", 128, "The width of the LSTM and of its words, for ptb.", lower_bound=1
)
_NUM_STEPS = flags.DEFINE_integer(
    "num_steps", 10, "The words of each text in a mini-batch, for ptb.", lower_bound=1
)
_VALIDATION_WORDS = flags.DEFINE_integer(
    "validation_words",
    None,
    "Measure perplexity on so many words from the start of the validation text, for "
    "ptb. Default: on all of them.",
    lower_bound=1000,
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", None, "How many rounds." + _by_task("rounds"), lower_bound=1
)
_STEPS_PER_ROUND = flags.DEFINE_integer(
    "steps_per_round", 100, "How many updates make a round.", lower_bound=1
)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size",
    None,
    "The mini-batch; for ptb, the texts side by side." + _by_task("batch_size"),
    lower_bound=1,
)
_OPTIMIZER = flags.DEFINE_enum(
    "optimizer",
    None,
    ["adagrad", "sgd"],
    "Of those that leave classes alone that no example names." + _by_task("optimizer"),
)
_LEARNING_RATE = flags.DEFINE_float(
    "learning_rate",
    None,
    "Of the optimizer." + _by_task("learning_rate"),
    lower_bound=0.0,
)
_MAX_GRADIENT_NORM = flags.DEFINE_float(
    "max_gradient_norm", 5.0, "Longer gradients are shortened to it.", lower_bound=1e-6
)
_ROUNDS_PER_EVALUATION = flags.DEFINE_integer(
    "rounds_per_evaluation", 5, "How often to measure.", lower_bound=1
)
_ROUNDS_PER_CHECKPOINT = flags.DEFINE_integer(
    "rounds_per_checkpoint",
    5,
    "How often to save what a killed run goes on from.",
    lower_bound=1,
)

flags.adopt_module_key_flags(single_run)  # --help shows them.

GROUPS = {
    "The run": ("task", "sampler", "data_dir", "results_dir", "seed"),
    "Sampling": (
        "num_negatives",
        "share_negatives",
        "logit_scale",
        "nu",
        "num_frequencies",
        "alpha",
        "leaf_size",
    ),
    "Model": ("embedding_dim", "num_units", "num_steps"),
    "Optimization": (
        "rounds",
        "steps_per_round",
        "batch_size",
        "optimizer",
        "learning_rate",
        "max_gradient_norm",
    ),
    "Evaluation and checkpoints": (
        "rounds_per_evaluation",
        "validation_words",
        "rounds_per_checkpoint",
    ),
}
_BY_TASK = (
    _NUM_NEGATIVES,
    _LOGIT_SCALE,
    _ROUNDS,
    _BATCH_SIZE,
    _OPTIMIZER,
    _LEARNING_RATE,
)

_METRICS = ("perplexity", "precision_at_1", "precision_at_3", "precision_at_5", "top1")
_COLUMNS = (
    "steps",
    "loss",
    *_METRICS,
    "clipped_share",
    "num_examples",
    "mean_cosine",
)

_OPTIMIZERS = {
    # The gradient of a class is small beside Keras' initial 0.1, which would make
    # Adagrad an SGD.
    "adagrad": functools.partial(
        tf.keras.optimizers.Adagrad, initial_accumulator_value=1e-6
    ),
    "sgd": tf.keras.optimizers.SGD,
}


def main() -> None:
    """Trains and prints the result."""
    single_run.set_defaults(_BY_TASK, _SETTINGS[_TASK.value])
    folder = single_run.open_folder(GROUPS, _COLUMNS, "examples")
    if folder is None:
        return
    task = _load_task()
    print(task.summary, flush=True)
    run = _build_run(task)
    single_run.train(
        run,
        folder,
        rounds=_ROUNDS.value,
        rounds_per_evaluation=_ROUNDS_PER_EVALUATION.value,
        rounds_per_checkpoint=_ROUNDS_PER_CHECKPOINT.value,
        plot=lambda: report.plot(
            {run.name: [folder.rows]},
            task.metric,
            task.metric_title,
            folder.path / "curves.png",
        ),
        examples="examples",
    )
    folder.write_weights(f"{run.name}.npz", run.weights)
    last = folder.rows[-1]
    values = {name: last[name] for name in _METRICS if name in last}
    text = f"{run.name}: " + ", ".join(
        f"{name} {task.format_metric(value)}" for name, value in values.items()
    )
    single_run.finish(folder, task.metric, text, values)


def _load_task() -> tasks.SampledSoftmaxTask:
    """Loads the data.

    Raises:
        InvalidInputError: If they are not there, damaged, or do not go with the flags.
    """
    if _TASK.value in ("ptb", "extreme") and not _DATA_DIR.value:
        raise InvalidInputError(f"--task={_TASK.value} needs --data_dir=DIR.")
    common = dict(
        embedding_dim=_EMBEDDING_DIM.value,
        logit_scale=_LOGIT_SCALE.value,
        batch_size=_BATCH_SIZE.value,
        seed=single_run.SEED.value,
    )
    if _TASK.value == "ptb":
        data = penn_treebank.load(_DATA_DIR.value)
        shortest = min(map(len, (data.train, data.valid[: _VALIDATION_WORDS.value])))
        if (shortest - 1) // _BATCH_SIZE.value < _NUM_STEPS.value:
            raise InvalidInputError(
                f"--batch_size={_BATCH_SIZE.value} parts of --num_steps="
                f"{_NUM_STEPS.value} words are more than a text of {shortest} has."
            )
        num_units, num_words = _NUM_UNITS.value, len(data.words)
        _check_memory(
            num_words,
            memory_needs.matrix("the LSTM", 8 * num_units, num_units)
            | memory_needs.matrix("words", num_words, num_units),
            _BATCH_SIZE.value * _NUM_STEPS.value,
        )
        return tasks.LanguageModel(
            data,
            num_steps=_NUM_STEPS.value,
            num_units=_NUM_UNITS.value,
            validation_words=_VALIDATION_WORDS.value,
            **common,
        )
    if _TASK.value == "extreme":
        try:
            data = extreme.load(_DATA_DIR.value)
            _check_memory(
                data.num_labels,
                memory_needs.matrix(
                    "features", data.num_features, _EMBEDDING_DIM.value
                ),
            )
            return tasks.ExtremeClassification(data, **common)
        except InvalidInputError:
            raise
        except ValueError as error:
            raise InvalidInputError(
                f"--data_dir={_DATA_DIR.value}: {error}."
            ) from error
    return _image_task()


def _check_memory(
    num_classes: int, encoder: dict[str, int], num_examples: int = 1
) -> None:
    """Refuses what cannot fit into memory, and buckets larger than all classes.

    Args:
        num_classes: n.
        encoder: What the encoder needs.
        num_examples: At least so many make a mini-batch.

    Raises:
        InvalidInputError: If so.
    """
    if _LEAF_SIZE.value is not None and _LEAF_SIZE.value > num_classes:
        raise InvalidInputError(
            f"--leaf_size={_LEAF_SIZE.value} is more than the n={num_classes} classes."
        )
    dim, is_shared = _EMBEDDING_DIM.value, _SHARE_NEGATIVES.value
    if _SAMPLER.value == FULL:
        step = memory_needs.matrix("logits", num_examples, num_classes)
    else:
        draws = _NUM_NEGATIVES.value * (1 if is_shared else num_examples)
        step = memory_needs.matrix("the embeddings of negatives", draws, dim)
    memory.check(
        memory_needs.sampling_tree(
            _SAMPLER.value, num_classes, dim, _NUM_FREQUENCIES.value, _LEAF_SIZE.value
        ),
        device_needs=encoder | memory_needs.matrix("W", num_classes, dim) | step,
    )


def _image_task() -> tasks.PooledImages:
    family = tasks.FAMILIES[_TASK.value]
    if _DATA_DIR.value and "data_dir" not in family.options:
        raise InvalidInputError(f"--task={_TASK.value} takes no --data_dir.")
    settings = family.settings["classification"]
    dataset = family.load(
        tasks.DataOptions(
            data_dir=_DATA_DIR.value,
            kind="classification",
            partition=family.partitions[0],
            image_size=settings.image_size,
        )
    )
    model_fn = functools.partial(
        models.FEATURE_EXTRACTORS[settings.model],
        dataset.image_shape,
        _EMBEDDING_DIM.value,
        seed=single_run.SEED.value,
    )
    _check_memory(
        dataset.num_classes, memory_needs.network("phi", model_fn, 1, copies=1)
    )
    task = tasks.Classification(dataset, model_fn)
    return tasks.PooledImages(
        task,
        functools.partial(
            training.pooled_batches, dataset, _BATCH_SIZE.value, single_run.SEED.value
        ),
        logit_scale=_LOGIT_SCALE.value,
    )


def _build_run(task: tasks.SampledSoftmaxTask) -> training.SampledSoftmaxRun:
    sampler = None
    if _SAMPLER.value != FULL:
        sampler = samplers.SAMPLERS[_SAMPLER.value](
            samplers.SamplerOptions(
                task.num_classes,
                task.embedding_dim,
                scale=task.logit_scale,
                alpha=_ALPHA.value,
                nu=_NU.value,
                num_frequencies=_NUM_FREQUENCIES.value,
                leaf_size=_LEAF_SIZE.value,
                seed=single_run.SEED.value,
            )
        )
    algorithm = algorithms.SampledSoftmax(
        task.encoder(),
        task.num_classes,
        task.embedding_dim,
        _OPTIMIZERS[_OPTIMIZER.value](_LEARNING_RATE.value),
        sampler,
        num_negatives=_NUM_NEGATIVES.value,
        logit_scale=task.logit_scale,
        share_negatives=_SHARE_NEGATIVES.value,
        max_gradient_norm=_MAX_GRADIENT_NORM.value,
        seed=single_run.SEED.value,
    )
    return training.SampledSoftmaxRun(
        _SAMPLER.value, task, algorithm, _STEPS_PER_ROUND.value
    )


if __name__ == "__main__":
    program.run(main, groups=GROUPS, paper="rf_softmax")
