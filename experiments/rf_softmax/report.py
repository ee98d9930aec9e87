"""Curves and a table of sampled softmax runs, a sampler a row.

    ./run.sh rf_softmax_report --results_dir=DIR --output_dir=DIR --name=ptb

reads DIR/SAMPLER/, the results folders of `./run.sh rf_softmax`, or DIR/SAMPLER/seedK/,
finished or not, or what `./run.sh pack` made of these, and writes NAME.png and .pdf,
NAME.csv and NAME.md. The runs must have the same flags but for the
sampler and its own parameters. For precision@k, the poster's numbers
on its (much larger) data sets stand below the table.
"""

import dataclasses
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from experiments.common import (
    config,
    output_files,
    paired,
    plots,
    report_program,
    results,
    table_header,
)
from experiments.common.cells import Table
from experiments.common.table import as_markdown, mean_std
from tff_fedss import samplers, training
from tff_fedss.errors import InvalidInputError

_ORDER = (*samplers.SAMPLERS, "full")
KIND = results.RunKind(
    program="rf_softmax",
    run_name=lambda run_flags: run_flags["sampler"],
    choices={"sampler": _ORDER},
    columns=("steps",),
    cell_flags=frozenset({"sampler", "nu", "num_frequencies", "alpha", "leaf_size"}),
)
# Of the runs, for `./run.sh table`.
RUN = results.Run
_TITLES = {
    "perplexity": "validation perplexity",
    "precision_at_1": "P@1",
    "precision_at_3": "P@3",
    "precision_at_5": "P@5",
    "top1": "top-1",
}
_STYLES = {
    **{sampler: plots.style(i) for i, sampler in enumerate(samplers.SAMPLERS)},
    "full": plots.REFERENCE,
}
# What the poster orders, and what is beyond it: each beside the next, ends last.
_PAIRS = (
    ("full", "exp"),
    ("exp", "rff"),
    ("rff", "quadratic"),
    ("quadratic", "uniform"),
    ("rff", "uniform"),
    ("exp", "uniform"),
)
# Data set: n, and sampler: P@1, P@3, P@5.
_POSTER = {
    "AmazonCat-13k (n = 13,330)": {
        "exp": (0.87, 0.76, 0.62),
        "uniform": (0.83, 0.69, 0.55),
        "quadratic": (0.84, 0.74, 0.60),
        "rff": (0.87, 0.75, 0.61),
    },
    "Delicious-200k (n = 205,443)": {
        "exp": (0.42, 0.38, 0.37),
        "uniform": (0.36, 0.34, 0.32),
        "quadratic": (0.40, 0.36, 0.34),
        "rff": (0.41, 0.37, 0.36),
    },
    "WikiLSHTC (n = 325,056)": {
        "exp": (0.58, 0.37, 0.29),
        "uniform": (0.47, 0.29, 0.22),
        "quadratic": (0.57, 0.37, 0.28),
        "rff": (0.56, 0.35, 0.26),
    },
}


@dataclasses.dataclass(frozen=True)
class Config(report_program.Config):
    """What a user asks for."""

    name: str = config.flag("curves", "Of the files, without an ending.")


def write(
    results_dir: pathlib.Path,
    output_dir: pathlib.Path,
    name: str,
    command: Sequence[str] | None = None,
) -> str:
    """Writes the curves and the table.

    Args:
        results_dir: Holds the results folders, named by their samplers, or an archive.
        output_dir: Where to write; created if need be.
        name: Of the files, without an ending.
        command: What was given to write it, argument by argument.

    Returns:
        The page, in Markdown.

    Raises:
        InvalidInputError: If there is no measured run, a file of one is damaged, or
            runs do not belong together.
    """
    output_files.check_name(name)
    cells = _read(results_dir, _ORDER)
    return _write(cells, output_dir, name, "Sampled softmax", command)


def write_table(
    name: tuple[str, str],
    table: Table,
    results_dir: pathlib.Path,
    num_seeds: int,
    command: Sequence[str],
) -> str:
    """Writes what `./run.sh table` asks for; see `fedss.report.write_table`."""
    del num_seeds
    cells = _read(results_dir, list(table.cells))
    # Without what they share: the sampler, or nu and D.
    labels = {key: cell.title.rpartition(": ")[2] for key, cell in table.cells.items()}
    return _write(cells, results_dir, "_".join(name), table.title, command, labels)


def plot(
    runs: Mapping[str, Sequence[Sequence[training.Metrics]]],
    metric: str,
    title: str,
    path: pathlib.Path,
) -> None:
    """Draws a metric, and the training loss, by steps.

    Args:
        runs: The rows of each seed, by the name of the cell, which may be a sampler's;
            nothing is drawn of nothing.
        metric: The column to draw; of a perplexity the axis is logarithmic.
        title: How to write it.
        path: The PNG; replaced whole or not at all.
    """
    series = [
        plots.Series(name, _STYLES.get(name, plots.style(i)), seeds)
        for i, (name, seeds) in enumerate(runs.items())
    ]
    is_share = metric != "perplexity"
    look = {"from_zero": True} if is_share else {"log": "y"}
    losses = "training loss (each sampler's own)"
    plots.write_curves(
        path,
        [
            plots.panel(series, "steps", metric, "steps", title, **look),
            plots.panel(series, "steps", "loss", "steps", losses),
        ],
    )


def _write(
    cells: Mapping[str, Sequence[results.Run]],
    output_dir: pathlib.Path,
    name: str,
    title: str,
    command: Sequence[str] | None,
    labels: Mapping[str, str] | None = None,
) -> str:
    """Writes the curves, the rows of all seeds, and the table."""
    metrics = _metrics([run for seeds in cells.values() for run in seeds])
    folder = output_files.create_folder(output_dir)
    shown = {(labels or {}).get(key, key): runs for key, runs in cells.items()}
    rows = {label: [run.rows for run in seeds] for label, seeds in shown.items()}
    plot(rows, metrics[0], _TITLES[metrics[0]], folder / f"{name}.png")
    columns = ["steps", *metrics]
    output_files.write_csv(
        folder / f"{name}.csv",
        [
            {
                "sampler": sampler,
                "seed": run.seed,
                **{c: row.get(c, 0) for c in columns},
            }
            for sampler, seeds in cells.items()
            for run in seeds
            for row in run.rows
            if metrics[0] in row
        ],
        ["sampler", "seed", *columns],
    )
    text = table_header.head(title, cells, command) + _as_markdown(shown, metrics)
    text += _differences(cells, metrics)
    output_files.write_text(folder / f"{name}.md", text)
    return text


def _read(
    results_dir: pathlib.Path, names: Sequence[str]
) -> dict[str, list[results.Run]]:
    """Reads the runs of all cells that are there and have been measured.

    Args:
        results_dir: Holds CELL/, the folder of a run, or CELL/seedK/, or an archive.
        names: Of the cells. One that is called like a sampler has that.
    """
    found = results.find_cells(results_dir, loose=True)
    cells = {}
    for name in names:
        runs = [results.read_run(source, KIND) for source in found.get(name, ())]
        for run in runs:
            if name in _ORDER and run.name != name:
                raise InvalidInputError(
                    f"{run.path} is named for the sampler {name}, but has "
                    f"--sampler={run.name}."
                )
        results.check_same_cell(runs)
        runs = [r for r in runs if any(set(_TITLES) & set(row) for row in r.rows)]
        if runs:
            cells[name] = runs
    if not cells:
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no run with a measurement, for a "
            f"sampler of {', '.join(names)}."
        )
    results.check_same_table([run for runs in cells.values() for run in runs])
    return cells


def _metrics(runs: Sequence[results.Run]) -> list[str]:
    """Returns what was measured; a row has all of it, or nothing."""
    found = {c for run in runs for row in run.rows for c in row}
    metrics = [m for m in _TITLES if m in found]
    for run in runs:
        for line, row in enumerate(run.rows, 2):
            own = [m for m in metrics if m in row]
            if own not in ([], metrics):
                raise InvalidInputError(
                    f"{run.path / 'metrics.csv'}:{line}: {', '.join(own)} without "
                    f"{', '.join(m for m in metrics if m not in own)}."
                )
    return metrics


def _as_markdown(cells: Mapping[str, Sequence[results.Run]], metrics: list[str]) -> str:
    """A row for each cell: its last measurement, the mean if it has several seeds."""
    rows = []
    is_measured = any(
        "effective_samples" in row
        for runs in cells.values()
        for run in runs
        for row in run.rows
    )
    for name, runs in cells.items():
        lasts = [[row for row in run.rows if metrics[0] in row][-1] for run in runs]
        clipped, effective, mass = (
            _mean_of(lasts, column)
            for column in ("clipped_share", "effective_samples", "clipped_mass")
        )
        numbers = dict.fromkeys(f"{last.get('steps', 0):,}" for last in lasts)
        steps = ", ".join(numbers)
        steps += " (unfinished)" * (not all(run.is_done for run in runs))
        values = [
            mean_std([last[m] for last in lasts], 1 if m == "perplexity" else 3)
            for m in metrics
        ]
        own = [f"{clipped:.1%}" if clipped else ""]
        if is_measured:
            own += [
                "" if effective is None else f"{effective:.3g}",
                f"{mass:.1%}" if mass else "",
            ]
        rows.append([name, steps, *values, *own])
    header = ["sampler", "steps", *(_TITLES[m] for m in metrics), "clipped"]
    header += ["effective m", "clipped mass"] if is_measured else []
    text = f"{as_markdown(header, rows)}\n"
    if metrics[0] == "precision_at_1":
        posters = [
            [data, name, *(f"{value:.2f}" for value in values)]
            for data, by_sampler in _POSTER.items()
            for name, values in by_sampler.items()
        ]
        header = ["data", "sampler", "P@1", "P@3", "P@5"]
        text += f"\nThe poster's:\n\n{as_markdown(header, posters, left=(0, 1))}\n"
    return text


def _differences(
    cells: Mapping[str, Sequence[results.Run]], metrics: Sequence[str]
) -> str:
    """How far samplers are apart; "" of cells that are not named for a sampler."""
    is_perplexity = metrics[0] == "perplexity"
    rows = {
        _TITLES[metric]: [
            paired.between(
                *(cells.get(name, ()) for name in pair),
                metric,
                scale=1 if is_perplexity else 100,
            )
            for pair in _PAIRS
        ]
        for metric in metrics
    }
    what = "perplexity (less is better)" if is_perplexity else "precision, in points"
    return paired.as_markdown(what, [" − ".join(pair) for pair in _PAIRS], rows)


def _mean_of(rows: Sequence[training.Metrics], column: str) -> float | None:
    values = [row[column] for row in rows if column in row]
    return statistics.fmean(values) if values else None


if __name__ == "__main__":
    report_program.run("rf_softmax_report", write, Config())
