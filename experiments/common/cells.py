"""The rows of a paper's tables as data: which runs there are to be.

Each paper has `experiments/PAPER/cells.py` with a mapping TABLES: by (name, scale), a
`Table`. `./run.sh table PAPER/NAME --scale=SCALE` runs all cells of one, and
`./run.sh PROGRAM --cell=NAME/SCALE/CELL` a single one, with one seed.
"""

import dataclasses
import importlib
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.common import flagfiles
from tff_fedss.errors import InvalidInputError

# The papers, by the names of their folders.
PAPERS = ("fedss", "rf_softmax", "partial_fc", "leap", "moco")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A run, to be done with several seeds.

    Attributes:
        name: Of its folder in the results of the table; it may have parts, as
            `cifar10_mini/leap`.
        settings: What differs from the defaults of the program, by flag.
        title: What it is, in a line.
        start: The name of the cell from whose result, of the same seed, it starts
            (--pretrained); None if it starts by itself.
        flagfile: From which a person wants it read; None if it is a published one.
    """

    name: str
    settings: Mapping[str, Any]
    title: str
    start: str | None = None
    flagfile: str | None = None


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
        """Yields the flags that are not the same in all cells: they are meant so."""
        texts = [as_texts(cell.settings) for cell in self.cells.values()]
        return flagfiles.differing_flags(texts)


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


def of_flagfiles(table: Table, folder: pathlib.Path) -> Table:
    """Makes a table like another one, with cells that a person has written.

    Args:
        table: For the program and the report.
        folder: Holds a flagfile for each cell, CELL.flags.

    Raises:
        InvalidInputError: If there is none, or one is damaged.
    """
    paths = sorted(folder.glob("*.flags"), key=lambda path: by_number(path.stem))
    if not paths:
        raise InvalidInputError(f"there are no flagfiles of cells in {folder}.")
    cells = [
        Cell(path.stem, flagfiles.read(path), str(path), flagfile=str(path))
        for path in paths
    ]
    return dataclasses.replace(table, cells={cell.name: cell for cell in cells})


def by_number(name: str) -> list[tuple[bool, int | str]]:
    """Sorts m5 before m10."""
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else part)
        for part in re.split(r"(\d+)", name)
    ]


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
