"""The rows of a paper's tables as data: the runs of each.

Each paper has `experiments/PAPER/cells.py` with a mapping TABLES from (name, scale) to
a `Table`. `./run.sh table PAPER/NAME --scale=SCALE` runs all cells of a table, and
`./run.sh PROGRAM --cell=NAME/SCALE/CELL` a single cell with one seed. This module is
quick to import, the papers' `cells` are not.
"""

import dataclasses
import importlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import experiments
from experiments.common import option_words
from tff_fedss.errors import InvalidInputError

# The folders of experiments/ that have cells, except this one.
PAPERS = tuple(
    sorted(
        path.parent.name
        for root in experiments.__path__
        for path in pathlib.Path(root).glob("*/cells.py")
        if path != pathlib.Path(__file__)
    )
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A run with several seeds.

    Attributes:
        name: The name of its folder in the results of the table; it may have parts,
            such as `cifar10_mini/leap`.
        settings: The flags that differ from the defaults of the program.
        title: A description in a line.
        start: The name of the cell from whose result, with the same seed, it starts
            (--pretrained); None: no other cell.
        row: Its row on the page; "": a row with its title.
        column: Its column, if cells are compared by column.
        paper: Its name in paper.csv; "": ROW, COLUMN.
    """

    name: str
    settings: Mapping[str, Any]
    title: str
    start: str | None = None
    row: str = ""
    column: str = ""
    paper: str = ""


@dataclasses.dataclass(frozen=True)
class Metric:
    """A column of metrics.csv on the page of a table.

    Attributes:
        name: The column.
        title: Its name on the page.
        form: The format of a number.
        scale: The factor of the number; 100 makes percent of a share.
        has_std: Whether the mean is followed by the standard deviation over seeds.
        difference_scale: The factor of differences, 100 for points; 0: none are shown.
        difference_digits: The digits of a difference after the point.
        best_by: The metric that decides the best seed, see `Table.best_of`; "": this
            one.
    """

    name: str
    title: str
    form: str = ".1f"
    scale: float = 100
    has_std: bool = True
    difference_scale: float = 100
    difference_digits: int = 1
    best_by: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """The cells of a table or a figure, at one scale.

    Attributes:
        title: A description in a line.
        cells: Cells by name.
        results: The folder of its runs below `results/`. Tables may share one.
        kind: The kind of its runs, a `results.RunKind`.
        metrics: The numbers on its page; the first one compares cells.
        is_pivot: Whether the page has a row for each `Cell.row` and a column for each
            `Cell.column`; otherwise a row for each cell and a column for each metric.
        no_column: The title of the column of cells without one.
        pairs: Rows that are compared seed by seed, column by column; the second may be
            (row, column), one cell with which all are compared.
        best_of: Rows of which the best seed is reported, not the mean.
        has_late: Whether the page has the gain of the last quarter of the rounds.
        reference: The row whose last value others should reach earlier; "": none.
        notes: Sentences below the table, or functions that write them, see `report`.
        x: The column of metrics.csv on the x axis of curves.
        curves: The columns of metrics.csv that are drawn; (): the first metric.
        draw: Draws other figures instead of curves, see `report`.
    """

    title: str
    cells: Mapping[str, Cell]
    results: str
    seeds: tuple[int, ...] = (0, 1, 2)
    kind: Any = None
    metrics: tuple[Metric, ...] = ()
    is_pivot: bool = False
    no_column: str = ""
    pairs: tuple[tuple[str, str | tuple[str, str]], ...] = ()
    best_of: tuple[str, ...] = ()
    has_late: bool = False
    reference: str = ""
    notes: tuple[str | Callable[..., list[str]], ...] = ()
    x: str = "round"
    curves: tuple[Metric, ...] = ()
    draw: Callable[..., list[str]] | None = None

    def differing_settings(self) -> Iterator[str]:
        """Yields the flags that differ between cells."""
        cells = [option_words.as_texts(cell.settings) for cell in self.cells.values()]
        for name in sorted({name for cell in cells for name in cell}):
            if len({cell.get(name) for cell in cells}) > 1:
                yield name


def table(title: str, cells: list[Cell], results: str, **others: Any) -> Table:
    """Makes a table from a list of cells and its other attributes."""
    return Table(title, {cell.name: cell for cell in cells}, results, **others)


def tables_of(paper: str) -> Mapping[tuple[str, str], Table]:
    """Returns the tables of a paper, by name and scale."""
    return importlib.import_module(f"experiments.{paper}.cells").TABLES


def find(
    paper: str,
    name: str,
    tables_of: Callable[[str], Mapping[tuple[str, str], Table]] = tables_of,
) -> Cell:
    """Returns a cell of a paper by its name, TABLE/SCALE/CELL.

    Raises:
        InvalidInputError: If there is no such cell; it lists the cells.
    """
    number, scale, cell = (*name.split("/", 2), "", "")[:3]
    tables = tables_of(paper)
    table = tables.get((number.removeprefix("table"), scale))
    if table is None:
        known = ", ".join("/".join(key) for key in tables)
        raise InvalidInputError(
            f"--cell={name}: expected TABLE/SCALE/CELL, with a TABLE/SCALE of {known}."
        )
    if cell not in table.cells:
        raise InvalidInputError(
            f"--cell={name}: expected a CELL of {', '.join(table.cells)}."
        )
    return table.cells[cell]


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as the arguments of a command."""
    texts = option_words.as_texts(settings)
    return [f"--{name}={value}" for name, value in texts.items()]
