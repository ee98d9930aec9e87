r"""Trains with Partial FC: W over very many classes, split over devices and sampled.

    ./run.sh partial_fc --results_dir=DIR                 # generated identities
    ./run.sh partial_fc --cell=omniglot/mini/pprn_0.1 --data_dir=OMNIGLOT \
        --results_dir=DIR
    ./run.sh partial_fc --dataset=faces --data_dir=FACES --results_dir=DIR
    ./run.sh partial_fc --cell=ten_million/mini/pprn_0.1 --num_devices=8 \
        --results_dir=DIR

An et al., "Partial FC" (arXiv 2010.05222): a step takes all positives of the mini-batch
and a share r of the other classes (PPRN), and only their rows of W are touched. The
metric is TAR at FAR = 0.001 between test images; ca_pcc is the mean cosine between
features and the centres of their classes.

--num_classes=5000 --rounds=5 reaches a TAR of about 97 % after 500 steps, in half a
minute of processor time, start-up included. A step over a million classes at r = 0.1
takes 0.2 seconds of processor time (mini-batches of 64, the small model of generated
identities).

The results folder has metrics.csv (a row per round of --steps_per_round steps),
curves.png and .pdf, the weights, flags.txt and run.json. The same flags resume a run
that was stopped or killed: on the same number of devices with the same bytes, on more
or fewer (--num_devices) with the same losses up to rounding.
"""

import dataclasses
import functools
import math
from typing import Any

from experiments.common import (
    config,
    dataset_words,
    launch,
    memory_needs,
    program,
    run_encoder,
    runtime_config,
)
from tff_fedss import (
    algorithms,
    losses,
    memory,
    models,
    runtime,
    samplers,
    tasks,
    training,
)
from tff_fedss.datasets import omniglot
from tff_fedss.datasets.central import identities
from tff_fedss.datasets.central.lfw_pairs import LfwPairs
from tff_fedss.errors import InvalidInputError

_SETTINGS: dict[str, dict[str, Any]] = {
    "generated": dict(model="mlp", num_classes=100_000),
    "omniglot": dict(model="small_cnn", image_size=28),
    "faces": dict(model="mobilenet_v3_large", image_size=112),
    "images": dict(model="small_cnn", image_size=56),
    "tfds": dict(model="small_cnn", image_size=56),
}
_WORDS = dataset_words.central(_SETTINGS, identities.of_images)
_WORDS["faces"] = _WORDS["images"]  # Images, with their own defaults.
# Omniglot's held-out drawers and left-out drawers, of twenty.
_DRAWERS = {
    "test": {},
    "validation": dict(test_drawers=(13, 14, 15, 16), unused_drawers=(17, 18, 19, 20)),
}
_MODELS = {"mlp": models.mlp, **models.FEATURE_EXTRACTORS}


@dataclasses.dataclass(frozen=True)
class Config(runtime_config.DeviceConfig):
    """The flags of the program."""

    dataset: str = config.flag(
        "generated",
        "`generated`: vectors of any number of identities; `omniglot`: all 1,623 "
        "characters, tested on other drawers; `images`: your own, a class for each "
        "identity, tested on a tenth of them; `faces`: the same with a larger "
        "model; `tfds`: any image data set of TFDS.",
        group="The run",
        words=_WORDS,
    )
    data_dir: str | None = config.flag(
        None,
        "omniglot: as for `./run.sh train`; without it, TFDS downloads them. faces and "
        + dataset_words.DATA_DIR,
    )
    results_dir: str = launch.results_dir()
    seed: int = launch.seed()
    num_classes: int | None = config.flag(
        None,
        "n, for generated identities; 100,000 by default.",
        group="Classes and devices",
        low=2,
    )
    sample_rate: float = config.flag(
        0.1,
        "r, the share of the negatives in a step. 1: the full softmax.",
        low=1e-9,
        high=1.0,
    )
    sampling: str = config.flag(
        "pprn",
        "`pprn`: all positives of the mini-batch, and a share r of the other "
        "classes. `all_random`: a share r of all classes; an example whose class is "
        "not among them is left out of the step.",
        choices=samplers.SAMPLINGS,
    )
    num_devices: int | None = config.flag(
        None,
        "Number of devices for W and the mini-batch: GPUs, or logical devices of "
        "the CPU. Default: all GPUs, or 1.",
        low=1,
        decides=False,
    )
    num_strata: int = config.flag(
        16,
        "Number of equal parts of the classes that are sampled separately: the "
        "largest number of devices.",
        low=1,
    )
    margin: str = config.flag(
        "none",
        "The margin of targets: `arcface` s cos(theta + m), as in its authors' code "
        "until 2022; `cosface` s (cos(theta) - m).",
        group="Loss",
        choices=losses.MARGINS,
    )
    margin_size: float = config.flag(
        0.35, "m, in radians for arcface.", low=0.0, high=1.5
    )
    logit_scale: float = config.flag(30.0, "s: logits are s cos(theta).", low=1e-6)
    model: str | None = config.flag(
        None,
        "phi." + launch.by_dataset(_SETTINGS, "model"),
        group="Model",
        choices=_MODELS,
    )
    embedding_dim: int = config.flag(
        64, "d, the dimension of features and classes.", low=1
    )
    image_size: int | None = config.flag(
        None,
        "Height and width of images, in pixels."
        + launch.by_dataset(_SETTINGS, "image_size"),
        low=8,
    )
    rounds: int = config.flag(40, "How many rounds.", group="Optimization", low=1)
    steps_per_round: int = config.flag(100, "How many updates are a round.", low=1)
    batch_size: int = config.flag(64, "The mini-batch, of all devices together.", low=1)
    learning_rate: float = config.flag(0.01, "Rate of SGD, for phi and W.", low=0.0)
    momentum: float = config.flag(
        0.9, "Momentum of SGD, for phi and W.", low=0.0, high=0.9999
    )
    weight_decay: float = config.flag(
        0.0,
        "Weight decay of phi, and of the rows of W in a step. 0.0005 in the "
        "authors' code.",
        low=0.0,
    )
    flip: bool = config.flag(
        False, "Mirror half of the training images, left to right."
    )
    evaluate_on: str = config.flag(
        "test",
        "With omniglot, the held-out drawers to measure on: `test`, drawers 17 to "
        "20, or `validation`, drawers 13 to 16, with 17 to 20 left out.",
        group="Evaluation and checkpoints",
        choices=("test", "validation"),
    )
    lfw_pairs: str | None = config.flag(
        None, "A list of pairs like LFW's pairs.txt, to be measured in addition."
    )
    lfw_dir: str | None = config.flag(
        None, "The images of --lfw_pairs, as NAME/NAME_0001.jpg."
    )
    rounds_per_evaluation: int = config.flag(
        5, "Rounds between two evaluations.", low=1
    )
    rounds_per_checkpoint: int = launch.checkpoints(5)


_RESULTS = (
    "tar_at_far",
    "pair_accuracy",
    "map_at_r",
    "top1",
    "lfw_accuracy",
    "lfw_std",
    "ca_pcc",
)
_COLUMNS = (
    "steps",
    "loss",
    *_RESULTS,
    "trained_share",
    "classes_per_step",
    "num_examples",
)


def main(config: Config) -> None:
    """Trains and prints the result."""
    config = _with_defaults(config)
    launch.run(
        config,
        _COLUMNS,
        _build_run,
        _finish,
        results=_RESULTS,
        examples="examples",
        curves=("ca_pcc", "loss"),
    )


def _finish(config: Config, run: training.Run, folder: training.ResultsFolder) -> str:
    """Writes the weights; returns the result in words."""
    folder.write_weights(f"{run.name}.npz", run.weights)
    if config.dataset != "generated":
        run_encoder.write(folder, _encoder(config))
    last = folder.rows[-1]
    return ", ".join(f"{name} {last[name]:.4f}" for name in _RESULTS if name in last)


def _encoder(config: Config) -> run_encoder.Encoder:
    image_input = (
        run_encoder.federated_input("omniglot", config.image_size)
        if config.dataset == "omniglot"
        else models.ImageInput(config.image_size, resizing="bilinear")
    )
    return run_encoder.Encoder(config.model, config.embedding_dim, image_input)


def _with_defaults(config: Config) -> Config:
    """Sets flags by the data, and checks that they suit each other."""
    dataset = config.chosen("dataset").name
    is_generated = dataset == "generated"
    has_colours = not is_generated and dataset != "omniglot"
    for flag, is_given, fits, those in (
        ("data_dir", config.data_dir, not is_generated, "images"),
        ("image_size", config.image_size, not is_generated, "images"),
        ("flip", config.flip, not is_generated, "images"),
        ("lfw_pairs", config.lfw_pairs, has_colours, "images in colour"),
        ("num_classes", config.num_classes, is_generated, "--dataset=generated"),
        (
            "evaluate_on=validation",
            config.evaluate_on == "validation",
            dataset == "omniglot",
            "--dataset=omniglot",
        ),
    ):
        if is_given and not fits:
            raise InvalidInputError(
                f"--{flag} goes with {those}, found --dataset={dataset}."
            )
    config = config.filled(_SETTINGS[dataset])
    if (config.model == "mlp") != is_generated:
        raise InvalidInputError(
            f"--model={config.model} does not go with --dataset={dataset}: mlp is for "
            "vectors (generated), the others are for images."
        )
    launch.check_image_size(config, "model")
    if (config.lfw_pairs is None) != (config.lfw_dir is None):
        raise InvalidInputError(
            "--lfw_pairs=FILE and --lfw_dir=DIR go together: the list, and its images."
        )
    memory.check(memory_needs.images(1, config.image_size or 1))
    return config


def _load_task(config: Config) -> tasks.IdentityVerification:
    dataset = config.chosen("dataset")
    if dataset.name == "generated":
        data = identities.GeneratedIdentities(config.num_classes, seed=config.seed)
    elif dataset.name == "omniglot":
        data = omniglot.load_identities(
            config.data_dir,
            image_size=config.image_size,
            **_DRAWERS[config.evaluate_on],
        )
    else:
        data = identities.of_images(
            dataset_words.open_index(dataset, config.data_dir),
            image_size=config.image_size,
            **dataset_words.held_out(dataset),
        )
    model_fn = functools.partial(
        _MODELS[config.model],
        data.example_shape,
        config.embedding_dim,
        seed=config.seed,
    )
    # SGD with momentum: besides weights and gradient, one number for each weight.
    memory.check(
        memory_needs.matrix(
            "a mini-batch", config.batch_size, math.prod(data.example_shape)
        ),
        device_needs=memory_needs.matrix(
            "W and its momentum", data.num_classes, config.embedding_dim, 2
        )
        | memory_needs.network("phi", model_fn, config.batch_size, copies=3),
    )
    lfw = None
    if config.lfw_pairs is not None:
        lfw = LfwPairs(config.lfw_pairs, config.lfw_dir, data.example_shape[0])
    return tasks.IdentityVerification(
        data,
        model_fn,
        logit_scale=config.logit_scale,
        batch_size=config.batch_size,
        seed=config.seed,
        flip=config.flip,
        lfw=lfw,
    )


def _build_run(config: Config) -> training.StepRun:
    """Distributes the classes over the devices."""
    mesh = runtime.local_mesh(config.num_devices)
    for name in ("num_strata", "batch_size"):
        if len(mesh) > getattr(config, name):
            raise InvalidInputError(
                f"--num_devices={len(mesh)} is more than --{name}="
                f"{getattr(config, name)}."
            )
    task = _load_task(config)
    algorithm = algorithms.PartialFC(
        task.encoder(),
        task.num_classes,
        task.embedding_dim,
        mesh,
        margin=losses.Margin(config.margin, task.logit_scale, config.margin_size),
        sample_rate=config.sample_rate,
        sampling=config.sampling,
        num_strata=config.num_strata,
        learning_rate=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        seed=config.seed,
    )
    rate = config.sample_rate
    name = "full" if rate == 1 else f"{config.sampling}_{rate:g}"
    return training.StepRun(name, task, algorithm, config.steps_per_round)


if __name__ == "__main__":
    program.run(main, Config(), paper="partial_fc")
