"""The rows of a paper's tables as data: the runs that each of them needs.

Each paper has `experiments/PAPER/cells.py` with a mapping TABLES from (name, scale) to
a `Table`. `./run.sh table PAPER/NAME --scale=SCALE` runs all cells of a table, and
`./run.sh PROGRAM --cell=NAME/SCALE/CELL` a single cell with one seed.
"""

import dataclasses
import importlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import experiments
from tff_fedss.errors import InvalidInputError

# The folders of experiments/ that have cells, but for this one.
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
    """A run, to be done with several seeds.

    Attributes:
        name: The name of its folder in the results of the table; it may have parts, as
            `cifar10_mini/leap`.
        settings: The flags that differ from the defaults of the program.
        title: What it is, in a line.
        start: The name of the cell from whose result, of the same seed, it starts
            (--pretrained); None if it starts by itself.
    """

    name: str
    settings: Mapping[str, Any]
    title: str
    start: str | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """The cells of a table or a figure, at one scale.

    Attributes:
        title: What it is, in a line.
        program: The module that trains a cell. Beside it there is `report`, a module
            with KIND (of its runs, see `results.RunKind`) and `write_table`.
        cells: By name.
        results: The folder of its runs below `results/`. Tables may share one.
        seeds: Those of each cell.
    """

    title: str
    program: str
    cells: Mapping[str, Cell]
    results: str
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def report(self) -> Any:
        """The module that writes the table of the runs."""
        return importlib.import_module(f"{self.program.rpartition('.')[0]}.report")

    @property
    def config(self) -> Any:
        """The flags of its program, a `config.Config`."""
        return importlib.import_module(self.program).Config

    def differing_settings(self) -> Iterator[str]:
        """Yields the flags that are not the same in all cells."""
        cells = [as_texts(cell.settings) for cell in self.cells.values()]
        for name in sorted({name for cell in cells for name in cell}):
            if len({cell.get(name) for cell in cells}) > 1:
                yield name


def table(
    title: str,
    program: str,
    cells: list[Cell],
    results: str,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Table:
    """Makes a table of a list of cells.

    Raises:
        ValueError: If two cells have one name, or one starts from another table's.
    """
    by_name = {cell.name: cell for cell in cells}
    if len(by_name) < len(cells):
        raise ValueError(f"two cells of {title} have one name")
    for cell in cells:
        if cell.start is not None and cell.start not in by_name:
            raise ValueError(f"{cell.name} starts from {cell.start}, which is no cell")
    return Table(title, program, by_name, results, seeds)


def tables_of(paper: str) -> Mapping[tuple[str, str], Table]:
    """Returns the tables of a paper, by name and scale."""
    return importlib.import_module(f"experiments.{paper}.cells").TABLES


def find(paper: str, name: str) -> Cell:
    """Returns a cell of a paper.

    Args:
        paper: The paper.
        name: TABLE/SCALE/CELL.

    Raises:
        InvalidInputError: If there is no such cell; it names those that there are.
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


def example(paper: str) -> str:
    """Returns the name of a cell of a paper, as `find` takes it."""
    (number, scale), table = next(
        (key, table) for key, table in tables_of(paper).items() if key[1] == "mini"
    )
    return f"{number}/{scale}/{next(iter(table.cells))}"


def as_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns settings as the flags.txt of a run has them."""
    return {name: _as_text(value) for name, value in settings.items()}


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as the arguments of a command."""
    return [f"--{name}={value}" for name, value in as_texts(settings).items()]


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple | list) else str(value)
