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
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from experiments.common import (
    config,
    device_config,
    images_config,
    launch,
    memory_needs,
    program,
)
from experiments.rf_softmax import report
from tff_fedss import algorithms, memory, models, samplers, tasks, training
from tff_fedss.datasets.central import extreme, penn_treebank
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


@dataclasses.dataclass(frozen=True)
class Config(images_config.ImagesConfig, device_config.DeviceConfig):
    """What a user asks for."""

    task: str = config.flag(
        "ptb",
        "What to train: `ptb`, the next word of Penn Treebank; `extreme`, labels of "
        "rows with sparse features; or a data set of images, with the model that "
        "`./run.sh train` has for it.",
        group="The run",
        choices=_SETTINGS,
    )
    sampler: str = config.flag(
        "rff",
        "Where negatives come from. `full`: no sampling, the full softmax. `exp`: the "
        "softmax distribution itself. `quadratic`: alpha (h.c)^2 + 1. `rff`: random "
        "Fourier features. `log_uniform`: Zipf's law, for text.",
        choices=[FULL, *samplers.SAMPLERS],
    )
    data_dir: str | None = config.flag(
        None,
        "ptb: a folder or zip with ptb.train.txt, ptb.valid.txt and ptb.test.txt. "
        "extreme: a folder with a train and a test file, XMC (.txt) or sparse ARFF "
        "(.arff). Data sets of images: as for `./run.sh train`; "
        + images_config.DATA_DIR,
    )
    results_dir: str = launch.results_dir()
    seed: int = launch.seed()
    num_negatives: int | None = config.flag(
        None,
        "m, drawn for each example." + _by_task("num_negatives"),
        group="Sampling",
        low=1,
    )
    share_negatives: bool = config.flag(
        False,
        "Draw m negatives for the mini-batch, not for each example: cheaper, and "
        "noisier. An example leaves those out that are its target.",
    )
    logit_scale: float | None = config.flag(
        None,
        "tau: logits are tau h.c, of embeddings at length 1." + _by_task("logit_scale"),
        low=1e-6,
    )
    mask_positives: bool = config.flag(
        False,
        "Leave a row's other labels out of its softmax, for `extreme`: they are drawn, "
        "but do not push.",
    )
    nu: float = config.flag(
        4.0,
        "Of rff's Gaussian kernel exp(-nu |h - c|^2 / 2); the poster's T is 1 / "
        "sqrt(nu). nu = tau is the softmax's kernel, but only for endless D: between "
        "unrelated classes it is e^-nu, and its estimate is off by 1 / sqrt(2 D). "
        "Below the noise, estimates are clipped, and likely classes are hardly ever "
        "drawn. With D = 256, 4 learns Penn Treebank best of 0.5 to 12 (tau = 12); at "
        "12, over a third of the partition sum is in clipped classes. Runs measure "
        "what comes of it (`effective m`, `clipped mass`), and warn.",
        low=1e-6,
    )
    num_frequencies: int = config.flag(
        256, "D, of rff: there are 2 D features. See --nu.", low=1
    )
    alpha: float = config.flag(100.0, "Of the quadratic kernel.", low=0.0)
    leaf_size: int | None = config.flag(
        None,
        "How many classes make a bucket at the bottom of the tree of rff or quadratic: "
        "more take less memory and more time. Default: d / 2 for quadratic; for rff 1, "
        "or as few as fit in 1 GiB.",
        low=1,
    )
    embedding_dim: int = config.flag(
        64, "d, of inputs and classes.", group="Model", low=1
    )
    num_units: int = config.flag(
        128, "The width of the LSTM and of its words, for ptb.", low=1
    )
    num_steps: int = config.flag(
        10, "The words of each text in a mini-batch, for ptb.", low=1
    )
    rounds: int | None = config.flag(
        None, "How many rounds." + _by_task("rounds"), group="Optimization", low=1
    )
    steps_per_round: int = config.flag(100, "How many updates make a round.", low=1)
    batch_size: int | None = config.flag(
        None,
        "The mini-batch; for ptb, the texts side by side." + _by_task("batch_size"),
        low=1,
    )
    optimizer: str | None = config.flag(
        None,
        "Of those that leave classes alone that no example names."
        + _by_task("optimizer"),
        choices=("adagrad", "sgd"),
    )
    learning_rate: float | None = config.flag(
        None, "Of the optimizer." + _by_task("learning_rate"), low=0.0
    )
    max_gradient_norm: float = config.flag(
        5.0, "Clip the gradient, over all weights together, to this norm.", low=1e-6
    )
    rounds_per_evaluation: int = config.flag(
        5, "How often to measure.", group="Evaluation and checkpoints", low=1
    )
    validation_words: int | None = config.flag(
        None,
        "Measure perplexity on so many words from the start of the validation text, "
        "for ptb. Default: on all of them.",
        low=1000,
    )
    rounds_per_checkpoint: int = config.flag(
        5, "How often to save what a killed run goes on from.", low=1, decides=False
    )


_METRICS = ("perplexity", "precision_at_1", "precision_at_3", "precision_at_5", "top1")
_COLUMNS = (
    "steps",
    "loss",
    *_METRICS,
    "clipped_share",
    "effective_samples",
    "clipped_mass",
    "clipped_steps",
    "num_examples",
    "mean_cosine",
)

# Where the softmax's mass lies beyond what the sampler can tell, training is not that
# of the softmax. The poster has no number; at these, losses and weights run away.
_MUCH_CLIPPED = 0.3

_OPTIMIZERS = {
    # The gradient of a class is small beside Keras' initial 0.1, which would make
    # Adagrad an SGD.
    "adagrad": functools.partial(
        tf.keras.optimizers.Adagrad, initial_accumulator_value=1e-6
    ),
    "sgd": tf.keras.optimizers.SGD,
}


def main(config: Config) -> None:
    """Trains and prints the result."""
    images_config.check(config, config.task, flag="task")
    config = config.filled(_SETTINGS[config.task])
    if config.mixed_precision and config.task in ("ptb", "extreme"):
        raise InvalidInputError(
            f"--mixed_precision goes with images; --task={config.task} has none."
        )
    if config.mask_positives and config.task != "extreme":
        raise InvalidInputError(
            "--mask_positives goes with --task=extreme; an example of "
            f"--task={config.task} has one label."
        )
    folder = launch.open_folder(config, _COLUMNS, "examples")
    if folder is None:
        return
    task = _load_task(config)
    print(task.summary, flush=True)
    run = _build_run(config, task)
    launch.train(
        run,
        folder,
        rounds=config.rounds,
        rounds_per_evaluation=config.rounds_per_evaluation,
        rounds_per_checkpoint=config.rounds_per_checkpoint,
        plot=lambda: report.plot(
            {run.name: [folder.rows]},
            task.metric,
            task.metric_title,
            folder.path / "curves.png",
        ),
        examples="examples",
        watch=_Watch(config),
    )
    folder.write_weights(f"{run.name}.npz", run.weights)
    last = folder.rows[-1]
    values = {name: last[name] for name in _METRICS if name in last}
    text = f"{run.name}: " + ", ".join(
        f"{name} {task.format_metric(value)}" for name, value in values.items()
    )
    if told := _quality(config, folder.rows):
        text += f"; {told}"
    launch.finish(folder, task.metric, text, values)


def _quality(config: Config, rows: Sequence[Mapping[str, Any]]) -> str:
    """What the last measurement says of the sampler; empty if there is none."""
    measured = [row for row in rows if "effective_samples" in row]
    if not measured:
        return ""
    last = measured[-1]
    return (
        f"of m={config.num_negatives} negatives {last['effective_samples']:.3g} are "
        f"effective, and {last['clipped_mass']:.1%} of the partition sum is in classes "
        "whose estimates were clipped"
    )


class _Watch:
    """Warns once of a sampler that does not see what the softmax weighs."""

    def __init__(self, config: Config):
        self._config = config
        self._has_warned = False

    def __call__(self, metrics: training.Metrics) -> None:
        if self._has_warned or metrics.get("clipped_mass", 0.0) < _MUCH_CLIPPED:
            return
        self._has_warned = True
        config = self._config
        cure = f"Lower --nu={config.nu:g}, or raise "
        cure += f"--num_frequencies={config.num_frequencies}."
        print(
            f"Warning: round {metrics['round']}: {_quality(config, [metrics])}: these "
            f"are hardly ever drawn, and weigh very much when they are. {cure}",
            file=sys.stderr,
            flush=True,
        )


def _load_task(config: Config) -> tasks.SampledSoftmaxTask:
    """Loads the data.

    Raises:
        InvalidInputError: If they are not there, damaged, or do not go with the flags.
    """
    if config.task in ("ptb", "extreme") and not config.data_dir:
        raise InvalidInputError(f"--task={config.task} needs --data_dir=DIR.")
    common = dict(
        embedding_dim=config.embedding_dim,
        logit_scale=config.logit_scale,
        batch_size=config.batch_size,
        seed=config.seed,
    )
    if config.task == "ptb":
        data = penn_treebank.load(config.data_dir)
        shortest = min(map(len, (data.train, data.valid[: config.validation_words])))
        if (shortest - 1) // config.batch_size < config.num_steps:
            raise InvalidInputError(
                f"--batch_size={config.batch_size} parts of --num_steps="
                f"{config.num_steps} words are more than a text of {shortest} has."
            )
        num_units, num_words = config.num_units, len(data.words)
        _check_memory(
            config,
            num_words,
            memory_needs.matrix("the LSTM", 8 * num_units, num_units)
            | memory_needs.matrix("words", num_words, num_units),
            config.batch_size * config.num_steps,
        )
        return tasks.LanguageModel(
            data,
            num_steps=config.num_steps,
            num_units=config.num_units,
            validation_words=config.validation_words,
            **common,
        )
    if config.task == "extreme":
        try:
            data = extreme.load(config.data_dir)
            _check_memory(
                config,
                data.num_labels,
                memory_needs.matrix(
                    "features", data.num_features, config.embedding_dim
                ),
            )
            return tasks.ExtremeClassification(
                data, mask_positives=config.mask_positives, **common
            )
        except InvalidInputError:
            raise
        except ValueError as error:
            raise InvalidInputError(
                f"--data_dir={config.data_dir}: {error}."
            ) from error
    return _image_task(config)


def _check_memory(
    config: Config, num_classes: int, encoder: dict[str, int], num_examples: int = 1
) -> None:
    """Refuses what cannot fit into memory, and buckets larger than all classes.

    Args:
        config: The flags.
        num_classes: n.
        encoder: What the encoder needs.
        num_examples: At least so many make a mini-batch.

    Raises:
        InvalidInputError: If so.
    """
    if config.leaf_size is not None and config.leaf_size > num_classes:
        raise InvalidInputError(
            f"--leaf_size={config.leaf_size} is more than the n={num_classes} classes."
        )
    dim, is_shared = config.embedding_dim, config.share_negatives
    if config.sampler == FULL:
        step = memory_needs.matrix("logits", num_examples, num_classes)
    else:
        draws = config.num_negatives * (1 if is_shared else num_examples)
        step = memory_needs.matrix("the embeddings of negatives", draws, dim)
    memory.check(
        memory_needs.sampling_tree(
            config.sampler, num_classes, dim, config.num_frequencies, config.leaf_size
        ),
        device_needs=encoder | memory_needs.matrix("W", num_classes, dim) | step,
    )


def _image_task(config: Config) -> tasks.PooledImages:
    family = tasks.FAMILIES[config.task]
    if config.data_dir and "data_dir" not in family.options:
        raise InvalidInputError(f"--task={config.task} takes no --data_dir.")
    settings = family.settings["classification"]
    dataset = family.load(
        tasks.DataOptions(
            data_dir=config.data_dir,
            kind="classification",
            partition=family.partitions[0],
            image_size=settings.image_size,
            **images_config.given(config),
        )
    )
    model_fn = functools.partial(
        models.FEATURE_EXTRACTORS[settings.model],
        dataset.image_shape,
        config.embedding_dim,
        seed=config.seed,
    )
    _check_memory(
        config, dataset.num_classes, memory_needs.network("phi", model_fn, 1, copies=1)
    )
    task = tasks.Classification(dataset, model_fn)
    return tasks.PooledImages(
        task,
        functools.partial(
            training.pooled_batches, dataset, config.batch_size, config.seed
        ),
        logit_scale=config.logit_scale,
    )


def _build_run(
    config: Config, task: tasks.SampledSoftmaxTask
) -> training.SampledSoftmaxRun:
    sampler = None
    if config.sampler != FULL:
        sampler = samplers.SAMPLERS[config.sampler](
            samplers.SamplerOptions(
                task.num_classes,
                task.embedding_dim,
                scale=task.logit_scale,
                alpha=config.alpha,
                nu=config.nu,
                num_frequencies=config.num_frequencies,
                leaf_size=config.leaf_size,
                seed=config.seed,
            )
        )
    algorithm = algorithms.SampledSoftmax(
        task.encoder(),
        task.num_classes,
        task.embedding_dim,
        _OPTIMIZERS[config.optimizer](config.learning_rate),
        sampler,
        num_negatives=config.num_negatives,
        logit_scale=task.logit_scale,
        share_negatives=config.share_negatives,
        max_gradient_norm=config.max_gradient_norm,
        seed=config.seed,
    )
    return training.SampledSoftmaxRun(
        config.sampler,
        task,
        algorithm,
        config.steps_per_round,
        rounds_per_measurement=config.rounds_per_evaluation,
    )


if __name__ == "__main__":
    program.run(main, Config(), paper="rf_softmax")
