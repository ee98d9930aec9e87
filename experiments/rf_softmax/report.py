"""Curves and a table of sampled softmax runs, a sampler a row.

    ./run.sh rf_softmax_report --results_dir=DIR --output_dir=DIR --name=ptb

reads DIR/SAMPLER/, the results folders of `./run.sh rf_softmax`, or DIR/SAMPLER/seedK/,
finished or not, and writes NAME.png, NAME.csv and NAME.md. The runs must have the same
flags but for the sampler and its own parameters. For precision@k, the poster's numbers
on its (much larger) data sets stand below the table.
"""

import dataclasses
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from experiments.common import config, output_files, program, results
from experiments.common.cells import Table
from experiments.rf_softmax import curves as sampler_curves
from tff_fedss import samplers
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
class Config(config.Config):
    """What a user asks for."""

    results_dir: str = config.flag(
        None,
        "Holds the results folders, named by their samplers.",
        needed="DIR is needed.",
    )
    output_dir: str = config.flag(
        None,
        "Where to write.",
        needed="DIR is needed.",
    )
    name: str = config.flag("curves", "Of the files, without an ending.")


def main(config: Config) -> None:
    """Reads and writes."""
    text = write(
        pathlib.Path(config.results_dir),
        pathlib.Path(config.output_dir),
        config.name,
    )
    print(text)


def write(results_dir: pathlib.Path, output_dir: pathlib.Path, name: str) -> str:
    """Writes the curves and the table.

    Args:
        results_dir: Holds the results folders, named by their samplers.
        output_dir: Where to write; created if need be.
        name: Of the files, without an ending.

    Returns:
        The table, in Markdown.

    Raises:
        InvalidInputError: If there is no measured run, a file of one is damaged, or
            runs do not belong together.
    """
    output_files.check_name(name)
    return _write(_read(results_dir, _ORDER), output_dir, name)


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
    text = _write(cells, results_dir, "_".join(name))
    head = results.head(table.title, cells.values(), command)
    return f"{head}\n{text}"


def _write(
    cells: Mapping[str, Sequence[results.Run]], output_dir: pathlib.Path, name: str
) -> str:
    """Writes the curves of the first seeds, their rows, and the table of all."""
    runs = {cell: seeds[0] for cell, seeds in cells.items()}
    metrics = _metrics([run for seeds in cells.values() for run in seeds])
    folder = output_files.create_folder(output_dir)
    sampler_curves.plot(
        {sampler: run.rows for sampler, run in runs.items()},
        metrics[0],
        _TITLES[metrics[0]],
        folder / f"{name}.png",
        is_share=metrics[0] != "perplexity",
    )
    columns = ["steps", *metrics]
    output_files.write_csv(
        folder / f"{name}.csv",
        [
            {"sampler": sampler, **{c: row.get(c, 0) for c in columns}}
            for sampler, run in runs.items()
            for row in run.rows
            if metrics[0] in row
        ],
        ["sampler", *columns],
    )
    text = _as_markdown(cells, metrics)
    output_files.write_text(folder / f"{name}.md", text)
    return text


def _read(
    results_dir: pathlib.Path, names: Sequence[str]
) -> dict[str, list[results.Run]]:
    """Reads the runs of all cells that are there and have been measured.

    Args:
        results_dir: Holds CELL/, the folder of a run, or CELL/seedK/.
        names: Of the cells. One that is called like a sampler has that.
    """
    cells = {}
    for name in names:
        folder = results_dir / name
        paths = [folder] if results.has_begun(folder) else results.seed_folders(folder)
        runs = [results.read_run(path, KIND) for path in paths]
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
            f"--results_dir={results_dir} holds no SAMPLER/metrics.csv with a "
            f"measurement, for a sampler of {', '.join(names)}."
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
    lines = [
        "| sampler | steps | "
        + " | ".join(_TITLES[m] for m in metrics)
        + " | clipped |",
        "|---" * (len(metrics) + 3) + "|",
    ]
    for name, runs in cells.items():
        lasts = [[row for row in run.rows if metrics[0] in row][-1] for run in runs]
        values = [_over_seeds(m, [last[m] for last in lasts]) for m in metrics]
        clipped = lasts[0].get("clipped_share", "")
        clipped = f"{clipped:.1%}" if clipped else ""
        numbers = dict.fromkeys(f"{last.get('steps', 0):,}" for last in lasts)
        steps = ", ".join(numbers)
        steps += " (unfinished)" * (not all(run.is_done for run in runs))
        lines.append(f"| {name} | {steps} | {' | '.join(values)} | {clipped} |")
    if metrics[0] == "precision_at_1":
        lines += ["", "The poster's:", "", "| data | sampler | P@1 | P@3 | P@5 |"]
        lines.append("|---|---|---|---|---|")
        for data, rows in _POSTER.items():
            for name, values in rows.items():
                cells = " | ".join(f"{value:.2f}" for value in values)
                lines.append(f"| {data} | {name} | {cells} |")
    return "\n".join(lines) + "\n"


def _over_seeds(metric: str, values: Sequence[float]) -> str:
    text = _format(metric, statistics.fmean(values))
    if len(values) > 1:
        text += f" ± {_format(metric, statistics.stdev(values))}"
    return text


def _format(metric: str, value: float) -> str:
    return f"{value:.1f}" if metric == "perplexity" else f"{value:.3f}"


if __name__ == "__main__":
    program.run(main, Config())
