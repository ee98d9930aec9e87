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

from absl import flags

from experiments.common import launch as single_run
from experiments.common import memory_needs, program
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
from tff_fedss.datasets import identities, identity_folders, omniglot
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
}
_MODELS = {"mlp": models.mlp, **models.FEATURE_EXTRACTORS}

_DATASET = flags.DEFINE_enum(
    "dataset",
    "generated",
    list(_SETTINGS),
    "`generated`: vectors of as many identities as you like; `omniglot`: all 1,623 "
    "characters, tested on other hands; `faces`: a folder for each identity, tested on "
    "a tenth of them.",
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "omniglot: as for `./run.sh train`; without it, TFDS downloads them. faces: a "
    "folder of <identity>/<image>.jpg or .png.",
)
_NUM_CLASSES = flags.DEFINE_integer(
    "num_classes",
    None,
    "n, for generated identities; 100,000 by default.",
    lower_bound=2,
)
_IMAGE_SIZE = flags.DEFINE_integer(
    "image_size",
    None,
    "Pixels a side. Default: omniglot 28, faces 112.",
    lower_bound=8,
)
_SAMPLE_RATE = flags.DEFINE_float(
    "sample_rate",
    0.1,
    "r, the share of the negatives in a step. 1: the full softmax.",
    lower_bound=1e-9,
    upper_bound=1.0,
)
_SAMPLING = flags.DEFINE_enum(
    "sampling",
    "pprn",
    samplers.SAMPLINGS,
    "`pprn`: all positives of the mini-batch, and a share r of the other classes. "
    "`all_random`: a share r of all classes; an example whose own is not among them is "
    "left out of the step.",
)
_NUM_STRATA = flags.DEFINE_integer(
    "num_strata",
    16,
    "Into how many equal parts the classes are cut for the sampling, each drawn from "
    "alone. A device holds some of them whole, so that it is also the largest number "
    "of devices; it decides the draws, and the number of devices does not.",
    lower_bound=1,
)
_NUM_DEVICES = flags.DEFINE_integer(
    "num_devices",
    None,
    "Over how many devices W and the mini-batch are split: GPUs, or else logical "
    "devices of the CPU. Default: all GPUs, or 1. It may differ when a run goes on.",
    lower_bound=1,
)
_MARGIN = flags.DEFINE_enum(
    "margin",
    "none",
    list(losses.MARGINS),
    "What targets must be nearer by: `arcface` s cos(theta + m), `cosface` "
    "s (cos(theta) - m).",
)
_MARGIN_SIZE = flags.DEFINE_float(
    "margin_size", 0.35, "m, in radians for arcface.", lower_bound=0, upper_bound=1.5
)
_LOGIT_SCALE = flags.DEFINE_float(
    "logit_scale", 30.0, "s: logits are s cos(theta).", lower_bound=1e-6
)
_MODEL = flags.DEFINE_enum(
    "model",
    None,
    list(_MODELS),
    "phi. Default: generated mlp, omniglot small_cnn, faces mobilenet_v3_large.",
)
_EMBEDDING_DIM = flags.DEFINE_integer(
    "embedding_dim", 64, "d, of features and classes.", lower_bound=1
)
_ROUNDS = flags.DEFINE_integer("rounds", 40, "How many rounds.", lower_bound=1)
_STEPS_PER_ROUND = flags.DEFINE_integer(
    "steps_per_round", 100, "How many updates make a round.", lower_bound=1
)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 64, "The mini-batch, of all devices together.", lower_bound=1
)
_LEARNING_RATE = flags.DEFINE_float(
    "learning_rate", 0.01, "Of SGD, for phi and W.", lower_bound=0.0
)
_MOMENTUM = flags.DEFINE_float(
    "momentum", 0.9, "Of SGD, likewise.", lower_bound=0.0, upper_bound=0.9999
)
_ROUNDS_PER_EVALUATION = flags.DEFINE_integer(
    "rounds_per_evaluation", 5, "How often to measure.", lower_bound=1
)
_ROUNDS_PER_CHECKPOINT = flags.DEFINE_integer(
    "rounds_per_checkpoint",
    5,
    "How often to save what a killed run goes on from: 8 n d bytes, twice over.",
    lower_bound=1,
)

flags.adopt_module_key_flags(single_run)  # --help shows them.

GROUPS = {
    "The run": ("dataset", "data_dir", "results_dir", "seed"),
    "Classes and devices": (
        "num_classes",
        "sample_rate",
        "sampling",
        "num_devices",
        "num_strata",
    ),
    "Loss": ("margin", "margin_size", "logit_scale"),
    "Model": ("model", "embedding_dim", "image_size"),
    "Optimization": (
        "rounds",
        "steps_per_round",
        "batch_size",
        "learning_rate",
        "momentum",
    ),
    "Evaluation and checkpoints": ("rounds_per_evaluation", "rounds_per_checkpoint"),
}
_BY_DATASET = (_MODEL, _IMAGE_SIZE, _NUM_CLASSES)

_METRICS = ("tar_at_far", "pair_accuracy", "map_at_r", "top1")
_COLUMNS = (
    "steps",
    "loss",
    *_METRICS,
    "ca_pcc",
    "trained_share",
    "classes_per_step",
    "num_examples",
)


def main() -> None:
    """Trains and prints the result."""
    _take_defaults()
    # A run may go on with another number of devices.
    folder = single_run.open_folder(GROUPS, _COLUMNS, "examples", {"num_devices"})
    if folder is None:
        return
    mesh = runtime.local_mesh(_NUM_DEVICES.value)
    task = _load_task()
    print(task.summary, flush=True)
    run = _build_run(task, mesh)
    single_run.train(
        run,
        folder,
        rounds=_ROUNDS.value,
        rounds_per_evaluation=_ROUNDS_PER_EVALUATION.value,
        rounds_per_checkpoint=_ROUNDS_PER_CHECKPOINT.value,
        plot=lambda: report.plot({run.name: [folder.rows]}, folder.path / "curves.png"),
        checkpoints=training.ShardedCheckpoints,
        examples="examples",
    )
    folder.write_weights(f"{run.name}.npz", run.weights)
    last = folder.rows[-1]
    values = {name: last[name] for name in (*_METRICS, "ca_pcc") if name in last}
    text = f"{run.name}: " + ", ".join(f"{k} {v:.4f}" for k, v in values.items())
    single_run.finish(folder, task.metric, text, values)


def _take_defaults() -> None:
    """Gives flags the values of the data, and checks that they go together.

    Raises:
        InvalidInputError: If they do not.
    """
    dataset = _DATASET.value
    if dataset == "faces" and not _DATA_DIR.value:
        raise InvalidInputError("--dataset=faces needs --data_dir=DIR.")
    if dataset == "generated":
        for flag in (_DATA_DIR, _IMAGE_SIZE):
            if flag.value is not None:
                raise InvalidInputError(f"--dataset=generated takes no --{flag.name}.")
    elif _NUM_CLASSES.value is not None:
        raise InvalidInputError(
            "--num_classes goes with --dataset=generated only; "
            f"--dataset={dataset} has its own."
        )
    single_run.set_defaults(_BY_DATASET, _SETTINGS[dataset])
    if (_MODEL.value == "mlp") != (dataset == "generated"):
        raise InvalidInputError(
            f"--model={_MODEL.value} does not go with --dataset={dataset}: mlp is for "
            "vectors (generated), the others are for images."
        )
    if _MODEL.value.startswith("mobilenet") and _IMAGE_SIZE.value < 32:
        raise InvalidInputError(
            f"--model={_MODEL.value} needs --image_size of at least 32, found "
            f"{_IMAGE_SIZE.value}."
        )
    for limit in (_NUM_STRATA, _BATCH_SIZE):
        if (_NUM_DEVICES.value or 1) > limit.value:
            raise InvalidInputError(
                f"--num_devices={_NUM_DEVICES.value} is more than "
                f"--{limit.name}={limit.value}."
            )
    memory.check(memory_needs.images(1, _IMAGE_SIZE.value or 1))


def _load_task() -> tasks.IdentityVerification:
    """Loads the data.

    Raises:
        InvalidInputError: If they are not there, or damaged.
    """
    if _DATASET.value == "generated":
        data = identities.GeneratedIdentities(
            _NUM_CLASSES.value, seed=single_run.SEED.value
        )
    elif _DATASET.value == "omniglot":
        data = omniglot.load_identities(_DATA_DIR.value, image_size=_IMAGE_SIZE.value)
    else:
        data = identity_folders.load(_DATA_DIR.value, image_size=_IMAGE_SIZE.value)
    model_fn = functools.partial(
        _MODELS[_MODEL.value],
        data.example_shape,
        _EMBEDDING_DIM.value,
        seed=single_run.SEED.value,
    )
    # SGD with momentum: beside weights and gradient, there is one number for each.
    memory.check(
        memory_needs.matrix(
            "a mini-batch", _BATCH_SIZE.value, math.prod(data.example_shape)
        ),
        device_needs=memory_needs.matrix(
            "W and its momentum", data.num_classes, _EMBEDDING_DIM.value, 2
        )
        | memory_needs.network("phi", model_fn, _BATCH_SIZE.value, copies=3),
    )
    return tasks.IdentityVerification(
        data,
        model_fn,
        logit_scale=_LOGIT_SCALE.value,
        batch_size=_BATCH_SIZE.value,
        seed=single_run.SEED.value,
    )


def _build_run(
    task: tasks.IdentityVerification, mesh: runtime.DeviceMesh
) -> training.SampledSoftmaxRun:
    """Puts the classes on the devices.

    Raises:
        InvalidInputError: If there are more devices than strata or examples, or more
            strata than classes.
    """
    for count, name, limit, of in (
        (len(mesh), "num_devices", _NUM_STRATA.value, "--num_strata"),
        (len(mesh), "num_devices", _BATCH_SIZE.value, "--batch_size"),
        (_NUM_STRATA.value, "num_strata", task.num_classes, "n"),
    ):
        if count > limit:
            raise InvalidInputError(f"--{name}={count} is more than {of}={limit}.")
    algorithm = algorithms.PartialFC(
        task.encoder(),
        task.num_classes,
        task.embedding_dim,
        mesh,
        margin=losses.Margin(_MARGIN.value, task.logit_scale, _MARGIN_SIZE.value),
        sample_rate=_SAMPLE_RATE.value,
        sampling=_SAMPLING.value,
        num_strata=_NUM_STRATA.value,
        learning_rate=_LEARNING_RATE.value,
        momentum=_MOMENTUM.value,
        seed=single_run.SEED.value,
    )
    rate = _SAMPLE_RATE.value
    name = "full" if rate == 1 else f"{_SAMPLING.value}_{rate:g}"
    return training.SampledSoftmaxRun(name, task, algorithm, _STEPS_PER_ROUND.value)


if __name__ == "__main__":
    program.run(main, groups=GROUPS, paper="partial_fc")
