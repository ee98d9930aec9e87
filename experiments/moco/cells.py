"""The cells of focal contrastive learning: Tables 1 to 4, experiments A to D.

    ./run.sh table moco/1 --scale=mini --data_dir=CIFAR10
    ./run.sh table moco/4 --scale=mini --data_dir=CIFAR10
    ./run.sh table moco/oracle --data_dir=CIFAR10
    ./run.sh table moco/gammas --data_dir=CIFAR10
    ./run.sh table moco/1 --scale=paper

B, C and D start from A with gamma = 0 and the same seed, so their tables run that cell
first; they see A's views again, in the same order. C and D are compared with B at gamma
= 0, so their tables also run that cell. All four tables share their runs.

Minutes on one core at --scale=mini: 9 to 14 a run. What to expect: docs/results/moco; a
random encoder 43 %, A 48 %, B and D 50 %. --scale=paper has not been run: days on 8
GPUs.

`oracle` and `gammas` have 512 keys at T = 0.1, where the loss may fall to 0.02 and
gamma can distinguish examples. `oracle` tests whether filtering by labels helps;
`gammas` whether gamma does, in B, C and D, after the same A.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.common import plots
from experiments.common import results as results_lib
from experiments.common import table as tables
from experiments.common.cells import Cell, Metric, Table, table
from experiments.common.page import Runs
from tff_fedss import losses, tasks, training

_FIRST = "a_gamma0"  # Others start from it, and the figures show its losses.
_FIGURES = dict(zip(losses.INFO_NCE_FORMS, (3, 4, 5), strict=True))


def draw(
    of_cells: Table, runs: Runs, paper: pd.DataFrame, folder: pathlib.Path, stem: str
) -> list[str]:
    """Draws figures 3 to 5, the losses by A's model, see `cells.Table.draw`.

    Published runs lack the losses of examples, so nothing is drawn.
    """
    del of_cells, paper, stem
    measured = _read(runs.get(_FIRST, ()))
    if measured is None:
        return []
    _plot(measured, folder / "losses.png")
    rows = [
        [
            form,
            _FIGURES[form],
            f"{values.mean():.2f}",
            f"{np.median(values):.2f}",
            f"{100 * np.mean(values < 0.5):.1f}",
        ]
        for form, values in measured.items()
    ]
    header = ["loss", "figure", "mean", "median", "below 0.5, %"]
    return [
        "Loss of each example under the model of experiment A with gamma = 0:",
        "",
        tables.as_markdown(header, rows),
        "",
        "![Figures 3 to 5: losses of examples](losses.png)",
    ]


def _read(runs: Sequence[results_lib.Run]) -> dict[str, np.ndarray] | None:
    """Returns the losses of all examples in all seeds of the model, by form."""
    paths = [run.path / "losses.npz" for run in runs if run.is_done]
    arrays = [training.read_arrays(path) for path in paths if path.exists()]
    if not arrays:
        return None
    return {form: np.concatenate([x[form] for x in arrays]) for form in _FIGURES}


def _plot(measured: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
    """Draws the three histograms on one scale."""
    top = max(np.quantile(values, 0.999) for values in measured.values())
    with plots.figure(path, 1, 3, figsize=(8, 3), sharey=True) as (_, panels):
        for panel, (form, values) in zip(panels, measured.items(), strict=True):
            panel.hist(np.minimum(values, top), bins=60, range=(0, top), density=True)
            panel.set(title=f"{form} (figure {_FIGURES[form]})", xlabel="loss")
        panels[0].set_ylabel("density of examples")


# --- The cells ----------------------------------------------------------------------

_ACCURACY = Metric(
    tasks.Contrastive.metric, "linear top-1 %", ".2f", difference_digits=2
)
_KIND = results_lib.RunKind(
    paper="moco",
    run_name=lambda flags: "moco",
    length="epochs",
    cell_flags=frozenset({"loss", "gamma", "clusters", "pretrained"}),
    starts_by_seed=True,
)
_SCALES: dict[str, dict[str, Any]] = {
    # A small network on 10,000 images of CIFAR-10, for one core.
    "mini": dict(dataset="cifar10", num_train=10000, backbone="small_cnn", epochs=30),
    # MoCo v2's settings; 1,250 epochs, as in the paper.
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
        epochs=1250,
    ),
}
_RESULTS = {"mini": "moco", "paper": "moco_paper"}
_EXPERIMENTS = {
    "a": ("from scratch", "plain"),
    "b": ("post-training", "plain"),
    "c": ("post-training, clustered", "clustered"),
    "d": ("post-training, filtered", "filtered"),
}
_GAMMAS = (0, 0.5, 1, 2)


def _cell(scale: str, experiment: str, gamma: float) -> Cell:
    title, loss = _EXPERIMENTS[experiment]
    return Cell(
        f"{experiment}_gamma{gamma:g}",
        dict(_SCALES[scale], loss=loss, gamma=gamma),
        f"Experiment {experiment.upper()}, {title}, gamma = {gamma:g}",
        None if experiment == "a" else _FIRST,
        paper=f"{experiment}_gamma{gamma:g}",
    )


def _table(scale: str, number: int, experiment: str) -> Table:
    """One experiment with each gamma: A beside its gamma = 0, others beside B's."""
    cells = [_cell(scale, experiment, gamma) for gamma in _GAMMAS]
    compared = _cell(scale, "a" if experiment == "a" else "b", 0)
    if experiment == "a":
        random = {**_SCALES[scale], "epochs": 0}
        cells.append(Cell("untrained", random, "The random encoder"))
    else:
        cells.insert(0, _cell(scale, "a", 0))
    if experiment in "cd":
        cells.insert(1, compared)
    return table(
        f"Focal contrastive learning, Table {number}, --scale={scale}",
        cells,
        _RESULTS[scale],
        kind=_KIND,
        metrics=(_ACCURACY,),
        pairs=_pairs(cells, compared),
        draw=draw,
    )


def _pairs(cells: Sequence[Cell], compared: Cell) -> tuple[tuple[str, str], ...]:
    """The other cells, each with the one that it is compared with."""
    return tuple((c.title, compared.title) for c in cells if c.name != compared.name)


_FAIR = dict(_SCALES["mini"], queue_size=512, temperature=0.1)
# Experiments that start from A.
_FAIR_EXPERIMENTS = {
    "b": ("Experiment B, post-training", dict(loss="plain")),
    "c": ("Experiment C, clustered by k-means", dict(loss="clustered")),
    "d": ("Experiment D, filtered by k-means", dict(loss="filtered")),
    "oracle": ("Filtered by labels", dict(loss="filtered", clusters="labels")),
}


def _fair_table(
    title: str, experiments: Sequence[str], gammas: Sequence[float]
) -> Table:
    """A, plain post-training of it, and experiments with each gamma."""
    plain = dict(_FAIR, loss="plain", gamma=0)
    cells = [
        Cell(_FIRST, plain, "Experiment A, from scratch"),
        Cell("b_gamma0", plain, _FAIR_EXPERIMENTS["b"][0], _FIRST),
    ]
    for experiment in experiments:
        its_title, own = _FAIR_EXPERIMENTS[experiment]
        cells += [
            Cell(
                f"{experiment}_gamma{gamma:g}",
                {**_FAIR, **own, "gamma": gamma},
                f"{its_title}, gamma = {gamma:g}",
                _FIRST,
            )
            for gamma in gammas
            if (experiment, gamma) != ("b", 0)
        ]
    return table(
        title,
        cells,
        "moco_oracle",
        metrics=(
            _ACCURACY,
            Metric("cluster_share", "cluster share", ".2f", 1, False, 0),
            Metric("cluster_purity", "cluster purity", ".2f", 1, False, 0),
        ),
        pairs=_pairs(cells, cells[1]),
        notes=(
            "Of the last epoch: which share of the queue was in a query's cluster, and "
            "which share of these keys was of its class.",
        ),
        kind=_KIND,
    )


TABLES = {
    ("oracle", "mini"): _fair_table(
        "Does filtering help? By labels, 30 and 30 epochs", ("d", "oracle"), (0,)
    ),
    # Compared with those.
    ("gammas", "mini"): _fair_table(
        "Does gamma help after 512 keys at T = 0.1? 30 and 30 epochs",
        ("b", "c", "d"),
        (0, 1),
    ),
} | {
    (str(number), scale): _table(scale, number, experiment)
    for scale in _SCALES
    for number, experiment in enumerate(_EXPERIMENTS, 1)
}
