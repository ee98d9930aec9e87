"""LEAP, SPLD and Random side by side: Table 1, and figures 2 to 11.

    ./run.sh leap_report --results_dir=results/leap --output_dir=docs/results/leap

reads results/leap/SETTING/METHOD/seedN/, the results folders of `./run.sh leap`,
finished or not, in which the runs of a setting differ in method and seed alone; or what
`./run.sh pack` made of them. It writes table1.md and table1.csv with the paper's
numbers beside ours, and for each setting (any name, such as cifar10_mini) curves.png
(figures 2, 4, 6, 7, 9, 10), selection.png, and embedding.png (figures 3, 5, 8, 11; not
of packed runs, which are without representations), with the setting's name before each,
and likewise .pdf. It takes seconds, and about 10 more per setting for t-SNE.
"""

import pathlib
from collections.abc import Mapping, Sequence

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
from experiments.common.table import as_markdown
from experiments.leap import figures as leap_figures
from tff_fedss import training
from tff_fedss.errors import InvalidInputError

# Table 1 of the paper: test accuracy in percent, five runs (four of the last two).
PAPER = {
    "mnist": {"leap": "99.31 ± 0.06", "spld": "99.20 ± 0.05", "random": "99.24 ± 0.06"},
    "fashion_mnist": {
        "leap": "93.76 ± 0.11",
        "spld": "93.17 ± 0.18",
        "random": "92.95 ± 0.14",
    },
    "cifar10": {
        "leap": "95.12 ± 0.16",
        "spld": "94.42 ± 0.21",
        "random": "94.49 ± 0.12",
    },
    "cifar100": {
        "leap": "79.17 ± 0.24",
        "spld": "74.67 ± 0.30",
        "random": "75.45 ± 0.25",
    },
    "svhn_cropped": {
        "leap": "97.65 ± 0.09",
        "spld": "97.38 ± 0.06",
        "random": "97.43 ± 0.11",
    },
}
# What makes the data harder, by the run's seed. The paper has no such number.
_HARD_FLAGS = ("label_noise", "merge_classes", "near_duplicates")


def _is_hard(flags: results.Flags) -> bool:
    return any(float(flags.get(name) or 0) for name in _HARD_FLAGS)


# What differs in a setting: the method, and how its clusters begin.
KIND = results.RunKind(
    program="leap",
    run_name=lambda run_flags: run_flags["method"],
    choices={"method": leap_figures.METHODS},
    columns=("steps",),
    cell_flags=frozenset({"method", "embedding_warmup"}),
    has_own_data=_is_hard,
)
# Of the runs, for `./run.sh table`.
RUN = results.Run

# Columns that not every table has; those of hard data alone, and what they show of the
# last row of metrics.csv.
_BEST, _PAPER = "best %", "paper's Table 1"
_OF_HARD_DATA = {
    "rare top-1 %": "rare_top1",
    "wrong labels selected %": "mislabelled_share",
    "rare selected %": "rare_share",
    "copies selected %": "copied_share",
}
# What is compared, seed by seed.
_PAIRS = (
    ("leap", "random"),
    ("leap", "spl"),
    ("leap", "spld"),
    ("spld", "random"),
    ("spl", "random"),
)
_METRICS = {"top1": "", "rare_top1": ", rare"}

_PAPER_NOTE = " The paper's numbers are of its full settings, whatever ours is."

# By setting and method, the runs by seed.
Settings = dict[str, dict[str, list[results.Run]]]


def write(
    results_dir: pathlib.Path,
    output_dir: pathlib.Path,
    command: Sequence[str] | None = None,
    title: str = "LEAP, Table 1",
) -> str:
    """Writes the table and the figures.

    Args:
        results_dir: Holds SETTING/METHOD/seedN, the results folders, or an archive.
        output_dir: Where to write; created if need be.
        command: What was given to write it, argument by argument.
        title: Of the page.

    Returns:
        The page, in Markdown.

    Raises:
        InvalidInputError: If there is no measured run, a file of one is damaged, or
            runs do not belong together.
    """
    settings = _read(results_dir)
    folder = output_files.create_folder(output_dir)
    for setting, methods in settings.items():
        _draw(setting, methods, folder)
    rows = [
        _table_row(setting, method, runs, methods.get("random"))
        for setting, methods in settings.items()
        for method, runs in methods.items()
    ]
    shown = {name for row in rows for name in (_PAPER, *_OF_HARD_DATA) if row[name]}
    if shown - {_PAPER}:  # Elsewhere nothing falls.
        shown.add(_BEST)
    hidden = {_BEST, _PAPER, *_OF_HARD_DATA} - shown
    rows = [{k: v for k, v in row.items() if k not in hidden} for row in rows]
    # With all digits: who rounds what is rounded already may be off by one.
    exact = [_exact(runs) for methods in settings.values() for runs in methods.values()]
    output_files.write_csv(
        folder / "table1.csv",
        [{**row, **own} for row, own in zip(rows, exact, strict=True)],
    )
    cells = {
        f"{setting}/{method}": runs
        for setting, methods in settings.items()
        for method, runs in methods.items()
    }
    text = (
        f"{table_header.head(title, cells, command)}"
        f"{as_markdown(list(rows[0]), [row.values() for row in rows], left=(0, 1))}\n\n"
        "Mean and standard deviation over seeds, at the last mini-batch that all seeds "
        f"have.{_PAPER_NOTE * (_PAPER in shown)}\n{_differences(settings)}"
    )
    output_files.write_text(folder / "table1.md", text)
    return text


def write_table(
    name: tuple[str, str],
    table: Table,
    results_dir: pathlib.Path,
    num_seeds: int,
    command: Sequence[str],
) -> str:
    """Writes what `./run.sh table` asks for; see `fedss.report.write_table`."""
    del name, num_seeds
    return write(results_dir, results_dir, command, table.title)


def _read(results_dir: pathlib.Path) -> Settings:
    settings: Settings = {}
    found = results.find_cells(results_dir, depth=2)
    for setting in dict.fromkeys(cell.rpartition("/")[0] for cell in found):
        methods = {}
        for method in leap_figures.METHODS:
            if runs := _read_cell(method, found.get(f"{setting}/{method}", ())):
                methods[method] = runs
        if methods:
            results.check_same_table([run for runs in methods.values() for run in runs])
            settings[setting] = methods
    if not settings:
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no run SETTING/METHOD/seedN with a "
            f"measurement, for a method of {', '.join(leap_figures.METHODS)}."
        )
    return settings


def _read_cell(method: str, sources: Sequence[results.RunFolder]) -> list[results.Run]:
    """Reads the runs of a method that have been measured."""
    runs = [results.read_run(source, KIND) for source in sources]
    for run in runs:
        if run.name != method:
            raise InvalidInputError(
                f"{run.path} has --method={run.name}, in the folder {method}."
            )
        if run.rows and "top1" not in run.rows[0]:
            where = run.source.at("metrics.csv", 2)
            raise InvalidInputError(f"{where}: there is no top1.")
    runs = [run for run in runs if run.rows]
    results.check_same_cell(runs)
    return runs


def _draw(
    setting: str, methods: Mapping[str, Sequence[results.Run]], folder: pathlib.Path
) -> None:
    rows = {method: [run.rows for run in runs] for method, runs in methods.items()}
    leap_figures.plot_curves(rows, folder / f"{setting}_curves.png")
    leap_figures.plot_selection(rows, folder / f"{setting}_selection.png")
    for run in methods.get("leap", ()):
        path = run.path / "representations.npz"
        if path.exists():
            leap_figures.plot_embedding(
                run.rows, *_read_embedding(path), folder / f"{setting}_embedding.png"
            )
            return


def _read_embedding(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Reads representations, labels and the names of classes."""
    saved = training.read_arrays(path)
    for name in ("representations", "labels", "class_names"):
        if name not in saved:
            raise InvalidInputError(f"{path} is damaged: it has no {name}.")
    points, labels = saved["representations"], saved["labels"]
    names = saved["class_names"].tolist()
    if not (
        points.ndim == 2
        and len(points) >= 4  # What t-SNE needs.
        and points.shape[1] > 0
        and np.issubdtype(points.dtype, np.floating)
        and np.isfinite(points).all()
        and labels.shape == points.shape[:1]
        and np.issubdtype(labels.dtype, np.integer)
        and saved["class_names"].ndim == 1
        and 0 <= labels.min() <= labels.max() < len(names)
    ):
        raise InvalidInputError(
            f"{path} is damaged: expected representations float[examples, d], "
            "finite and of 4 or more, labels int[examples] and a name for each class."
        )
    return points, labels, names


def _table_row(
    setting: str,
    method: str,
    runs: Sequence[results.Run],
    random: Sequence[results.Run] | None,
) -> dict[str, str]:
    """One row of the table, as text; blank is what is not known."""
    curve = _accuracy(runs)
    steps, mean, spread = curve.x, curve.y, curve.std
    reached = ""
    if random is not None:
        is_reached = mean >= _accuracy(random).y[-1]
        reached = f"{steps[is_reached.argmax()]:,}" if is_reached.any() else "not"
    flags = runs[0].flags
    dataset = flags.get("dataset", "")
    last = f"{mean[-1]:.2f}"
    if len(runs) > 1:
        last += f" ± {spread[-1]:.2f}"
    unfinished = sum(not run.is_done for run in runs)
    return {
        "setting": setting,
        "method": leap_figures.METHODS[method],
        "mini-batches": f"{steps[-1]:,}",
        "seeds": str(len(runs)) + (f" ({unfinished} unfinished)" * bool(unfinished)),
        "top-1 %": last,
        _BEST: _at_best(runs),
        **{name: _last_share(runs, column) for name, column in _OF_HARD_DATA.items()},
        "reaches Random's last after": reached,
        _PAPER: "" if _is_hard(flags) else PAPER.get(dataset, {}).get(method, ""),
    }


def _exact(runs: Sequence[results.Run]) -> dict[str, float | None]:
    """The numbers of a row of the CSV, in place of what the page has of them."""
    curve = _accuracy(runs)
    return {"top-1 %": curve.y[-1], "std": curve.std[-1] if len(runs) > 1 else None}


def _differences(settings: Settings) -> str:
    """A table of how far methods are apart after the last mini-batch."""
    titles = [" − ".join(leap_figures.METHODS[m] for m in pair) for pair in _PAIRS]
    rows = {}
    for setting, methods in settings.items():
        runs = [run for runs in methods.values() for run in runs if run.is_done]
        for metric, what in _METRICS.items():
            if all(metric in run.rows[-1] for run in runs):
                rows[f"{setting}{what}"] = [
                    paired.between(*(methods.get(m, ()) for m in pair), metric)
                    for pair in _PAIRS
                ]
    return paired.as_markdown("top-1, in points", titles, rows)


def _at_best(runs: Sequence[results.Run]) -> str:
    """The highest mean accuracy in percent, and after how many mini-batches."""
    curve = _accuracy(runs)
    best = int(np.argmax(curve.y))
    return f"{curve.y[best]:.2f} ({curve.x[best]:,})"


def _last_share(runs: Sequence[results.Run], column: str) -> str:
    """The mean in percent of what the runs end with, if they have measured it."""
    shares = [run.rows[-1].get(column) for run in runs]
    return "" if None in shares else f"{100 * np.mean(shares):.1f}"


def _accuracy(runs: Sequence[results.Run]) -> plots.Curve:
    """The mean accuracy in percent, by mini-batches."""
    series = plots.Series("", plots.REFERENCE, [run.rows for run in runs])
    return plots.panel([series], "steps", "top1", "", "", scale=100).curves[0]


if __name__ == "__main__":
    report_program.run("leap_report", write)
