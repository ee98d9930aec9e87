"""The cells of focal contrastive learning: Tables 1 to 4, experiments A to D.

    ./run.sh table moco/1 --scale=mini --data_dir=CIFAR10
    ./run.sh table moco/4 --scale=mini --data_dir=CIFAR10
    ./run.sh table moco/oracle --data_dir=CIFAR10
    ./run.sh table moco/fair --data_dir=CIFAR10
    ./run.sh table moco/1 --scale=paper

B, C and D go on from what A has learned with gamma = 0 and the same seed, so their
tables run that first; all four share their runs, and a random encoder beside them.

Minutes on one core at --scale=mini: 9 a run. What to expect: docs/results/moco; a
random encoder 43.9 %, A 48.6 to 49.5 %, D 50.3 to 50.8 %. --scale=paper has not been
run: days on 8 GPUs.

`oracle` and `fair` have 512 keys at T = 0.1, where the loss may fall to 0.02 and gamma
has something to tell apart; `oracle` asks whether filtering helps at all, by labels.
"""

from collections.abc import Sequence
from typing import Any

from experiments.common.cells import Cell, Table, table

_PROGRAM = "experiments.moco.train"
_SCALES: dict[str, dict[str, Any]] = {
    # A small network on 10,000 images of CIFAR-10, for one core.
    "mini": dict(dataset="cifar10", num_train=10000, backbone="small_cnn"),
    # MoCo v2's settings; 1,250 epochs, as the paper has it.
    "paper": dict(
        dataset="imagenette",
        backbone="resnet50_split",
        image_size=224,
        batch_size=256,
        learning_rate=0.03,
        weight_decay=0.0001,
        temperature=0.2,
        key_momentum=0.999,
        queue_size=65536,
    ),
}
_EPOCHS = {"mini": 30, "paper": 1250}
_RESULTS = {"mini": "moco", "paper": "moco_paper"}
_EXPERIMENTS = {
    "a": ("from scratch", "plain"),
    "b": ("post-training", "plain"),
    "c": ("post-training, clustered", "clustered"),
    "d": ("post-training, filtered", "filtered"),
}
_GAMMAS = (0, 0.5, 1, 2)
_FIRST = "a_gamma0"


def _cell(scale: str, experiment: str, gamma: float) -> Cell:
    title, loss = _EXPERIMENTS[experiment]
    own = dict(epochs=_EPOCHS[scale], loss=loss, gamma=gamma)
    return Cell(
        f"{experiment}_gamma{gamma:g}",
        {**_SCALES[scale], **own},
        f"Experiment {experiment.upper()}, {title}, gamma = {gamma:g}",
        None if experiment == "a" else _FIRST,
    )


def _table(scale: str, number: int, experiment: str) -> Table:
    cells = [_cell(scale, experiment, gamma) for gamma in _GAMMAS]
    if experiment != "a":
        cells.insert(0, _cell(scale, "a", 0))
    else:
        cells.append(
            Cell("untrained", {**_SCALES[scale], "epochs": 0}, "The random encoder")
        )
    return table(
        f"Focal contrastive learning, Table {number}, --scale={scale}",
        _PROGRAM,
        cells,
        _RESULTS[scale],
    )


_FAIR = dict(_SCALES["mini"], queue_size=512, temperature=0.1)


def _fair_table(title: str, folder: str, epochs: int, gammas: Sequence[float]) -> Table:
    """B, D and filters by labels after a common start."""

    def cell(name, title, start, **own):
        return Cell(name, {**_FAIR, "epochs": epochs, **own}, title, start)

    filtered = [
        cell(
            f"{name}_gamma{gamma:g}",
            f"{title}, gamma = {gamma:g}",
            _FIRST,
            loss="filtered",
            gamma=gamma,
            **own,
        )
        for name, title, own in (
            ("d", "Experiment D, filtered by k-means", {}),
            ("oracle", "Filtered by labels", {"clusters": "labels"}),
        )
        for gamma in gammas
    ]
    plain = dict(loss="plain", gamma=0)
    return table(
        title,
        _PROGRAM,
        [
            cell(_FIRST, "Experiment A, from scratch", None, **plain),
            cell("b_gamma0", "Experiment B, post-training", _FIRST, **plain),
            *filtered,
        ],
        folder,
    )


TABLES = {
    ("oracle", "mini"): _fair_table(
        "Does filtering help? By labels, 30 and 30 epochs", "moco_oracle", 30, (0,)
    ),
    ("fair", "mini"): _fair_table(
        "512 keys at T = 0.1, 100 and 100 epochs", "moco_fair", 100, (0, 1)
    ),
} | {
    (str(number), scale): _table(scale, number, experiment)
    for scale in _SCALES
    for number, experiment in enumerate(_EXPERIMENTS, 1)
}
