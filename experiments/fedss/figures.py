"""Figures 3 to 10 of the FedSS paper, drawn from our own runs.

    ./run.sh python -m experiments.fedss.figures --figures=7 --results_dirs=DIR

`./run.sh table` draws those of its runs alone, 3, 4 and 5 (10 in the appendix). This
program draws the others: 6 needs the runs of Table 1 and of the table figure6; 7 the
weights of FedSS and NegOnly; 8 no run; 9 the weights of FullSoftmax or, without these,
a new model. 7 and 9 need the data of the runs.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.common import config, page, program
from experiments.common import results as results_lib
from experiments.common.cells import Table
from experiments.fedss import model_figures, noise_figure, result_figures, table_results
from experiments.fedss.model_figures import LoadTask
from experiments.fedss.result_figures import NothingToDraw
from tff_fedss import files
from tff_fedss.errors import InvalidInputError

# The figures' captions.
CAPTIONS = {
    3: "learning curves by method, at the middle |S_k|",
    4: "convergence of FedSS by |S_k|",
    5: "metric against transmitted classifier parameters",
    6: "FedSS and NegOnly with equally many classes that push",
    7: "confusion matrices of one client's P_k",
    8: "share of the last layer in all parameters",
    9: "gradient noise against |N_k|",
    10: "metric against transmitted classifier parameters",
}
_OF_RESULTS = {
    3: result_figures.figure3,
    4: result_figures.figure4,
    5: result_figures.figure5,
    6: result_figures.figure6,
    10: result_figures.figure5,
}


def draw(
    number: int,
    path: pathlib.Path,
    results: table_results.Results | None = None,
    load_task: LoadTask | None = None,
    **options: Any,
) -> None:
    """Draws a figure from the existing cells.

    Args:
        number: The paper's number, a key of `CAPTIONS`.
        path: The PNG; a PDF is written beside it.
        results: The runs; only figure 8 needs none.
        load_task: Loads the data for figures 7 and 9, by default the runs' data set
            from its path in the flags.
        **options: Options of `noise_figure.figure9`.

    Raises:
        NothingToDraw: If the runs do not suffice for this figure; it has the reason.
        InvalidInputError: If a run's weights are damaged.
    """
    if number == 8:
        model_figures.figure8(path)
    elif results is None:
        raise NothingToDraw("it needs the results of runs")
    elif number in _OF_RESULTS:
        _OF_RESULTS[number](results, path)
    else:
        load_task = load_task or model_figures.load_task_of_flags
        if number == 7:
            model_figures.figure7(results, path, load_task)
        else:
            noise_figure.figure9_of_results(results, path, load_task, **options)


def draw_all(
    numbers: Sequence[int],
    table: Table,
    runs: Mapping[str, Sequence[results_lib.Run]],
    paper: pd.DataFrame,
    folder: pathlib.Path,
    stem: str,
) -> list[str]:
    """Draws figures of a table's runs; returns their lines of its page."""
    del stem
    results = table_results.of_runs(run for own in runs.values() for run in own)
    results = dataclasses.replace(results, paper=_paper_values(table, runs, paper))
    lines = []
    for number in numbers:
        try:
            draw(number, folder / f"figure{number}.png", results)
        except NothingToDraw as reason:
            lines += [f"Figure {number} is not drawn: {reason}.", ""]
        else:
            caption = f"Figure {number}: {CAPTIONS[number]}"
            lines += [f"![{caption}](figure{number}.png)", ""]
    return lines


def _paper_values(
    table: Table,
    runs: Mapping[str, Sequence[results_lib.Run]],
    paper: pd.DataFrame,
) -> dict[table_results.Setting, float]:
    values = {}
    for name, cell in table.cells.items():
        value = page.paper_value(paper, cell, table.metrics[0].name)
        if value is not None and runs[name]:
            (setting,) = table_results.of_runs(runs[name]).cells
            values[setting] = value
    return values


# --- The program ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """The flags of the program."""

    figures: tuple[str, ...] = config.flag(
        ("3", "4", "5"), "Numbers of the figures to draw, of 3 to 10."
    )
    results_dirs: tuple[str, ...] = config.flag(
        (), "The folders of the runs, CELL/seedK/, or of their runs.tar.xz."
    )
    output_dir: str | None = config.flag(
        None,
        "The output folder. Default: the first of --results_dirs, or results/figures.",
    )
    data_dir: str | None = config.flag(
        None, "The folder of the data set. Default: that of the runs."
    )
    num_negatives: tuple[str, ...] | None = config.flag(
        None, "The values of |N_k| of figure 9. Default: those of FedSS's runs."
    )
    clients_per_round: int | None = config.flag(
        None,
        "K of figure 9. Default: the run's. The paper's runs on SOP have 32.",
        low=1,
    )
    num_batches: int = config.flag(
        4,
        "The number of batches of 32 images, each of one client, that figure 9 "
        "averages over.",
        low=1,
    )


def main(config: Config) -> None:
    """Draws the figures and prints their paths."""
    known = {str(number): number for number in CAPTIONS}
    for text in config.figures:
        if text not in known:
            raise InvalidInputError(
                f"--figures has {text!r}, expected numbers of {', '.join(known)}."
            )
    options = {"num_batches": config.num_batches}
    if config.clients_per_round is not None:
        options["cohort_size"] = config.clients_per_round
    if config.num_negatives is not None:
        options["num_negatives"] = list(map(_size, config.num_negatives))
    moved = {} if config.data_dir is None else {"data_dir": config.data_dir}
    results = table_results.read(*config.results_dirs) if config.results_dirs else None
    folder = config.output_dir or next(iter(config.results_dirs), "results/figures")
    folder = files.make_folder(folder, f"--output_dir={folder}")
    for number in map(known.get, config.figures):
        path = folder / f"figure{number}.png"
        try:
            draw(
                number,
                path,
                results,
                lambda flags: model_figures.load_task_of_flags({**flags, **moved}),
                **options,
            )
        except NothingToDraw as reason:
            print(f"Figure {number} is not drawn: {reason}.")
        else:
            print(f"Figure {number}: {CAPTIONS[number]}: {path}")


def _size(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise InvalidInputError(
            f"--num_negatives has {text!r}, expected whole numbers above 0."
        )
    return int(text)


if __name__ == "__main__":
    program.run(main, Config())
