"""Tables and figures of the paper, from what runs have measured.

    ./run.sh report --table=1 --scale=mini --results_dir=results/table1_mini

reads the runs that `./run.sh table 1 --scale=mini` has left, finished or not, and
writes table1.md and table1.csv, in the shape of the paper's table with its numbers
beside ours, and the figures that go with it. It takes seconds and changes no run.

    ./run.sh report --table=1 --scale=mini --figures=3,4,5,7 --output_dir=DIR
    ./run.sh report --figures=8

Figures 7 and 9 look at the data of the runs, so they must still be where they were, or
at --data_dir. Figure 8 is computed from the network alone.
"""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence

from experiments.common import config, output_files, program, search_page
from experiments.common.cells import Cell, Table
from experiments.fedss import cells as cells_lib
from experiments.fedss import (
    differences,
    model_figures,
    paper_table,
    paper_values,
    result_figures,
    table_lines,
    table_results,
)
from experiments.fedss import figures as figures_lib
from experiments.fedss import paired_runs as paired
from tff_fedss import tasks
from tff_fedss.errors import InvalidInputError

SCALES = ("mini", "chunks", "tiny_imagenet", "paper")
NUM_SEEDS = 3  # Section 4.1: three independent runs.
_DEFAULT_FIGURES = {1: (3, 4, 5), 2: (3, 4, 5), 3: (3, 4, 10), 4: ()}
# Of the runs, for `./run.sh table`.
KIND, RUN = table_results.KIND, table_results.Run


def write(
    results_dir: str | os.PathLike,
    table: int,
    scale: str,
    *,
    figures: Sequence[int] | None = None,
    output_dir: str | os.PathLike | None = None,
    more_results_dirs: Sequence[str | os.PathLike] = (),
    cells: Table | None = None,
    num_seeds: int = NUM_SEEDS,
    load_task: model_figures.LoadTask | None = None,
    command: Sequence[str] | None = None,
) -> str:
    """Writes a table of the paper from our runs: tableN.md, tableN.csv and figures.

    Files are replaced whole or not at all. Unfinished cells are `-`. Cells differ in
    what the table is about, and in what their flagfiles have differently.

    Args:
        results_dir: Holds CELL/seedK/, the folders of the runs.
        table: 1 to 4.
        scale: One of `SCALES`: which cells there are to be.
        figures: The figures to draw; None: those that need the runs of this table
            alone (3, 4 and 5 or 10; 6 if there are cells for it).
        output_dir: Where to write; by default the results_dir.
        more_results_dirs: Folders like results_dir with more cells for the figures.
        cells: What there is to be; by default the table in `cells`.
        num_seeds: How many seeds a cell is to have.
        load_task: For figures 7 and 9, see `figures.draw`.
        command: What was given to write it, argument by argument; it stands in the
            table.

    Returns:
        The text of tableN.md.

    Raises:
        InvalidInputError: If there is no run of the table, or a file of one is damaged,
            or the files cannot be written.
    """
    paper = paper_values.TABLES[table]
    cells = cells or cells_lib.TABLES.get((str(table), scale))
    may_differ = frozenset(() if cells is None else cells.differing_settings())
    results = table_results.read(results_dir, may_differ=may_differ)
    pool = (
        table_results.read(results_dir, *more_results_dirs, may_differ=may_differ)
        if more_results_dirs
        else results
    )
    expected = table_lines.expected_cells(() if cells is None else cells.cells)
    results = table_lines.cells_of_table(results, paper, expected)
    lines = table_lines.lines_of(results, paper, expected, num_seeds)
    folder = output_files.create_folder(output_dir or results_dir)
    if figures is None:
        figures = _DEFAULT_FIGURES[table]
        if table in (1, 2) and result_figures.compositions(pool):
            figures = (*figures, 6)
    pictures = [
        _figure_text(number, folder, pool, load_task, in_markdown=True)
        for number in figures
    ]
    table_text = paper_table.as_markdown(results, paper, scale, lines, command)
    text = "\n".join([table_text, *pictures])
    text = text.rstrip("\n") + "\n"
    output_files.write_text(
        folder / f"table{table}.csv", paper_table.as_csv(results, paper, lines)
    )
    output_files.write_text(folder / f"table{table}.md", text)
    return text


def default_rounds(cell: Cell) -> int:
    """Returns how many rounds a cell has that does not say so: by its data set.

    Raises:
        InvalidInputError: If there is no such data set or task.
    """
    _, settings = _experiment(cell)
    return settings.rounds


def _experiment(cell: Cell) -> tuple[str, tasks.Settings]:
    """Which of `tasks.KINDS` a cell is, and the settings of its data set for that.

    Raises:
        InvalidInputError: If there is no such data set or task.
    """
    dataset = cell.settings.get("dataset", "glyphs")
    settings = tasks.FAMILIES[dataset].settings if dataset in tasks.FAMILIES else {}
    kind = cell.settings.get("task", next(iter(settings), None))
    if kind not in settings:
        raise InvalidInputError(
            f"{cell.title}: there is no --dataset={dataset} with --task={kind}."
        )
    return kind, settings[kind]


def write_table(
    name: tuple[str, str],
    table: Table,
    results_dir: pathlib.Path,
    num_seeds: int,
    command: Sequence[str],
) -> str:
    """Writes what `./run.sh table` asks for.

    Args:
        name: Of the table, and its scale.
        table: The cells that there are to be.
        results_dir: Holds CELL/seedK/, the folders of the runs.
        num_seeds: How many seeds a cell is to have.
        command: What was given, argument by argument.

    Returns:
        The table or, of a figure, a line.
    """
    number, scale = name
    if number == "figure6":
        return write_figure(results_dir, 6)
    if not number.isdecimal():  # There is no such table in the paper.
        kind, _ = _experiment(next(iter(table.cells.values())))
        task = tasks.KINDS[kind]
        return search_page.write(
            table,
            results_dir,
            num_seeds,
            command,
            metric=task.metric,
            metric_title=task.metric_title,
            more=_differences,
        )
    return write(
        results_dir,
        int(number),
        scale,
        cells=table,
        num_seeds=num_seeds,
        command=command,
    )


def _differences(found: search_page.Found) -> list[str]:
    """How far methods are apart, if it is methods that the cells differ in."""
    cells = [
        table_results.Cell(name, tuple(runs)) for name, runs in found.items() if runs
    ]
    by_setting = {cell.setting: cell for cell in cells}
    if len(by_setting) < len(cells) or not cells:
        return []
    results = table_results.Results(by_setting)
    sizes = results.num_negatives("fedss")
    task = results.task
    return differences.as_markdown(results, sizes, task.metric, task.metric_title)


def write_figure(
    results_dir: str | os.PathLike | None,
    number: int,
    *,
    output_dir: str | os.PathLike | None = None,
    more_results_dirs: Sequence[str | os.PathLike] = (),
    load_task: model_figures.LoadTask | None = None,
) -> str:
    """Draws one figure of the paper from our runs: figureN.png.

    Args:
        results_dir: Holds CELL/seedK/, the folders of the runs; figure 8 needs none.
        number: As the paper counts them, 3 to 10.
        output_dir: Where to write; by default the results_dir.
        more_results_dirs: Folders like results_dir with more cells.
        load_task: For figures 7 and 9, see `figures.draw`.

    Returns:
        A line that says where the figure is, or why it is not drawn; for figure 6 a
        line for each pair of bars too, with the 95 % interval of their difference.

    Raises:
        InvalidInputError: If there is no run, or a file of one is damaged, or the
            figure cannot be written.
    """
    results = None
    if results_dir is not None and number != 8:
        results = table_results.read(results_dir, *more_results_dirs)
    folder = output_files.create_folder(output_dir or results_dir)
    text = _figure_text(number, folder, results, load_task, in_markdown=False)
    if number == 6 and results is not None:
        for pair in result_figures.compositions(results):
            lines = [
                table_lines.line_of(results, c.setting, c.name, None, NUM_SEEDS)
                for c in pair
            ]
            text += "\n  " + "; ".join(f"{x.setting}: {x} %" for x in lines)
            ahead = paired.between(*(c.runs for c in pair), results.task.metric)
            if ahead is not None:
                text += f"; ahead by {ahead}"
    return text


def _figure_text(
    number: int,
    folder: pathlib.Path,
    results: table_results.Results | None,
    load_task: model_figures.LoadTask | None,
    in_markdown: bool,
) -> str:
    if number not in figures_lib.CAPTIONS:
        known = ", ".join(map(str, figures_lib.CAPTIONS))
        raise InvalidInputError(f"--figures={number} must be of {known}.")
    path = folder / f"figure{number}.png"
    try:
        figures_lib.draw(number, path, results, load_task)
    except figures_lib.NothingToDraw as reason:
        text = f"Figure {number} is not drawn: {reason}."
    else:
        caption = f"Figure {number}: {figures_lib.CAPTIONS[number]}"
        if not in_markdown:
            return f"{caption}: {path}"
        text = f"![{caption}]({path.name})"
    return f"{text}\n" if in_markdown else text


# --- The program ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    table: str | None = config.flag(
        None, "The paper's table.", choices=[str(n) for n in paper_values.TABLES]
    )
    scale: str = config.flag(
        "mini", "Which cells it has, see ./run.sh table.", choices=SCALES
    )
    results_dir: str | None = config.flag(
        None, "Where the runs are: CELL/seedK/. Default: results/tableN_SCALE."
    )
    more_results_dirs: tuple[str, ...] = config.flag(
        (), "More folders with runs for the figures: results/figure6_mini for figure 6."
    )
    figures: tuple[str, ...] | None = config.flag(
        None,
        "Numbers of the figures to draw, of 3 to 10. Default: those that need the runs "
        "of the table alone.",
    )
    output_dir: str | None = config.flag(
        None,
        "Where to write. Default: --results_dir, or results/figures if there is none.",
    )
    data_dir: str | None = config.flag(
        None,
        "For figures 7 and 9: where the data set is now. Default: where the runs had "
        "it.",
    )


def make(
    table: int | None,
    scale: str,
    *,
    results_dir: str | None = None,
    more_results_dirs: Sequence[str] = (),
    figures: Sequence[str] | None = None,
    output_dir: str | None = None,
    data_dir: str | None = None,
    command: Sequence[str] | None = None,
) -> str:
    """Does what the flags of the program ask for.

    Args:
        table: 1 to 4; None: figures only.
        scale: One of `SCALES`.
        results_dir: See the flag.
        more_results_dirs: See the flag.
        figures: See the flag.
        output_dir: See the flag.
        data_dir: See the flag.
        command: See `write`.

    Returns:
        The text for the terminal.

    Raises:
        InvalidInputError: If the flags make no sense, there is no run, or a file of one
            is damaged.
    """
    output_files.check_named(results_dir=results_dir, output_dir=output_dir)
    numbers = None if figures is None else [_figure_number(text) for text in figures]
    load_task: model_figures.LoadTask | None = None
    if data_dir is not None:

        def load_task(run_flags):
            return model_figures.load_task_of_flags({**run_flags, "data_dir": data_dir})

    if table is not None:
        results_dir = results_dir or f"results/table{table}_{scale}"
        text = write(
            results_dir,
            table,
            scale,
            figures=numbers,
            output_dir=output_dir,
            more_results_dirs=more_results_dirs,
            load_task=load_task,
            command=command,
        )
        return f"{text}\nWritten to {output_dir or results_dir}/"
    if not numbers:
        raise InvalidInputError(
            "say what to report: --table=1 with --results_dir=DIR, or --figures=8."
        )
    if results_dir is None and set(numbers) != {8}:
        raise InvalidInputError(
            f"--figures={','.join(map(str, numbers))} need --results_dir=DIR or "
            "--table=N; only figure 8 needs no runs."
        )
    output_dir = output_dir or results_dir or "results/figures"
    return "\n".join(
        write_figure(
            results_dir,
            number,
            output_dir=output_dir,
            more_results_dirs=more_results_dirs,
            load_task=load_task,
        )
        for number in numbers
    )


def _figure_number(text: str) -> int:
    if text.isdecimal() and int(text) in figures_lib.CAPTIONS:
        return int(text)
    known = ", ".join(map(str, figures_lib.CAPTIONS))
    raise InvalidInputError(f"--figures has {text!r}, expected numbers of {known}.")


def main(config: Config) -> None:
    """Writes what is asked for and prints the table."""
    print(
        make(
            config.table and int(config.table),
            config.scale,
            results_dir=config.results_dir,
            more_results_dirs=config.more_results_dirs,
            figures=config.figures,
            output_dir=config.output_dir,
            data_dir=config.data_dir,
            command=["./run.sh", "report", *sys.argv[1:]],
        )
    )


if __name__ == "__main__":
    program.run(main, Config())
