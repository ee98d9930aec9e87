"""Reads what the runs of a table have left: RESULTS_DIR/CELL/seedK/.

A cell is one method with one setting, run with several seeds. The folder of a run is
that of `training.ResultsFolder`. What is read is checked: a number from a damaged file
must not get into a table.
"""

import csv
import dataclasses
import functools
import io
import json
import pathlib
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tff_fedss import tasks
from tff_fedss.errors import InvalidInputError

# How the paper writes the methods, in the order of its tables.
METHOD_TITLES = {
    "fedss": "FedSS",
    "neg_only": "NegOnly",
    "pos_only": "PosOnly",
    "fedaws": "FedAwS",
    "full_softmax": "FullSoftmax",
    "centralized": "Centralized",
}

DRAW_NEGATIVES = ("fedss", "neg_only")

_SEED_FOLDER = re.compile(r"seed(\d+)")
_CELL_NAME = re.compile(
    rf".+?_(?P<method>{'|'.join(METHOD_TITLES)})"
    r"(?:_m(?P<m>\d+))?(?P<uncorrected>_uncorrected)?"
)
# What may differ between the runs of one cell: the seed, and where things lie.
_MAY_DIFFER = ("seed", "data_dir", "clients_csv", "pretrained")

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What tells the cells of a table apart.

    Attributes:
        method: By its name on the command line.
        num_negatives: m; None if the method draws none.
        is_corrected: Whether logits are corrected for how classes are drawn. True also
            where nothing is drawn.
    """

    method: str
    num_negatives: int | None = None
    is_corrected: bool = True

    @property
    def title(self) -> str:
        """Returns the method as tables call it."""
        title = METHOD_TITLES[self.method]
        return title if self.is_corrected else f"{title}, no correction"

    def __str__(self) -> str:
        m = "" if self.num_negatives is None else f" (m = {self.num_negatives})"
        return self.title + m


def setting_of_name(cell: str) -> Setting | None:
    """Returns what the name of a cell says, as `omniglot_fedss_m5`; None if nothing.

    Args:
        cell: The name: of a flagfile, without `.flags`, or of a folder.
    """
    match = _CELL_NAME.fullmatch(cell)
    if match is None:
        return None
    m = match["m"]
    if (m is not None) != (match["method"] in DRAW_NEGATIVES):
        return None
    return Setting(match["method"], m and int(m), match["uncorrected"] is None)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: a cell with one seed, finished or not.

    Attributes:
        path: Its folder.
        cell: The name of the cell.
        seed: The seed.
        flags: Name to value of all flags that decide the results.
        rows: The rows of metrics.csv, a mapping each, numbers as numbers, without what
            was not measured.
        speed: Likewise of speed.csv.
        result: done.json; None if the run is not finished.
        description: run.json: command, versions, machine; None if it is not there.
    """

    path: pathlib.Path
    cell: str
    seed: int
    flags: Mapping[str, str]
    rows: Sequence[Row]
    speed: Sequence[Row]
    result: Mapping[str, Any] | None
    description: Mapping[str, Any] | None

    @functools.cached_property
    def setting(self) -> Setting:
        """Which cell it is, by its flags."""
        method = self.flags["method"]
        if method not in DRAW_NEGATIVES:
            return Setting(method)
        return Setting(
            method,
            int(self.flags["num_negatives"]),
            self.flags.get("logit_correction") != "none",
        )

    @property
    def is_done(self) -> bool:
        """Whether it has come to its end."""
        return self.result is not None

    @property
    def task(self) -> type[tasks.Task]:
        """What was asked of the test images."""
        return tasks.KINDS[self.flags["task"]]

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Returns rounds and the metric after them, in percent.

        Args:
            metric: A column of metrics.csv that holds shares.
        """
        return [(r["round"], 100 * r[metric]) for r in self.rows if metric in r]

    def final(self, metric: str) -> float | None:
        """Returns the metric after the last round, in percent; None if unfinished.

        Args:
            metric: A column of metrics.csv that holds shares.

        Raises:
            InvalidInputError: If the run is done but did not measure it.
        """
        if not self.is_done:
            return None
        if metric not in self.rows[-1]:
            raise InvalidInputError(
                f"{self.path / 'metrics.csv'}: the run is done, but its last row has "
                f"no {metric}."
            )
        return 100 * self.rows[-1][metric]

    def mean(self, column: str) -> float | None:
        """Returns the mean of a column of metrics.csv; None if it is empty.

        Args:
            column: Its name.
        """
        values = [row[column] for row in self.rows if column in row]
        return statistics.fmean(values) if values else None

    @property
    def hours(self) -> float:
        """How long rounds and evaluations took together."""
        seconds = ("round_seconds", "evaluation_seconds")
        return sum(row.get(key, 0.0) for row in self.speed for key in seconds) / 3600


@dataclasses.dataclass(frozen=True)
class Cell:
    """The runs of one cell.

    Attributes:
        name: Of its folder.
        runs: By increasing seed; at least one.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def setting(self) -> Setting:
        """Which cell it is."""
        return self.runs[0].setting

    @property
    def finished(self) -> list[Run]:
        """The runs that are done."""
        return [run for run in self.runs if run.is_done]


@dataclasses.dataclass(frozen=True)
class Results:
    """All cells of a folder: one data set, one task.

    Attributes:
        cells: By setting.
    """

    cells: Mapping[Setting, Cell]

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for cell in self.cells.values() for run in cell.runs]

    @property
    def dataset(self) -> str:
        """The data set, by its name on the command line."""
        return self.runs[0].flags["dataset"]

    @property
    def dataset_title(self) -> str:
        """The data set, as tables call it."""
        return tasks.FAMILIES[self.dataset].title

    @property
    def task(self) -> type[tasks.Task]:
        """What was asked of the test images."""
        return self.runs[0].task

    @functools.cached_property
    def num_classes(self) -> int | None:
        """Returns n; None as long as no run says it."""
        for run in self.runs:
            if run.is_done:
                return run.result["num_classes"]
        for run in self.runs:
            if run.setting.method == "full_softmax" and run.mean("classes_per_client"):
                return round(run.mean("classes_per_client"))
        return None

    @functools.cached_property
    def mean_positives(self) -> float | None:
        """The mean |P_k| over rounds and runs; None as long as it is not measured."""
        means = [run.mean("positives_per_client") for run in self.runs]
        known = [mean for mean in means if mean is not None]
        return statistics.fmean(known) if known else None

    def class_set_size(self, setting: Setting) -> int | None:
        """Returns |S_k|: the mean |P_k|, rounded, and m; None if it is not known.

        Args:
            setting: The cell. Centralized has no clients, so no |S_k|.
        """
        if setting.method == "centralized":
            return None
        if setting.method == "full_softmax":
            return self.num_classes
        if self.mean_positives is None:
            return None
        return round(self.mean_positives) + (setting.num_negatives or 0)

    def num_negatives(self, method: str) -> list[int]:
        """Returns the values of m that a method was run with, increasing.

        Args:
            method: By its name on the command line.
        """
        return sorted(
            {s.num_negatives for s in self.cells if s.method == method} - {None}
        )


def read(*results_dirs: str | pathlib.Path) -> Results:
    """Reads all runs in the folders.

    Args:
        *results_dirs: Folders that hold CELL/seedK/. A run that was never begun is no
            run; other folders and files are let be. If several hold a cell of the same
            setting, the first one counts.

    Raises:
        InvalidInputError: If there is no run, a file is damaged, or runs do not belong
            together.
    """
    cells: dict[Setting, Cell] = {}
    for results_dir in map(pathlib.Path, results_dirs):
        for setting, cell in _read_folder(results_dir).items():
            cells.setdefault(setting, cell)
    results = Results(cells)
    _check_same(
        results.runs,
        lambda run: (run.flags["dataset"], run.flags["task"]),
        "the data set and task",
    )
    _check_same(
        [run for run in results.runs if run.is_done],
        lambda run: run.result["num_classes"],
        "n",
    )
    return results


def _read_folder(results_dir: pathlib.Path) -> dict[Setting, Cell]:
    if not results_dir.is_dir():
        raise InvalidInputError(f"--results_dir={results_dir} is no folder.")
    cells: dict[Setting, Cell] = {}
    for folder in sorted(results_dir.iterdir()):
        runs = [
            read_run(path, folder.name, int(match[1]))
            for path in (folder.iterdir() if folder.is_dir() else ())
            if (match := _SEED_FOLDER.fullmatch(path.name))
            and (path / "flags.txt").is_file()
        ]
        if not runs:
            continue
        cell = Cell(folder.name, tuple(sorted(runs, key=lambda run: run.seed)))
        _check_cell(cell)
        if cell.setting in cells:
            raise InvalidInputError(
                f"{results_dir} has two cells of {cell.setting}: "
                f"{cells[cell.setting].name} and {cell.name}."
            )
        cells[cell.setting] = cell
    if not cells:
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no run: expected folders CELL/seedK/ "
            "with a flags.txt, as ./run.sh table leaves them."
        )
    return cells


def _check_cell(cell: Cell) -> None:
    first = cell.runs[0]
    for run in cell.runs[1:]:
        for name in sorted({*run.flags, *first.flags} - {*_MAY_DIFFER}):
            mine, theirs = run.flags.get(name), first.flags.get(name)
            if mine != theirs:
                raise InvalidInputError(
                    f"{run.path} has --{name}={mine}, but {first.path} of the same "
                    f"cell has --{name}={theirs}."
                )
    named = setting_of_name(cell.name)
    if named is not None and named != cell.setting:
        raise InvalidInputError(
            f"{first.path.parent} is named for {named}, but its runs are of "
            f"{cell.setting}."
        )


def _check_same(runs: Sequence[Run], of, what: str) -> None:
    for run in runs[1:]:
        if of(run) != of(runs[0]):
            raise InvalidInputError(
                f"One table cannot hold {run.path} and {runs[0].path}: {what} differ, "
                f"{of(run)} and {of(runs[0])}."
            )


def read_run(path: pathlib.Path, cell: str, seed: int) -> Run:
    """Reads the folder of a run.

    Args:
        path: The folder.
        cell: The name of its cell.
        seed: The seed in its name.

    Raises:
        InvalidInputError: If a file is damaged; it names the file, and the line.
    """
    flags = _read_flags(path / "flags.txt", seed)
    result = _read_json(path / "done.json")
    is_done = result is not None
    run = Run(
        path=path,
        cell=cell,
        seed=seed,
        flags=flags,
        rows=_read_csv(path / "metrics.csv", flags["method"], is_done),
        speed=_read_csv(path / "speed.csv", flags["method"], is_done),
        result=result,
        description=_read_json(path / "run.json"),
    )
    if is_done:
        _check_result(run)
    return run


def _read_text(path: pathlib.Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}.") from error


def _read_flags(path: pathlib.Path, seed: int) -> dict[str, str]:
    flags = {}
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        name, equals, value = line.removeprefix("--").partition("=")
        if not line.startswith("--") or not equals:
            raise InvalidInputError(
                f"{path}:{number}: found {line!r}, expected --name=value."
            )
        flags[name] = value
    for name, known in (
        ("method", METHOD_TITLES),
        ("dataset", tasks.FAMILIES),
        ("task", tasks.KINDS),
    ):
        if flags.get(name) not in known:
            raise InvalidInputError(
                f"{path}: --{name}={flags.get(name, '(unset)')} is none of "
                f"{', '.join(known)}; cells are runs of ./run.sh train."
            )
    numbers = ["seed", "rounds", "embedding_dim"]
    if flags["method"] in DRAW_NEGATIVES:
        numbers.append("num_negatives")
    for name in numbers:
        if not flags.get(name, "").isdecimal():
            raise InvalidInputError(
                f"{path}: --{name}={flags.get(name, '(unset)')} is no whole number."
            )
    if int(flags["seed"]) != seed:
        raise InvalidInputError(
            f"{path}: --seed={flags['seed']} in the folder {path.parent.name}."
        )
    return flags


def _read_json(path: pathlib.Path) -> dict[str, Any] | None:
    text = _read_text(path)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(
            f"{path}:{error.lineno}: not JSON: {error.msg}."
        ) from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"{path}:1: expected a JSON object.")
    return value


def _read_csv(path: pathlib.Path, method: str, is_done: bool) -> list[Row]:
    """Reads rows that go on round by round."""
    text = _read_text(path)
    if text is None:
        if is_done:
            raise InvalidInputError(f"{path} is missing, though the run is done.")
        return []
    if not is_done:  # A killed program may leave half a row.
        text = text[: text.rfind("\n") + 1]
    reader = csv.reader(io.StringIO(text, newline=""))
    header = next(reader, None)
    if header is None:
        if is_done:
            raise InvalidInputError(f"{path}:1: the file is empty.")
        return []
    for column in ("method", "round"):
        if column not in header:
            raise InvalidInputError(f"{path}:1: no column {column!r} in {header}.")
    rows: list[Row] = []
    for cells in reader:
        where = f"{path}:{reader.line_num}"
        if len(cells) != len(header):
            raise InvalidInputError(
                f"{where}: {len(cells)} cells, expected {len(header)} as in the header."
            )
        row = _with_numbers(dict(zip(header, cells, strict=True)), where)
        if row["method"] != method:
            raise InvalidInputError(
                f"{where}: found the method {row['method']!r}, expected {method!r}."
            )
        expected = rows[-1]["round"] + 1 if rows else 0
        if row.get("round") != expected:
            raise InvalidInputError(
                f"{where}: found round {row.get('round')}, expected {expected}."
            )
        rows.append(row)
    return rows


def _with_numbers(row: Mapping[str, str], where: str) -> Row:
    values: Row = {"method": row["method"]}
    for name, text in row.items():
        if name == "method" or text == "":
            continue
        try:
            values[name] = int(text) if text.isdecimal() else float(text)
        except ValueError as error:
            raise InvalidInputError(
                f"{where}: {name} is {text!r}, expected a number."
            ) from error
    return values


def _check_result(run: Run) -> None:
    """Checks that done.json and the last row tell the same."""
    path, metrics_path = run.path / "done.json", run.path / "metrics.csv"
    try:
        num_classes = run.result["num_classes"]
        percent = run.result["outcomes"][run.setting.method]["percent"]
    except (KeyError, TypeError) as error:
        raise InvalidInputError(
            f"{path}:1: expected num_classes and outcomes of "
            f"{run.setting.method} with their percent; missing: {error}."
        ) from error
    for name, value in (("num_classes", num_classes), ("percent", percent)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInputError(f"{path}:1: {name} is {value!r}, not a number.")
    line = len(run.rows) + 1
    last = run.rows[-1]["round"] if run.rows else "(none)"
    if last != int(run.flags["rounds"]):
        raise InvalidInputError(
            f"{metrics_path}:{line}: the last round is {last}, but the run is done, "
            f"with --rounds={run.flags['rounds']}."
        )
    measured = run.final(run.task.metric)
    if not abs(measured - percent) <= 1e-6:
        raise InvalidInputError(
            f"{metrics_path}:{line}: {run.task.metric} is {measured:g} %, but "
            f"{path} says {percent:g} %."
        )


def common_rounds(runs: Iterable[Run], metric: str) -> list[int]:
    """Returns the rounds after which all of the runs measured the metric.

    Args:
        runs: The runs.
        metric: A column of metrics.csv.
    """
    rounds = [{number for number, _ in run.curve(metric)} for run in runs]
    return sorted(set.intersection(*rounds)) if rounds else []
