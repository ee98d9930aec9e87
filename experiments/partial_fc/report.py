"""A table and curves of Partial FC runs: are the positives what must be kept?

    ./run.sh partial_fc_report --results_dir=DIR --output_dir=DIR --name=omniglot

reads the results folders of `./run.sh partial_fc` in DIR, at any depth, finished or
not, or what `./run.sh pack` made of them, and writes NAME.png and .pdf (TAR@FAR, CA_pcc
and the loss by steps), NAME.csv (a row per measurement of CA_pcc) and NAME.md. Runs of
one --sampling and --sample_rate (`pprn_0.1`, ...) are one row and one curve: the mean
and the standard deviation over seeds, in the row at the last step that all of them
have. All other flags must be the same, but for those in which the cells of a table are
meant to differ, which are shown. Takes seconds.
"""

import dataclasses
import os
import pathlib
from collections.abc import Collection, Mapping, Sequence

from experiments.common import (
    archive,
    config,
    output_files,
    paired,
    plots,
    report_program,
    results,
    search_page,
    table_header,
)
from experiments.common.cells import Table
from experiments.common.table import as_markdown, mean_std
from tff_fedss import samplers, training
from tff_fedss.errors import InvalidInputError
from tff_fedss.tasks.identities import IdentityVerification

_TITLES = {
    "tar_at_far": IdentityVerification.metric_title,
    "pair_accuracy": "pair accuracy",
    "map_at_r": "MAP@R",
    "top1": "top-1",
    "lfw_accuracy": "LFW accuracy",
    "lfw_std": "LFW, std of folds",
    "ca_pcc": "CA_pcc",
    "trained_share": "examples with a target",
    "classes_per_step": "classes in a step",
}


# What is compared seed by seed, where it was measured.
_COMPARED = ("tar_at_far", "pair_accuracy", "map_at_r", "top1", "lfw_accuracy")


def _run_name(run_flags: results.Flags) -> str:
    rate = float(run_flags["sample_rate"])
    return "full" if rate == 1 else f"{run_flags['sampling']}_{rate:g}"


KIND = results.RunKind(
    program="partial_fc",
    run_name=_run_name,
    choices={"sampling": samplers.SAMPLINGS},
    numbers=("sample_rate",),
    columns=("steps",),
    cell_flags=frozenset({"sampling", "sample_rate"}),
    has_own_data=lambda flags: flags.get("dataset") == "generated",
)
# Of the runs, for `./run.sh table`.
RUN = results.Run


@dataclasses.dataclass(frozen=True)
class Config(report_program.Config):
    """What a user asks for."""

    name: str = config.flag("partial_fc", "Of the files, without an ending.")


def write(
    results_dir: pathlib.Path,
    output_dir: pathlib.Path,
    name: str,
    command: Sequence[str] | None = None,
    title: str = "Partial FC",
    may_differ: Collection[str] = (),
) -> str:
    """Writes the curves and the table.

    Args:
        results_dir: Holds the results folders, or an archive of them.
        output_dir: Where to write; created if need be.
        name: Of the files.
        command: What was given to write it, argument by argument.
        title: Of the page.
        may_differ: Flags in which runs are meant to differ, besides those of `KIND`.

    Returns:
        The page, in Markdown.

    Raises:
        InvalidInputError: If there is no measured run, a file of one is damaged, or
            runs do not belong together.
    """
    output_files.check_name(name)
    cells = _read(results_dir, may_differ)
    output_files.create_folder(output_dir)
    rows = {key: [*map(_rows, runs)] for key, runs in cells.items()}
    plot(rows, output_dir / f"{name}.png")
    columns = ["steps", "loss", *_TITLES]
    output_files.write_csv(
        output_dir / f"{name}.csv",
        [
            {"run": key, "seed": run.seed, **row}
            for key, seeds in cells.items()
            for run, rows_of_run in zip(seeds, rows[key], strict=True)
            for row in rows_of_run
        ],
        ["run", "seed", *columns],
    )
    text = table_header.head(title, cells, command) + _as_markdown(cells, may_differ)
    text += _differences(cells)
    output_files.write_text(output_dir / f"{name}.md", text)
    return text


def plot(
    runs: Mapping[str, Sequence[Sequence[training.Metrics]]], path: pathlib.Path
) -> None:
    """Draws TAR@FAR, CA_pcc and the loss by steps.

    Args:
        runs: The rows of each seed, by name: "full", or SAMPLING_RATE; nothing is drawn
            of nothing.
        path: The PNG; replaced whole or not at all.
    """
    # A color for each way of sampling; rates in the order that is given.
    parts = {name: name.rpartition("_") for name in runs}
    rates = sorted({float(rate) for *_, rate in parts.values() if rate != "full"})
    series = []
    for name, seeds in runs.items():
        sampling, _, rate = parts[name]
        look = plots.REFERENCE
        if sampling:
            color = plots.style(samplers.SAMPLINGS.index(sampling)).color
            look = plots.style(rates.index(float(rate)))._replace(color=color)
        series.append(plots.Series(name, look, seeds))
    titles = {**_TITLES, "loss": "training loss (over each sample)"}
    plots.write_curves(
        path,
        [
            plots.panel(series, "steps", column, "steps", titles[column])
            for column in ("tar_at_far", "ca_pcc", "loss")
        ],
    )


def write_table(
    name: tuple[str, str],
    table: Table,
    results_dir: pathlib.Path,
    num_seeds: int,
    command: Sequence[str],
) -> str:
    """Writes what `./run.sh table` asks for; see `fedss.report.write_table`."""
    if name[0] == "rates":
        return search_page.write(
            table,
            results_dir,
            num_seeds,
            command,
            metric="map_at_r",
            metric_title=_TITLES["map_at_r"],
        )
    return write(
        results_dir,
        results_dir,
        "_".join(name),
        command,
        table.title,
        frozenset(table.differing_settings()),
    )


def _read(
    results_dir: pathlib.Path, may_differ: Collection[str]
) -> dict[str, list[results.Run]]:
    """Reads all runs that have been measured, by name and then by seed."""
    if not results_dir.is_dir():
        raise InvalidInputError(f"--results_dir={results_dir} is no folder.")
    cells: dict[str, list[results.Run]] = {}
    if (results_dir / archive.NAME).exists():
        found = results.find_cells(results_dir).values()
        sources = [source for of_cell in found for source in of_cell]
    else:
        folders = [pathlib.Path(p) for p, *_ in os.walk(results_dir, onerror=_raise)]
        sources = sorted(filter(results.has_begun, folders))
    for source in sources:
        run = results.read_run(source, KIND)
        if any("ca_pcc" in row for row in run.rows):
            cells.setdefault(run.name, []).append(run)
    if not cells:
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no RUN/metrics.csv with CA_pcc."
        )
    for runs in cells.values():
        runs.sort(key=lambda run: run.seed)
        results.check_same_cell(runs)
    results.check_same_table(
        [run for runs in cells.values() for run in runs], may_differ
    )
    return dict(sorted(cells.items(), key=lambda item: (item[0] != "full", item[0])))


def _raise(error: OSError) -> None:
    raise error


def _rows(run: results.Run) -> list[training.Metrics]:
    """The rows with the steps before the first round, which are none."""
    return [
        {"steps": 0.0, **{k: float(v) for k, v in row.items() if k != "method"}}
        for row in run.rows
    ]


def _as_markdown(
    cells: Mapping[str, Sequence[results.Run]], may_differ: Collection[str]
) -> str:
    """A row for each name: the last measurement of each column that all seeds have."""
    own_flags = sorted(set(may_differ) - KIND.cell_flags)
    columns = [
        c
        for c in _TITLES
        if any(c in row for runs in cells.values() for run in runs for row in run.rows)
    ]
    rows = []
    for name, runs in cells.items():
        unfinished = sum(not run.is_done for run in runs)
        seeds = f"{len(runs)}" + f" ({unfinished} unfinished)" * bool(unfinished)
        steps = min(run.rows[-1].get("steps", 0) for run in runs)
        values = [
            mean_std(_last(c, runs), 0 if c == "classes_per_step" else 3)
            for c in columns
        ]
        own = [runs[0].flags.get(flag, "") for flag in own_flags]
        rows.append([name, *own, seeds, f"{steps:,}", *values])
    own_titles = [flag.replace("_", " ") for flag in own_flags]
    header = ["run", *own_titles, "seeds", "steps", *(_TITLES[c] for c in columns)]
    return f"{as_markdown(header, rows)}\n"


def _differences(cells: Mapping[str, Sequence[results.Run]]) -> str:
    """What samples cost beside r = 1, and what keeping the positives brings."""
    pairs = [(name, "full") for name in cells if name != "full"]
    pairs += [
        (name, other)
        for name in cells
        if (other := name.replace("pprn", "all_random")) != name
    ]
    done = [run for runs in cells.values() for run in runs if run.is_done]
    rows = {
        _TITLES[metric]: [
            paired.between(*(cells.get(name, ()) for name in pair), metric)
            for pair in pairs
        ]
        for metric in _COMPARED
        if all(metric in run.rows[-1] for run in done)
    }
    return paired.as_markdown("points", [" − ".join(pair) for pair in pairs], rows)


def _last(column: str, runs: Sequence[results.Run]) -> list[float]:
    """The values of all runs after the last round in which all have one."""
    by_round = [
        {row["round"]: row[column] for row in run.rows if column in row} for run in runs
    ]
    common = set.intersection(*map(set, by_round))
    return [values[max(common)] for values in by_round] if common else []


if __name__ == "__main__":
    report_program.run("partial_fc_report", write, Config())
