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

--num_classes=5000 --rounds=5 comes to a TAR of about 95 % after 500 steps, in half a
minute of processor time, start-up included. A step over a million classes at r = 0.1
takes 0.2 seconds of it (mini-batches of 64, the small model of generated identities).

The results folder has metrics.csv (a row per round of --steps_per_round steps),
curves.png and .pdf, the weights, flags.txt and run.json. A run that was stopped or
killed goes on when it is given the same flags again: on as many devices with the same
bytes, and on more or fewer (--num_devices) with the same losses but for rounding.
"""

import dataclasses
import functools
import math

from experiments.common import (
    config,
    device_config,
    images_config,
    launch,
    memory_needs,
    program,
)
from experiments.partial_fc import report
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


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a flag is by default; the attributes have the flags' names."""

    model: str
    image_size: int | None = None
    num_classes: int | None = None


_SETTINGS = {
    "generated": _Settings("mlp", num_classes=100_000),
    "omniglot": _Settings("small_cnn", 28),
    "faces": _Settings("mobilenet_v3_large", 112),
    **dict.fromkeys(images_config.DATASETS, _Settings("small_cnn", 56)),
}
# Of Omniglot's twenty, who is held out and who is left out.
_DRAWERS = {
    "test": {},
    "validation": dict(test_drawers=(13, 14, 15, 16), unused_drawers=(17, 18, 19, 20)),
}
# Read as images are, with defaults of their own.
_READ_AS = {"faces": "images"}
_MODELS = {"mlp": models.mlp, **models.FEATURE_EXTRACTORS}


@dataclasses.dataclass(frozen=True)
class Config(images_config.ImagesConfig, device_config.DeviceConfig):
    """What a user asks for."""

    dataset: str = config.flag(
        "generated",
        "`generated`: vectors of as many identities as you like; `omniglot`: all 1,623 "
        "characters, tested on other hands; `images`: your own, a class for each "
        "identity, tested on a tenth of them; `faces`: the same with a larger model; "
        "`tfds`: any image data set of TFDS.",
        group="The run",
        choices=_SETTINGS,
    )
    data_dir: str | None = config.flag(
        None,
        "omniglot: as for `./run.sh train`; without it, TFDS downloads them. faces and "
        + images_config.DATA_DIR,
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
        "`pprn`: all positives of the mini-batch, and a share r of the other classes. "
        "`all_random`: a share r of all classes; an example whose own is not among "
        "them is left out of the step.",
        choices=samplers.SAMPLINGS,
    )
    positives_cutoff: bool = config.flag(
        False,
        "With pprn, take no negatives of a stratum whose positives alone are more than "
        "r of its classes, as the authors' code does. The article's formula takes a "
        "share r of the others in any case.",
    )
    num_devices: int | None = config.flag(
        None,
        "Over how many devices W and the mini-batch are split: GPUs, or else logical "
        "devices of the CPU. Default: all GPUs, or 1. It may differ when a run goes "
        "on.",
        low=1,
        decides=False,
    )
    num_strata: int = config.flag(
        16,
        "Into how many equal parts the classes are cut for the sampling, each drawn "
        "from alone. A device holds some of them whole, so that it is also the largest "
        "number of devices; it decides the draws, and the number of devices does not.",
        low=1,
    )
    margin: str = config.flag(
        "none",
        "What targets must be nearer by: `arcface` s cos(theta + m), as its authors' "
        "code had it until 2022, continued beyond pi; `arcface_straight`, as it has it "
        "since, with the gradient straight through the margin; `cosface` s (cos(theta) "
        "- m).",
        group="Loss",
        choices=losses.MARGINS,
    )
    margin_size: float = config.flag(
        0.35, "m, in radians for arcface.", low=0.0, high=1.5
    )
    logit_scale: float = config.flag(30.0, "s: logits are s cos(theta).", low=1e-6)
    model: str | None = config.flag(
        None,
        "phi. Default: generated mlp, faces mobilenet_v3_large, the others small_cnn.",
        group="Model",
        choices=_MODELS,
    )
    embedding_dim: int = config.flag(64, "d, of features and classes.", low=1)
    image_size: int | None = config.flag(
        None, "Pixels a side. Default: omniglot 28, faces 112, the others 56.", low=8
    )
    rounds: int = config.flag(40, "How many rounds.", group="Optimization", low=1)
    steps_per_round: int = config.flag(100, "How many updates make a round.", low=1)
    batch_size: int = config.flag(64, "The mini-batch, of all devices together.", low=1)
    learning_rate: float = config.flag(0.01, "Of SGD, for phi and W.", low=0.0)
    momentum: float = config.flag(0.9, "Of SGD, likewise.", low=0.0, high=0.9999)
    weight_decay: float = config.flag(
        0.0,
        "Times a weight, added to its gradient: of phi, and of the rows of W in a "
        "step. 0.0005 in the authors' code.",
        low=0.0,
    )
    flip: bool = config.flag(
        False, "Mirror half of the training images, left to right."
    )
    evaluate_on: str = config.flag(
        "test",
        "With omniglot, what is held out and measured: `test`, drawers 17 to 20; or "
        "`validation`, drawers 13 to 16, with 17 to 20 left out altogether: to choose "
        "rates by, without the test.",
        group="Evaluation and checkpoints",
        choices=("test", "validation"),
    )
    lfw_pairs: str | None = config.flag(
        None,
        "A list of pairs like LFW's pairs.txt, to be measured, too: mean and standard "
        "deviation over its folds.",
    )
    lfw_dir: str | None = config.flag(
        None, "The images of --lfw_pairs, as NAME/NAME_0001.jpg."
    )
    rounds_per_evaluation: int = config.flag(5, "How often to measure.", low=1)
    rounds_per_checkpoint: int = config.flag(
        5,
        "How often to save what a killed run goes on from: 8 n d bytes, twice over.",
        low=1,
        decides=False,
    )


_METRICS = (
    "tar_at_far",
    "pair_accuracy",
    "map_at_r",
    "top1",
    "lfw_accuracy",
    "lfw_std",
)
_COLUMNS = (
    "steps",
    "loss",
    *_METRICS,
    "ca_pcc",
    "trained_share",
    "classes_per_step",
    "num_examples",
)


def main(config: Config) -> None:
    """Trains and prints the result."""
    config = _with_defaults(config)
    folder = launch.open_folder(config, _COLUMNS, "examples")
    if folder is None:
        return
    mesh = runtime.local_mesh(config.num_devices)
    task = _load_task(config)
    print(task.summary, flush=True)
    run = _build_run(config, task, mesh)
    launch.train(
        run,
        folder,
        rounds=config.rounds,
        rounds_per_evaluation=config.rounds_per_evaluation,
        rounds_per_checkpoint=config.rounds_per_checkpoint,
        plot=lambda: report.plot({run.name: [folder.rows]}, folder.path / "curves.png"),
        examples="examples",
    )
    folder.write_weights(f"{run.name}.npz", run.weights)
    last = folder.rows[-1]
    values = {name: last[name] for name in (*_METRICS, "ca_pcc") if name in last}
    text = f"{run.name}: " + ", ".join(f"{k} {v:.4f}" for k, v in values.items())
    launch.finish(folder, task.metric, text, values)


def _with_defaults(config: Config) -> Config:
    """Gives flags the values of the data, and checks that they go together.

    Raises:
        InvalidInputError: If they do not.
    """
    dataset = config.dataset
    if dataset == "faces" and not config.data_dir:
        raise InvalidInputError("--dataset=faces needs --data_dir=DIR.")
    images_config.check(config, _READ_AS.get(dataset, dataset))
    if dataset == "generated":
        for name in ("data_dir", "image_size"):
            if getattr(config, name) is not None:
                raise InvalidInputError(f"--dataset=generated takes no --{name}.")
    elif config.num_classes is not None:
        raise InvalidInputError(
            "--num_classes goes with --dataset=generated only; "
            f"--dataset={dataset} has its own."
        )
    config = config.filled(_SETTINGS[dataset])
    if (config.model == "mlp") != (dataset == "generated"):
        raise InvalidInputError(
            f"--model={config.model} does not go with --dataset={dataset}: mlp is for "
            "vectors (generated), the others are for images."
        )
    if config.model.startswith("mobilenet") and config.image_size < 32:
        raise InvalidInputError(
            f"--model={config.model} needs --image_size of at least 32, found "
            f"{config.image_size}."
        )
    if (config.lfw_pairs is None) != (config.lfw_dir is None):
        raise InvalidInputError(
            "--lfw_pairs=FILE and --lfw_dir=DIR go together: the list, and its images."
        )
    if dataset == "generated" and (config.flip or config.lfw_pairs):
        name = "flip" if config.flip else "lfw_pairs"
        raise InvalidInputError(
            f"--{name} goes with images; --dataset=generated has vectors."
        )
    if config.evaluate_on != "test" and dataset != "omniglot":
        raise InvalidInputError(
            f"--evaluate_on={config.evaluate_on} goes with --dataset=omniglot."
        )
    if config.positives_cutoff and config.sampling != "pprn":
        raise InvalidInputError("--positives_cutoff goes with --sampling=pprn.")
    for name in ("num_strata", "batch_size"):
        limit = getattr(config, name)
        if (config.num_devices or 1) > limit:
            raise InvalidInputError(
                f"--num_devices={config.num_devices} is more than --{name}={limit}."
            )
    memory.check(memory_needs.images(1, config.image_size or 1))
    return config


def _load_task(config: Config) -> tasks.IdentityVerification:
    """Loads the data.

    Raises:
        InvalidInputError: If they are not there, or damaged.
    """
    if config.dataset == "generated":
        data = identities.GeneratedIdentities(config.num_classes, seed=config.seed)
    elif config.dataset == "omniglot":
        data = omniglot.load_identities(
            config.data_dir,
            image_size=config.image_size,
            **_DRAWERS[config.evaluate_on],
        )
    else:
        data = identities.of_images(
            images_config.open_index(
                config, _READ_AS.get(config.dataset, config.dataset)
            ),
            image_size=config.image_size,
            **images_config.held_out(config),
        )
    model_fn = functools.partial(
        _MODELS[config.model],
        data.example_shape,
        config.embedding_dim,
        seed=config.seed,
    )
    # SGD with momentum: beside weights and gradient, there is one number for each.
    memory.check(
        memory_needs.matrix(
            "a mini-batch", config.batch_size, math.prod(data.example_shape)
        ),
        device_needs=memory_needs.matrix(
            "W and its momentum", data.num_classes, config.embedding_dim, 2
        )
        | memory_needs.network("phi", model_fn, config.batch_size, copies=3),
    )
    return tasks.IdentityVerification(
        data,
        model_fn,
        logit_scale=config.logit_scale,
        batch_size=config.batch_size,
        seed=config.seed,
        flip=config.flip,
        lfw=None
        if config.lfw_pairs is None
        else LfwPairs(config.lfw_pairs, config.lfw_dir, data.example_shape[0]),
    )


def _build_run(
    config: Config, task: tasks.IdentityVerification, mesh: runtime.DeviceMesh
) -> training.StepRun:
    """Puts the classes on the devices.

    Raises:
        InvalidInputError: If there are more devices than strata or examples, or more
            strata than classes.
    """
    for count, name, limit, of in (
        (len(mesh), "num_devices", config.num_strata, "--num_strata"),
        (len(mesh), "num_devices", config.batch_size, "--batch_size"),
        (config.num_strata, "num_strata", task.num_classes, "n"),
    ):
        if count > limit:
            raise InvalidInputError(f"--{name}={count} is more than {of}={limit}.")
    algorithm = algorithms.PartialFC(
        task.encoder(),
        task.num_classes,
        task.embedding_dim,
        mesh,
        margin=losses.Margin(config.margin, task.logit_scale, config.margin_size),
        sample_rate=config.sample_rate,
        sampling=config.sampling,
        positives_cutoff=config.positives_cutoff,
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
