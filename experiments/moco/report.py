"""Tables 1 to 4 and figures 3 to 5 of focal contrastive learning, from our own runs.

    ./run.sh moco_report --results_dir=results/moco --output_dir=docs/results/moco

reads results/moco/CELL/seedN/, the results folders of finished runs of `./run.sh
moco`, or what `./run.sh pack` made of them, and writes linear_accuracy.md,
linear_accuracy.csv and, not of packed runs, which are without the losses of examples,
losses.png and .pdf, in a few seconds. CELL is named as in cells.py: a_gamma0 for
experiment A with gamma = 0, and so on to d_gamma2; `untrained` is the random encoder.
The runs must have the same flags but for what their cells stand for, and those of one
seed that are post-trained start from the same model. The paper's numbers (Imagenette,
ResNet-50, 1,250 epochs) stand beside ours.
"""

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.common import (
    output_files,
    paired,
    plots,
    report_program,
    results,
    table_header,
)
from experiments.common.cells import Table
from experiments.common.table import as_markdown, half_width, mean_std, signed_mean
from tff_fedss import losses, tasks, training
from tff_fedss.errors import InvalidInputError

_TITLES = {
    "a": "Experiment A, from scratch (Table 1)",
    "b": "Experiment B, post-training (Table 2)",
    "c": "Experiment C, post-training, clustered (Table 3)",
    "d": "Experiment D, post-training, filtered (Table 4)",
}
_GAMMAS = ("0", "0.5", "1", "2")
# Accuracy in percent, by gamma.
_PAPER = {
    "a": (81.7, 81.4, 80.7, 80.7),
    "b": (84.1, 84.3, 84.2, 83.9),
    "c": (84.0, 84.1, 84.1, 83.8),
    "d": (84.2, 84.9, 85.1, 85.0),
}
_UNTRAINED = "untrained"
# What --loss is in each experiment; all but the first start from --pretrained.
_LOSSES = {"a": "plain", "b": "plain", "c": "clustered", "d": "filtered"}
KIND = results.RunKind(
    program="moco",
    run_name=lambda run_flags: "moco",
    choices={"loss": losses.INFO_NCE_FORMS},
    whole_numbers=("seed", "epochs"),
    numbers=("gamma",),
    length="epochs",
    cell_flags=frozenset({"loss", "gamma", "clusters", "pretrained"}),
    starts_by_seed=True,
)
# Of the runs, for `./run.sh table`.
RUN = results.Run
# The model whose losses figures 3 to 5 show.
_MEASURED = "a_gamma0"
_BASE = "b_gamma0"
_FIGURES = dict(zip(losses.INFO_NCE_FORMS, (3, 4, 5), strict=True))


class _Row(NamedTuple):
    cell: str
    gamma: str
    paper: float | None
    accuracies: list[float]  # In percent, a seed each.


def write(
    results_dir: pathlib.Path,
    output_dir: pathlib.Path,
    command: Sequence[str] | None = None,
    title: str = "Focal contrastive learning",
) -> str:
    """Writes the tables and the figure.

    Args:
        results_dir: Holds CELL/seedN/, or an archive of them.
        output_dir: Where to write; created if need be.
        command: What was given to write it, argument by argument.
        title: Of the page.

    Returns:
        The page, in Markdown.

    Raises:
        InvalidInputError: If no run is finished, a file of one is damaged, or runs do
            not belong together.
    """
    papers = {
        f"{experiment}_gamma{gamma}": (gamma, paper)
        for experiment, values in _PAPER.items()
        for gamma, paper in zip(_GAMMAS, values, strict=True)
    }
    found = results.find_cells(results_dir)
    cells = {
        cell: _read_cell(cell, found.get(cell, ())) for cell in (_UNTRAINED, *papers)
    }
    if not any(cells.values()):
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no finished run in CELL/seedN/, for a "
            f"CELL of {', '.join(cells)}."
        )
    _check_cells(cells)
    rows = [
        _Row(cell, *papers.get(cell, ("", None)), list(map(_accuracy, runs)))
        for cell, runs in cells.items()
    ]
    measured = _read_losses(cells[_MEASURED])
    output_files.create_folder(output_dir)
    measured_cells = {cell: runs for cell, runs in cells.items() if runs}
    text = table_header.head(title, measured_cells, command)
    text += _as_markdown(rows) + _describe_losses(measured)
    output_files.write_text(output_dir / "linear_accuracy.md", text)
    output_files.write_csv(
        output_dir / "linear_accuracy.csv", [_csv_row(row) for row in rows]
    )
    if measured is not None:
        _plot(measured, output_dir / "losses.png")
    return text


def write_table(
    name: tuple[str, str],
    table: Table,
    results_dir: pathlib.Path,
    num_seeds: int,
    command: Sequence[str],
) -> str:
    """Writes what `./run.sh table` asks for; see `fedss.report.write_table`."""
    if not name[0].isdecimal():  # There is no such table in the paper.
        return _write_comparison(name[0], table, results_dir, num_seeds, command)
    return write(results_dir, results_dir, command, table.title)


def _write_comparison(
    name: str,
    table: Table,
    results_dir: pathlib.Path,
    num_seeds: int,
    command: Sequence[str],
) -> str:
    """Writes NAME.md and .csv: every cell, and how far ahead of B it is."""
    found = results.find_cells(results_dir)
    cells = {
        name: [results.read_run(source, KIND) for source in found.get(name, ())]
        for name in table.cells
    }
    for runs in cells.values():
        results.check_same_cell(runs)
    done = {name: [r for r in runs if r.is_done] for name, runs in cells.items()}
    if not any(done.values()):
        raise InvalidInputError(f"--results_dir={results_dir} holds no finished run.")
    results.check_same_table([run for runs in done.values() for run in runs])
    rows = []
    for cell_name, cell in table.cells.items():
        runs = done[cell_name]
        ahead = paired.between(runs, done.get(_BASE, ()), tasks.Contrastive.metric)
        rows.append(
            {
                "cell": cell.title,
                "seeds": f"{len(runs)}/{num_seeds}",
                "linear top-1, %": mean_std(list(map(_accuracy, runs)), 2),
                "ahead of B": signed_mean(ahead.values, 2)
                if ahead and cell_name != _BASE
                else None,
                "cluster share": _last(runs, "cluster_share"),
                "cluster purity": _last(runs, "cluster_purity"),
            }
        )
    head = table_header.head(table.title, {k: v for k, v in done.items() if v}, command)
    text = (
        f"{head}{as_markdown(list(rows[0]), [list(row.values()) for row in rows])}\n\n"
        "Mean and standard deviation over seeds. Ahead of B: the mean difference of "
        "runs of the same seed, and half of its 95 % interval by Student's t. Of the "
        "last epoch: which share of the queue was in a query's cluster, and which "
        "share of these keys was of its class.\n"
    )
    output_files.write_text(results_dir / f"{name}.md", text)
    output_files.write_csv(
        results_dir / f"{name}.csv",
        [
            {**row, **_exact(done[cell], done.get(_BASE, ()) if cell != _BASE else ())}
            for cell, row in zip(table.cells, rows, strict=True)
        ],
    )
    return text


def _exact(
    runs: Sequence[results.Run], base: Sequence[results.Run]
) -> dict[str, float | None]:
    """The numbers of a row of the CSV, with all digits, in place of the page's."""
    values = list(map(_accuracy, runs))
    ahead = paired.between(runs, base, tasks.Contrastive.metric)
    return {
        "linear top-1, %": statistics.fmean(values) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "ahead of B": ahead and ahead.mean,
        "half of 95 %": ahead and half_width(ahead.values),
    }


def _last(runs: Sequence[results.Run], column: str) -> str | None:
    """The mean over runs of a column's last value."""
    values = [
        value for run in runs if (value := run.rows[-1].get(column)) not in (None, "")
    ]
    return f"{np.mean(values):.2f}" if values else None


def _csv_row(row: _Row) -> dict[str, Any]:
    values = row.accuracies
    return {
        "cell": row.cell,
        "paper": row.paper,
        "mean": statistics.fmean(values) if values else None,
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "seeds": len(row.accuracies),
    }


def _read_cell(cell: str, sources: Sequence[results.RunFolder]) -> list[results.Run]:
    """Reads the finished runs of a cell, and checks that they are of this cell."""
    runs = [results.read_run(source, KIND) for source in sources]
    experiment, _, gamma = cell.partition("_gamma")
    for run in runs:
        loss, is_pretrained = run.flags["loss"], bool(run.flags.get("pretrained"))
        if cell == _UNTRAINED:
            is_right = run.num_rounds == 0 and not is_pretrained
            expected = "--epochs=0 and no --pretrained"
        else:
            is_right = (
                loss == _LOSSES[experiment]
                and float(run.flags["gamma"]) == float(gamma)
                and is_pretrained == (experiment != "a")
                and run.num_rounds > 0
            )
            expected = (
                f"--loss={_LOSSES[experiment]} --gamma={gamma}, --epochs above 0 and "
                f"{'no ' * (experiment == 'a')}--pretrained"
            )
        if not is_right:
            raise InvalidInputError(
                f"{run.path} has --loss={loss} --gamma={run.flags['gamma']} "
                f"--epochs={run.num_rounds} "
                f"--pretrained={run.flags.get('pretrained', '(unset)')}; a run of "
                f"{cell} has {expected}."
            )
    results.check_same_cell(runs)
    return [run for run in runs if run.is_done]


def _check_cells(cells: Mapping[str, Sequence[results.Run]]) -> None:
    trained = [run for cell in cells if cell != _UNTRAINED for run in cells[cell]]
    results.check_same_table(trained)
    results.check_same_table([*cells[_UNTRAINED], *trained], {"epochs"})


def _accuracy(run: results.Run) -> float:
    """The metric after the last epoch, in percent."""
    return 100 * run.rows[-1][tasks.Contrastive.metric]


def _as_markdown(rows: list[_Row]) -> str:
    parts = []
    for experiment, title in _TITLES.items():
        own = [row for row in rows if row.cell.startswith(f"{experiment}_")]
        if not any(row.accuracies for row in own):
            continue
        table = as_markdown(
            ["gamma", "paper, %", "ours, %", "seeds"],
            [
                [r.gamma, r.paper, mean_std(r.accuracies, 2), len(r.accuracies) or ""]
                for r in own
            ],
        )
        parts.append(f"{title}:\n\n{table}\n")
    untrained = next(row for row in rows if row.cell == _UNTRAINED)
    if untrained.accuracies:
        ours = mean_std(untrained.accuracies, 2)
        parts.append(f"Random encoder, not trained: {ours} %.\n")
    return "\n".join(parts)


def _read_losses(runs: Sequence[results.Run]) -> dict[str, np.ndarray] | None:
    """The losses of all examples in all seeds of the model, by form."""
    measured = {form: [] for form in _FIGURES}
    for run in runs:
        if not run.path.exists():  # A packed one.
            continue
        path = run.path / "losses.npz"
        arrays = training.read_arrays(path)
        for form, parts in measured.items():
            if form not in arrays:
                raise InvalidInputError(f"{path} is damaged: it has no {form}.")
            values = arrays[form]
            if not (
                values.ndim == 1
                and len(values)
                and np.issubdtype(values.dtype, np.floating)
                and np.isfinite(values).all()
            ):
                raise InvalidInputError(
                    f"{path} is damaged: expected {form} as a finite float[examples]."
                )
            parts.append(values)
    if not measured["plain"]:
        return None
    return {form: np.concatenate(parts) for form, parts in measured.items()}


def _describe_losses(measured: dict[str, np.ndarray] | None) -> str:
    if measured is None:
        return ""
    rows = []
    for form, values in measured.items():
        low = 100 * np.mean(values < 0.5)
        spread = [f"{values.mean():.2f}", f"{np.median(values):.2f}", f"{low:.1f}"]
        rows.append([form, _FIGURES[form], *spread])
    table = as_markdown(["loss", "figure", "mean", "median", "below 0.5, %"], rows)
    return (
        "\nLoss of each example under the model of experiment A with gamma = 0:\n\n"
        f"{table}\n"
    )


def _plot(measured: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Draws the three histograms on one scale, as figures 3 to 5 of the paper."""
    top = max(np.quantile(values, 0.999) for values in measured.values())
    with plots.figure(path, 1, 3, figsize=(12, 3.2), sharey=True) as (_, panels):
        for panel, (form, values) in zip(panels, measured.items(), strict=True):
            panel.hist(np.minimum(values, top), bins=60, range=(0, top), density=True)
            panel.set(title=f"{form} (figure {_FIGURES[form]})", xlabel="loss")
        panels[0].set_ylabel("density of examples")


if __name__ == "__main__":
    report_program.run("moco_report", write)
