"""Trains with sampled softmax, centrally, with negatives from one sampler.

    ./run.sh rf_softmax --task=ptb --data_dir=DIR --sampler=rff --results_dir=DIR
    ./run.sh rf_softmax --task=extreme --data_dir=DIR --sampler=exp --results_dir=DIR
    ./run.sh rf_softmax --task=omniglot --data_dir=DIR --results_dir=DIR

RF-softmax (Rawat et al., NeurIPS 2019) and the samplers it is compared with: an LSTM on
Penn Treebank (perplexity), one hidden layer on sparse features with very many labels
(precision@k), and the image tasks of `./run.sh train` (top-1). It is a research
baseline; README.md names a patent that is said to cover it.

The results folder has metrics.csv (a row per round of --steps_per_round steps),
curves.png and .pdf, the weights, flags.txt and run.json. The same flags resume a run
that was stopped or killed, which ends with the same bytes.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from experiments.common import (
    config,
    dataset_words,
    launch,
    memory_needs,
    option_words,
    program,
    run_encoder,
    runtime_config,
)
from tff_fedss import algorithms, memory, models, samplers, tasks, training
from tff_fedss.datasets.central import extreme, penn_treebank
from tff_fedss.errors import InvalidInputError

FULL = "full"
_IMAGES = tuple(
    name for name, s in tasks.DATASETS.items() if "classification" in s.settings
)


_SPARSE = dict(logit_scale=12.0, optimizer="adagrad", learning_rate=0.05)
_DENSE = dict(logit_scale=20.0, optimizer="sgd", learning_rate=0.1)
_SETTINGS = {
    "ptb": dict(_SPARSE, num_negatives=100, batch_size=20),
    "extreme": dict(_SPARSE, num_negatives=10, batch_size=32),
    "images": dict(_DENSE, num_negatives=20, batch_size=32),
}
_by_task = functools.partial(launch.by_dataset, _SETTINGS)


@dataclasses.dataclass(frozen=True)
class Config(runtime_config.DeviceConfig):
    """The flags of the program."""

    task: str = config.flag(
        "ptb",
        "The task: `ptb`, the next word of Penn Treebank; `extreme`, labels of rows "
        "with sparse features; or a data set of images, with the model of `./run.sh "
        "train`.",
        group="The run",
        words={
            "ptb": option_words.Word(),
            "extreme": option_words.Word(),
            **{name: dataset_words.FEDERATED[name] for name in _IMAGES},
        },
    )
    sampler: str = config.flag(
        "rff",
        "The distribution of negatives. `exp`: the softmax itself. `quadratic`: "
        "alpha (h.c)^2 + 1. `rff`: random Fourier features. `log_uniform`: Zipf's "
        "law, for text. `full`: no negatives.",
        choices=[FULL, *samplers.SAMPLERS],
    )
    data_dir: str | None = config.flag(
        None,
        "ptb: a folder or zip with ptb.train.txt, ptb.valid.txt and ptb.test.txt. "
        "extreme: a folder with a train and a test file, XMC (.txt) or sparse ARFF "
        "(.arff). Data sets of images: as for `./run.sh train`; "
        + dataset_words.DATA_DIR,
    )
    results_dir: str = launch.results_dir()
    seed: int = launch.seed()
    num_negatives: int | None = config.flag(
        None,
        "m, the negatives of each example." + _by_task("num_negatives"),
        group="Sampling",
        low=1,
    )
    logit_scale: float | None = config.flag(
        None,
        "tau: logits are tau h.c, of embeddings at length 1." + _by_task("logit_scale"),
        low=1e-6,
    )
    mask_positives: bool = config.flag(
        False, "Leave a row's other labels out of its softmax, for `extreme`."
    )
    nu: float = config.flag(
        4.0,
        "nu of rff's Gaussian kernel exp(-nu |h - c|^2 / 2); the poster's T is 1 / "
        "sqrt(nu). nu = tau is the softmax's kernel, but with few features its "
        "small values are noise, and are clipped: runs measure the clipped share, and "
        "warn (experiments/rf_softmax/README.md).",
        low=1e-6,
        high=300.0,  # Beyond it e^(-2 nu) may be 0, and classes are never drawn.
    )
    num_frequencies: int = config.flag(
        256, "D, of rff: there are 2 D features. See --nu.", low=1
    )
    alpha: float = config.flag(
        100.0, "alpha of the quadratic kernel.", low=0.0, high=1e30
    )
    leaf_size: int | None = config.flag(
        None,
        "Classes in a bucket at the bottom of the tree of rff or quadratic. Default: "
        "d / 2 for quadratic; for rff 1, or as few as fit in 1 GiB.",
        low=1,
    )
    embedding_dim: int = config.flag(
        64, "d, the dimension of inputs and classes.", group="Model", low=1
    )
    num_units: int = config.flag(
        128, "The width of the LSTM and of its words, for ptb.", low=1
    )
    num_steps: int = config.flag(
        10, "The words of each text in a mini-batch, for ptb.", low=1
    )
    rounds: int = config.flag(40, "How many rounds.", group="Optimization", low=1)
    steps_per_round: int = config.flag(100, "How many updates are a round.", low=1)
    batch_size: int | None = config.flag(
        None,
        "The mini-batch; for ptb, the texts side by side." + _by_task("batch_size"),
        low=1,
    )
    optimizer: str | None = config.flag(
        None,
        "The optimizer, which must not change classes without gradient."
        + _by_task("optimizer"),
        choices=("adagrad", "sgd"),
    )
    learning_rate: float | None = config.flag(
        None, "Learning rate of the optimizer." + _by_task("learning_rate"), low=0.0
    )
    max_gradient_norm: float = config.flag(
        5.0, "Clip the gradient, over all weights together, to this norm.", low=1e-6
    )
    rounds_per_evaluation: int = config.flag(
        5, "Rounds between two evaluations.", group="Evaluation and checkpoints", low=1
    )
    validation_words: int | None = config.flag(
        None,
        "Measure perplexity on the first words of the validation text, for ptb. "
        "Default: all.",
        low=1000,
    )
    rounds_per_checkpoint: int = launch.checkpoints(5)


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

# If much of the softmax's mass is in classes with clipped estimates, training differs
# from the softmax's. The poster has no number; at these, losses and weights diverge.
_MUCH_CLIPPED = 0.3

_OPTIMIZERS = {
    # The gradient of a class is small compared with Keras' initial 0.1, with which
    # Adagrad would be SGD.
    "adagrad": functools.partial(
        tf.keras.optimizers.Adagrad, initial_accumulator_value=1e-6
    ),
    "sgd": tf.keras.optimizers.SGD,
}


def main(config: Config) -> None:
    """Trains and prints the result."""
    name, options = config.chosen("task")
    columns = _COLUMNS
    if options.get("num_unseen_classes"):
        columns += (tasks.UNSEEN_METRIC,)
    config = config.filled(_SETTINGS.get(name, _SETTINGS["images"]))
    if config.precision == "mixed" and name not in _IMAGES:
        raise InvalidInputError(
            f"--precision=mixed goes with images; --task={config.task} has none."
        )
    launch.run(
        config,
        columns,
        _build_run,
        _finish,
        results=_METRICS,
        examples="examples",
        watch=_warn_once(config),
    )


def _finish(config: Config, run: training.Run, folder: training.ResultsFolder) -> str:
    """Writes the weights; returns the result in words."""
    folder.write_weights(f"{run.name}.npz", run.weights)
    if (chosen := config.chosen("task")).name in _IMAGES:
        settings = tasks.DATASETS[chosen.name].settings["classification"]
        image_input = run_encoder.federated_input(
            chosen.name, settings.image_size, chosen.options.get("resize_size")
        )
        run_encoder.write(
            folder,
            run_encoder.Encoder(settings.model, config.embedding_dim, image_input),
        )
    last = folder.rows[-1]
    measured = [name for name in _METRICS if name in last]
    texts = [f"{name} {run.task.format_metric(last[name])}" for name in measured]
    return "; ".join(filter(None, [", ".join(texts), _quality(config, folder.rows)]))


def _quality(config: Config, rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the last measurement of the sampler in words; empty if there is none."""
    for row in reversed(rows):
        if "effective_samples" in row:
            return (
                f"of m={config.num_negatives} negatives {row['effective_samples']:.3g} "
                f"are effective, and {row['clipped_mass']:.1%} of the partition sum is "
                "in classes whose estimates were clipped"
            )
    return ""


def _warn_once(config: Config) -> Callable[[training.Metrics], None]:
    """Returns a function that warns of a sampler that misses much of the softmax."""
    warned: list[str] = []

    def watch(metrics: training.Metrics) -> None:
        if warned or metrics.get("clipped_mass", 0.0) < _MUCH_CLIPPED:
            return
        warned.append(
            f"Warning: round {metrics['round']}: {_quality(config, [metrics])}: these "
            f"are hardly ever drawn, and weigh very much when they are. Lower "
            f"--nu={config.nu:g}, or raise --num_frequencies={config.num_frequencies}."
        )
        print(*warned, file=sys.stderr, flush=True)

    return watch


def _load_task(config: Config) -> tasks.SampledSoftmaxTask:
    if config.task in ("ptb", "extreme") and not config.data_dir:
        raise InvalidInputError(f"--task={config.task} needs --data_dir=DIR.")
    for flag, is_given, task in (
        ("mask_positives", config.mask_positives, "extreme"),
        ("validation_words", config.validation_words, "ptb"),
    ):
        if is_given and config.task != task:
            raise InvalidInputError(
                f"--{flag} goes with --task={task}, found --task={config.task}."
            )
    common = dict(
        embedding_dim=config.embedding_dim,
        logit_scale=config.logit_scale,
        batch_size=config.batch_size,
        seed=config.seed,
    )
    if config.task == "ptb":
        data = penn_treebank.load(config.data_dir)
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
            num_units=num_units,
            validation_words=config.validation_words,
            **common,
        )
    if config.task == "extreme":
        data = extreme.load(config.data_dir)
        features = memory_needs.matrix(
            "features", data.num_features, config.embedding_dim
        )
        _check_memory(config, data.num_labels, features)
        return tasks.ExtremeClassification(
            data, mask_positives=config.mask_positives, **common
        )
    return _image_task(config)


def _check_memory(
    config: Config, num_classes: int, encoder: dict[str, int], num_examples: int = 1
) -> None:
    """Checks that the run fits into memory, and that buckets are at most n."""
    if config.leaf_size is not None and config.leaf_size > num_classes:
        raise InvalidInputError(
            f"--leaf_size={config.leaf_size} is more than the n={num_classes} classes."
        )
    dim = config.embedding_dim
    if config.sampler == FULL:
        step = memory_needs.matrix("logits", num_examples, num_classes)
    else:
        draws = config.num_negatives * num_examples
        step = memory_needs.matrix("the embeddings of negatives", draws, dim)
    frequencies = config.num_frequencies if config.sampler == "rff" else 0
    memory.check(
        memory_needs.matrix("frequencies", dim, frequencies, copies=2),
        device_needs=encoder | memory_needs.matrix("W", num_classes, dim) | step,
    )


def _image_task(config: Config) -> tasks.PooledImages:
    chosen = config.chosen("task")
    spec = tasks.DATASETS[chosen.name]
    settings = spec.settings["classification"]
    dataset = spec.open(
        "classification",
        image_size=settings.image_size,
        **dataset_words.keywords(chosen, config.data_dir, "task"),
    )
    model_fn = functools.partial(
        models.FEATURE_EXTRACTORS[settings.model],
        dataset.image_shape,
        config.embedding_dim,
        seed=config.seed,
    )
    phi = memory_needs.network("phi", model_fn, 1, copies=1)
    _check_memory(config, dataset.num_classes, phi)
    return tasks.PooledImages(
        tasks.Classification(dataset, model_fn),
        functools.partial(
            training.pooled_batches, dataset, config.batch_size, config.seed
        ),
        logit_scale=config.logit_scale,
    )


def _build_run(config: Config) -> training.SampledSoftmaxRun:
    task = _load_task(config)
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
        max_gradient_norm=config.max_gradient_norm,
        seed=config.seed,
    )
    return training.SampledSoftmaxRun(
        config.sampler, task, algorithm, config.steps_per_round
    )


if __name__ == "__main__":
    program.run(main, Config(), paper="rf_softmax")
