"""All runs of a table in two files: runs.csv.gz and runs.json.

That is how runs are published: a folder for each of them holds six files and more.

runs.csv.gz has a row for each run and round: cell, seed, then the columns of its
metrics.csv and those of its speed.csv, every number with the digits that it has there.
runs.json has the other files of the runs, as JSON:

    format    1
    columns   which columns are whose: {"metrics.csv": [...], "speed.csv": [...]}
    sha256    of runs.csv: the two files belong together
    common    {"flags.txt": {...}, "run.json": {...}, ...}, as far as all runs have the
              same; null where each has its own
    runs      {cell: {seed: {"flags.txt": {...}, ...}}}, what is a run's own

`results` reads them like the folders; `./run.sh pack` makes them, and `./run.sh unpack`
makes folders of them again.
"""

import csv
import gzip
import hashlib
import io
import json
import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import Metrics, run_files

CSV, JSON = "runs.csv.gz", "runs.json"

_FORMAT = 1
_RUN_COLUMNS = ("cell", "seed")
_ROUND_COLUMNS = ("method", "round")  # In both files of a run.
_MOST_BYTES = 64 * 2**20  # Of runs.json, and of what runs.csv.gz unpacks to.
_DOCUMENTS = (run_files.FLAGS, run_files.RUN, run_files.DATA, run_files.DONE)
_TABLES = (run_files.METRICS, run_files.SPEED)
_ANEW = "Bring both files back, or pack the runs anew (./run.sh pack)."

Documents = Mapping[str, Mapping[str, Any]]


class Content(NamedTuple):
    """What is kept of a run.

    Attributes:
        documents: By the name of the file: the flags of flags.txt, and what the JSON
            files hold.
        tables: metrics.csv and speed.csv, by the name of the file.
    """

    documents: Documents
    tables: Mapping[str, run_files.Table]


class PackedRun:
    """A run in an archive; `results.RunFolder` is one in a folder of its own.

    Attributes:
        path: Where its folder would be.
    """

    def __init__(self, folder: pathlib.Path, cell: str, seed: int, content: Content):
        """See `read`."""
        self.path = folder / cell / f"seed{seed}"
        self._json = folder / JSON
        self._content = content

    def at(self, name: str, line: int | None = None) -> str:
        """Says for a message where a file of the run, or a line of it, stands."""
        table = self._content.tables.get(name)
        if table is not None and line is not None and 2 <= line < len(table.rows) + 2:
            return f"{table.path}:{table.rows[line - 2][0]}"
        path = self._json if table is None else table.path
        return f"{path}: {self.path.parent.name}/{self.path.name}/{name}"

    def read_flags(self) -> dict[str, str]:
        """Returns the flags, name to value.

        Raises:
            InvalidInputError: If one is no text.
        """
        flags = self.read_json(run_files.FLAGS) or {}
        for name, value in flags.items():
            if not isinstance(value, str):
                raise InvalidInputError(
                    f"{self.at(run_files.FLAGS)}: --{name} is "
                    f"{run_files.short(value)}, expected a JSON string."
                )
        return flags

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Returns what a JSON file of the run held; None if there was none.

        Raises:
            InvalidInputError: If it is no JSON object.
        """
        value = self._content.documents.get(name)
        if value is not None and not isinstance(value, dict):
            raise InvalidInputError(f"{self.at(name)}: expected a JSON object.")
        return value

    def read_rows(self, name: str, run_name: str, is_done: bool) -> list[Metrics]:
        """Returns the rows of a CSV file, see `run_files.parse_rows`."""
        del is_done  # All of them are.
        return run_files.parse_rows(self._content.tables[name], run_name)


# --- Reading ----------------------------------------------------------------------


def is_in(folder: pathlib.Path) -> bool:
    """Returns whether a folder holds an archive, or a part of one."""
    return any((folder / name).exists() for name in (CSV, JSON))


def read(folder: pathlib.Path) -> dict[str, list[PackedRun]]:
    """Reads an archive of runs.

    Args:
        folder: Where the two files are.

    Returns:
        The runs by cell, in the order of the seeds.

    Raises:
        InvalidInputError: If a file is missing or damaged, or they do not belong
            together; it names the file, and the line of runs.csv.
        RunStoppedError: If one cannot be read.
    """
    return {
        cell: [PackedRun(folder, cell, seed, by_seed[seed]) for seed in sorted(by_seed)]
        for cell, by_seed in read_contents(folder).items()
    }


def read_contents(folder: pathlib.Path) -> dict[str, dict[int, Content]]:
    """Reads all that is kept of the runs, by cell and seed; see `read`."""
    contents = {}
    for name, other in ((CSV, JSON), (JSON, CSV)):
        contents[name] = files.read_if_there(folder / name)
        if contents[name] is None:
            raise InvalidInputError(
                f"{folder / name} is missing, though {other} is there. {_ANEW}"
            )
    return _parse(contents[CSV], contents[JSON], folder)


def _parse(
    packed: bytes, described: bytes, folder: pathlib.Path
) -> dict[str, dict[int, Content]]:
    csv_path, json_path = folder / CSV, folder / JSON
    _check_size(described, json_path)
    own, common, columns, sha256 = _parse_json(described, json_path)
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            unpacked = file.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(
            f"{csv_path} is damaged: {files.error_text(error)}. {_ANEW}"
        ) from error
    _check_size(unpacked, csv_path)
    table = run_files.parse_table(files.decoded(unpacked, csv_path), csv_path)
    if list(table.columns) != _all_columns(columns):
        raise InvalidInputError(
            f"{csv_path}:1: the columns are not those that {json_path} names. {_ANEW}"
        )
    rows: dict[tuple[str, str], list] = {
        (cell, seed): [] for cell, by_seed in own.items() for seed in by_seed
    }
    for line, cells in table.rows:
        run = tuple(cells[: len(_RUN_COLUMNS)])
        if run not in rows:
            raise InvalidInputError(
                f"{csv_path}:{line}: a row of {run[0]} with seed {run[1]}, of which "
                f"{json_path} has nothing. {_ANEW}"
            )
        rows[run].append((line, cells))
    found: dict[str, dict[int, Content]] = {cell: {} for cell in own}
    for (cell, seed), lines in rows.items():
        if not lines:
            raise InvalidInputError(
                f"{json_path}: {cell} with seed {seed} has no row in {csv_path}. "
                f"{_ANEW}"
            )
        documents = _merge(common, own[cell][seed])
        for name in documents:
            if name not in _DOCUMENTS:
                raise InvalidInputError(
                    f"{json_path}: {cell} with seed {seed} has a file "
                    f"{run_files.short(name)}, expected {', '.join(_DOCUMENTS)}."
                )
        for name in (run_files.FLAGS, run_files.DONE):
            if name not in documents:
                raise InvalidInputError(
                    f"{json_path}: {cell} with seed {seed} has no {name}. {_ANEW}"
                )
        found[cell][int(seed)] = Content(
            documents,
            {name: _select(csv_path, table, columns[name], lines) for name in columns},
        )
    if hashlib.sha256(unpacked).hexdigest() != sha256:
        raise InvalidInputError(
            f"{csv_path} is not the file that {json_path} was written with. {_ANEW}"
        )
    return found


def _check_size(content: bytes, path: pathlib.Path) -> None:
    if len(content) > _MOST_BYTES:
        raise InvalidInputError(
            f"{path} holds more than {_MOST_BYTES // 2**20} MiB; no published table "
            "does."
        )


def _is_inside(cell: str) -> bool:
    """Whether the name of a cell is one or more plain names of folders."""
    parts = cell.split("/")
    return not {"", ".", ".."} & {*parts} and "\\" not in cell and "\0" not in cell


def _parse_json(
    described: bytes, path: pathlib.Path
) -> tuple[dict[str, dict[str, dict]], dict, dict[str, list[str]], str]:
    """Checks runs.json; -> own documents by cell and seed, common, columns, sha256."""
    value = run_files.parse_json(files.decoded(described, path), path)
    if value.get("format") != _FORMAT:
        raise InvalidInputError(
            f"{path}: format is {run_files.short(value.get('format'))}, expected "
            f"{_FORMAT}: another version of this program has written it."
        )
    own, common, columns = (value.get(x) for x in ("runs", "common", "columns"))
    for name, part in (("runs", own), ("common", common), ("columns", columns)):
        if not isinstance(part, dict):
            raise InvalidInputError(f"{path}: {name} must be a JSON object. {_ANEW}")
    for name in _TABLES:
        names = columns.get(name)
        if (
            not isinstance(names, list)
            or not all(isinstance(x, str) for x in names)
            or not {*_ROUND_COLUMNS} <= {*names}
        ):
            raise InvalidInputError(
                f"{path}: columns must have those of {name}. {_ANEW}"
            )
    if {*columns} != {*_TABLES}:
        raise InvalidInputError(
            f"{path}: columns has {run_files.short([*columns])}, expected "
            f"{' and '.join(_TABLES)}."
        )
    for cell, by_seed in own.items():
        if not _is_inside(cell):
            raise InvalidInputError(
                f"{path}: the cell {run_files.short(cell)} lies outside of its folder."
            )
        if (
            not isinstance(by_seed, dict)
            or not all(x.isascii() and x.isdecimal() for x in by_seed)
            or not all(isinstance(x, dict) for x in by_seed.values())
        ):
            raise InvalidInputError(
                f"{path}: {cell} must be a JSON object of runs by seed. {_ANEW}"
            )
    return own, common, columns, value.get("sha256")


def _select(
    path: pathlib.Path,
    table: run_files.Table,
    columns: Sequence[str],
    lines: Sequence[tuple[int, Sequence[str]]],
) -> run_files.Table:
    where = [table.columns.index(column) for column in columns]
    rows = [(line, [cells[i] for i in where]) for line, cells in lines]
    return run_files.Table(path, columns, rows)


def _all_columns(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Those of runs.csv, of which `method` and `round` are in both files of a run."""
    speed = [x for x in columns[run_files.SPEED] if x not in _ROUND_COLUMNS]
    return [*_RUN_COLUMNS, *columns[run_files.METRICS], *speed]


# --- Writing ----------------------------------------------------------------------


def write(folder: pathlib.Path, runs: Mapping[str, Mapping[int, Content]]) -> None:
    """Writes an archive of runs, each file whole or not at all.

    The same runs give the same bytes. What is written is read back first: an archive
    that would not give back the same runs is not written.

    Args:
        folder: Where to; it must be there.
        runs: Runs that are done, by cell and seed.

    Raises:
        InvalidInputError: If they cannot be put together, or the files not be there.
        RunStoppedError: If a file cannot be written.
    """
    runs = {cell: dict(sorted(runs[cell].items())) for cell in sorted(runs)}
    contents = [run for by_seed in runs.values() for run in by_seed.values()]
    columns = {
        name: list(
            dict.fromkeys(x for run in contents for x in run.tables[name].columns)
        )
        for name in _TABLES
    }
    header = _all_columns(columns)
    for column in header:
        if header.count(column) > 1:
            name = (
                run_files.SPEED
                if column in columns[run_files.SPEED]
                else run_files.METRICS
            )
            tables = (run.tables[name] for run in contents)
            path = next(table.path for table in tables if column in table.columns)
            raise InvalidInputError(
                f"{path}:1: {column!r} is the name of another column in an archive."
            )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for cell, by_seed in runs.items():
        for seed, run in by_seed.items():
            writer.writerows(_rows(run, cell, seed, header))
    unpacked = text.getvalue().encode("utf-8")
    common, own = _share([run.documents for run in contents])
    rest = iter(own)
    value = {
        "format": _FORMAT,
        "columns": columns,
        "sha256": hashlib.sha256(unpacked).hexdigest(),
        "common": common,
        "runs": {
            cell: {str(seed): next(rest) for seed in by_seed}
            for cell, by_seed in runs.items()
        },
    }
    described = (json.dumps(value, indent=1) + "\n").encode("utf-8")
    packed = gzip.compress(unpacked, 9, mtime=0)
    again = _parse(packed, described, folder)
    for cell, by_seed in runs.items():
        for seed, run in by_seed.items():
            if _kept(again[cell][seed]) != _kept(run):
                raise InvalidInputError(
                    f"{run.tables[run_files.METRICS].path}: an archive would not give "
                    "back this run as it is."
                )
    files.write(folder / CSV, packed)
    files.write(folder / JSON, described)


def _rows(
    run: Content, cell: str, seed: int, header: Sequence[str]
) -> list[list[str | int]]:
    """The run's rows of runs.csv."""
    metrics, speed = (run.tables[x] for x in (run_files.METRICS, run_files.SPEED))
    if len(metrics.rows) != len(speed.rows):
        raise InvalidInputError(
            f"{speed.path} has {len(speed.rows)} rows, but {metrics.path} has "
            f"{len(metrics.rows)}."
        )
    rows = []
    for (_, measured), (line, timed) in zip(metrics.rows, speed.rows, strict=True):
        mine = dict(zip(metrics.columns, measured, strict=True))
        theirs = dict(zip(speed.columns, timed, strict=True))
        if any(mine[column] != theirs[column] for column in _ROUND_COLUMNS):
            raise InvalidInputError(
                f"{speed.path}:{line}: this is not the row of {mine['method']} after "
                f"round {mine['round']}, as in {metrics.path}."
            )
        texts = {"cell": cell, "seed": seed, **theirs, **mine}
        rows.append([texts.get(column, "") for column in header])
    return rows


def _kept(run: Content) -> tuple:
    """What must come back: all values, but not where empty columns are."""
    tables = {
        name: [
            {
                column: cell
                for column, cell in zip(table.columns, cells, strict=True)
                if cell != ""
            }
            for _, cells in table.rows
        ]
        for name, table in run.tables.items()
    }
    return _as_json(run.documents), tables


def _as_json(value: Any) -> str:
    """1, 1.0 and true are not the same."""
    return json.dumps(value, sort_keys=True)


def _share(values: Sequence[Mapping]) -> tuple[dict, list[dict]]:
    """Separates what objects have in common from what is each one's own.

    Returns:
        common, own: `_merge(common, own[i])` is values[i]. What all have, but not the
        same, is None in common, which keeps the order of the keys.
    """
    common: dict[str, Any] = {}
    own: list[dict[str, Any]] = [{} for _ in values]
    for key in dict.fromkeys(key for value in values for key in value):
        parts = [value[key] for value in values if key in value]
        in_all = len(parts) == len(values)
        if in_all and all(isinstance(part, dict) for part in parts):
            common[key], rests = _share(parts)
            for mine, rest in zip(own, rests, strict=True):
                if rest:
                    mine[key] = rest
        elif in_all and len({_as_json(part) for part in parts}) == 1:
            common[key] = parts[0]
        else:
            if in_all:
                common[key] = None
            for mine, value in zip(own, values, strict=True):
                if key in value:
                    mine[key] = value[key]
    return common, own


def _merge(common: Mapping, own: Mapping) -> dict:
    """Undoes `_share`."""
    merged = dict(common)
    for key, value in own.items():
        shared = common.get(key)
        both = isinstance(shared, dict) and isinstance(value, dict)
        merged[key] = _merge(shared, value) if both else value
    return merged
