"""The cells of LEAP: Table 1, LEAP beside SPLD and random mini-batches.

    ./run.sh table leap/1 --scale=mini --data_dir=DIR --cells='mnist_mini/*'
    ./run.sh table leap/noise --data_dir=DIR --cells='mnist*'        # or 'cifar10*'
    ./run.sh table leap/1 --scale=paper --cells='cifar10/*'

Hours on a core, digits and CIFAR-10 together: leap/1 at --scale=mini, three seeds, 0.3;
leap/noise, five seeds, 1.2. What to expect: docs/results/leap; on CIFAR-10 mini LEAP
55.9 %, SPLD 56.6 %, random 54.0 %. --scale=paper has not been run: days on a GPU.
"""

from collections.abc import Sequence
from typing import Any

from experiments.common import results as results_lib
from experiments.common.cells import Cell, Metric, table
from experiments.leap import figures

_PROGRAM = "experiments.leap.train"
_TITLES = figures.METHODS
_KIND = results_lib.RunKind(
    program="leap",
    run_name=lambda flags: flags["method"],
    cell_flags=frozenset({"method"}),
    # The seed decides which labels are wrong.
    has_own_data=lambda flags: bool(float(flags.get("label_noise") or 0)),
)
_PAGE = dict(
    kind=_KIND,
    metrics=(
        Metric("top1", "top-1 %", ".2f"),
        Metric("mislabelled_share", "wrong labels selected %", ".1f", 100, False, 0),
        Metric("steps", "mini-batches", ",.0f", 1, False, 0),
    ),
    pairs=(
        ("LEAP", "Random"),
        ("LEAP", "SPL"),
        ("LEAP", "SPLD"),
        ("SPLD", "Random"),
        ("SPL", "Random"),
    ),
    reference="Random",
    x="steps",
    draw=figures.draw,
)

_CIFAR = dict(embedding="vgg16", nesterov=False, steps_per_round=390, rounds=200)
_CIFAR10 = dict(_CIFAR, dataset="cifar10", student="resnet18", augmentation="flip_crop")
_SCHEDULE = dict(learning_rate=0.1, learning_rate_drops=("23400", "46800", "62400"))
_PAPER: dict[str, dict[str, Any]] = {
    # 4.1, figures 2 and 3. The student's optimizer is not stated: as in 4.2.
    "mnist": dict(
        dataset="mnist",
        student="lenet",
        embedding="lenet",
        learning_rate=0.001,
        steps_per_round=469,
        rounds=100,
    ),
    # 4.2, figures 4 and 5. The number of epochs is not stated: as in 4.3.
    "fashion_mnist": dict(
        dataset="fashion_mnist",
        student="resnet18",
        embedding="lenet",
        learning_rate=0.001,
        augmentation="flips_crop_rotation",
        steps_per_round=469,
        rounds=200,
    ),
    # 4.3 with a fixed learning rate, figure 6.
    "cifar10_fixed": dict(_CIFAR10, learning_rate=0.001),
    # 4.3 with the scheduler, figures 7 and 8.
    "cifar10": dict(_CIFAR10, **_SCHEDULE),
    # 4.4, figure 9.
    "cifar100": dict(
        _CIFAR, **_SCHEDULE, dataset="cifar100", student="wide_resnet_28_10"
    ),
    # 4.5, figures 10 and 11: 65 epochs of 604,388 images. The learning rate is not
    # stated: that of Zagoruyko and Komodakis for SVHN, with drops after 1/2 and 3/4.
    "svhn": dict(
        dataset="svhn_cropped",
        student="wide_resnet_16_8",
        embedding="vgg16",
        learning_rate=0.01,
        learning_rate_drops=("153465", "230198"),
        steps_per_round=4722,
        rounds=65,
    ),
}
# For one core.
_LENET = dict(
    student="lenet",
    embedding="lenet",
    embedding_dim=32,
    in_turn=True,
    batch_size=64,
    rounds=40,
    rounds_per_evaluation=2,
    rounds_per_checkpoint=10,
)
_MNIST = dict(_LENET, dataset="mnist", learning_rate=0.01, steps_per_round=25)
_MINI: dict[str, dict[str, Any]] = {
    "mnist_mini": _MNIST,  # 8,000 images of MNIST's test files.
    "cifar10_mini": dict(
        _LENET,
        dataset="cifar10",
        num_train=10000,
        augmentation="flip_crop",
        learning_rate=0.02,
        steps_per_round=78,
    ),
}


# On clean data the methods are equal once everything is selected; here it never is.
_CLEAN = dict(pace_start=0.3, pace_cap=0.6)
# 40 % wrong labels. The share stays at that of the right labels; lambda is solved for
# it.
_NOISY = dict(_CLEAN, pace_growth=0.1, diversity_growth=0.0, label_noise=0.4)
_MNIST_2000 = dict(_MNIST, num_train=2000, rounds=60)
_NOISE: dict[str, dict[str, Any]] = {
    "mnist_clean": dict(_MNIST_2000, **_CLEAN),
    "mnist_noisy": dict(_MNIST_2000, **_NOISY),
    "mnist_noisy_gamma5": dict(_MNIST_2000, **_NOISY, diversity=5.0),
    "cifar10_clean": dict(_MINI["cifar10_mini"], **_CLEAN),
    "cifar10_noisy": dict(_MINI["cifar10_mini"], **_NOISY),
}


def _cells(
    settings: dict[str, dict[str, Any]],
    methods: Sequence[str] = ("leap", "spld", "random"),
) -> list[Cell]:
    return [
        Cell(
            f"{name}/{method}",
            {**common, "method": method},
            f"{name}: {_TITLES[method]}",
            row=_TITLES[method],
            column=name,
            paper=f"{name.removesuffix('_mini')}, {_TITLES[method]}",
        )
        for name, common in settings.items()
        for method in methods
        # Another gamma changes only these two.
        if method in ("leap", "spld") or "diversity" not in common
    ]


TABLES = {
    ("1", "paper"): table(
        "LEAP, Table 1", _PROGRAM, _cells(_PAPER), "leap", (0, 1, 2, 3, 4), **_PAGE
    ),
    ("1", "mini"): table(
        "LEAP, Table 1, for 2 cores", _PROGRAM, _cells(_MINI), "leap", **_PAGE
    ),
    ("noise", "mini"): table(
        "LEAP with wrong labels, for 2 cores",
        _PROGRAM,
        _cells(_NOISE, tuple(_TITLES)),
        "leap_noise",
        (0, 1, 2, 3, 4),
        **_PAGE,
    ),
}
