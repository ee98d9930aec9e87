"""Reads what runs have left: the one reader of all reports.

A run leaves flags.txt, metrics.csv, speed.csv, run.json, data.json and, once it is
done, done.json (see `training.ResultsFolder`), in a folder of its own, on the disk or
in the archive of a table (see `archive`). All of them are checked as they are read, and
errors name the file and the line: a number from a damaged file, or of another run, must
not get into a table.

Tables put runs together, and there is one rule for that. The runs of a cell, which are
averaged, agree in every flag that decides results but the seed (`check_same_cell`). The
cells of a table, which are compared, agree in every flag that does not define a cell
(`check_same_table`). Data and pretrained models may lie anywhere: what counts is what
data.json says that was read there.
"""

import contextlib
import dataclasses
import pathlib
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from experiments.common import archive
from tff_fedss import files, training
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import Metrics, run_files

Flags = Mapping[str, str]

# Where things lie. `pretrained` also says whether there is such a thing.
_PLACES = frozenset({"data_dir", "clients_csv", "pretrained"})
# When and what to measure besides: it changes no number that is measured anyway.
_MEASUREMENT = frozenset(
    {"rounds_per_evaluation", "epochs_per_evaluation", "train_top1"}
)
# Of the rounds, before the last quarter: does a run still rise?
_LATE = 0.75
_SEED_FOLDER = re.compile(r"seed(\d+)", re.ASCII)


@dataclasses.dataclass(frozen=True)
class RunKind:
    """What the runs of one program have in common.

    Attributes:
        program: Its name, as `./run.sh` knows it.
        run_name: Finds the name of a run, which stands in its files, from its flags.
        choices: Flags that must be there, and the values that they may have.
        whole_numbers: Flags that must be there and be whole numbers.
        numbers: Flags that must be there and be numbers.
        length: The flag that says how many rounds a run is to have.
        columns: Those of metrics.csv in which every row but the first has a number.
        cell_flags: Those in which the cells of a table differ.
        has_own_data: Tells by its flags whether a run's data are drawn from its own
            seed, so that only runs of the same seed have the same data.
        starts_by_seed: Whether each seed has its own pretrained model.
        check_result: Checks that done.json and the last row tell the same; raises
            InvalidInputError.
    """

    program: str
    run_name: Callable[[Flags], str]
    choices: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)
    whole_numbers: Sequence[str] = ("seed", "rounds")
    numbers: Sequence[str] = ()
    length: str = "rounds"
    columns: Sequence[str] = ()
    cell_flags: frozenset[str] = frozenset()
    has_own_data: Callable[[Flags], bool] = lambda flags: False
    starts_by_seed: bool = False
    check_result: Callable[["Run"], None] = lambda run: _check_values(run)


class RunFolder:
    """The folder of a run, on the disk or in an archive.

    Attributes:
        path: The folder; in an archive, ARCHIVE/CELL/seedK.
    """

    def __init__(self, path: pathlib.Path, contents: Mapping[str, bytes] | None = None):
        """Reads nothing yet.

        Args:
            path: The folder.
            contents: The content of each file by its name, if it lies in an archive.
        """
        self.path = path
        self._contents = contents

    def at(self, name: str, line: int | None = None) -> str:
        """Says for a message where a file of the run, or a line of it, stands."""
        return f"{self.path / name}" + (f":{line}" if line else "")

    def read_flags(self) -> dict[str, str]:
        """Reads flags.txt, see `run_files.parse_flags`."""
        return run_files.parse_flags(self._text(run_files.FLAGS), self.at("flags.txt"))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Reads a JSON file, see `run_files.parse_json`; None if it is not there."""
        text = self._text(name)
        return None if text is None else run_files.parse_json(text, self.at(name))

    def read_rows(self, name: str, run_name: str, is_done: bool) -> list[Metrics]:
        """Reads a CSV file, see `run_files.whole_table` and `run_files.parse_rows`."""
        table = run_files.whole_table(self._text(name), self.at(name), is_done)
        return run_files.parse_rows(table, run_name)

    def _text(self, name: str) -> str | None:
        if self._contents is None:
            return files.read_text(self.path / name)
        content = self._contents.get(name)
        return None if content is None else files.decoded(content, self.path / name)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, finished or not.

    Attributes:
        source: Where its files are.
        kind: Of which program it is.
        flags: Name to value of all flags that decide the results.
        rows: The rows of metrics.csv, a mapping each, numbers as numbers, without what
            was not measured.
        speed: Likewise of speed.csv.
        result: done.json; None if the run is not finished.
        description: run.json: command, versions, machine; None if it is not there.
        origin: data.json: what was read; None if it is not there.
    """

    source: RunFolder
    kind: RunKind
    flags: Flags
    rows: Sequence[training.Metrics]
    speed: Sequence[training.Metrics]
    result: Mapping[str, Any] | None
    description: Mapping[str, Any] | None
    origin: Mapping[str, Any] | None

    @property
    def path(self) -> pathlib.Path:
        """Its folder."""
        return self.source.path

    @property
    def name(self) -> str:
        """How its files call it."""
        return self.kind.run_name(self.flags)

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.flags["seed"])

    @property
    def is_done(self) -> bool:
        """Whether it has come to its end."""
        return self.result is not None

    @property
    def summary(self) -> str:
        """What came of it, once it is done, in a line."""
        return str(self.result["text"]).removeprefix(f"{self.name}: ")

    @property
    def num_rounds(self) -> int:
        """How many rounds it is to have."""
        return int(self.flags[self.kind.length])

    @property
    def rounds_done(self) -> int:
        """How many rounds it has recorded."""
        return self.rows[-1]["round"] if self.rows else 0

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Returns rounds and the metric after them, in percent.

        Args:
            metric: A column of metrics.csv that holds shares.
        """
        return [(r["round"], 100 * r[metric]) for r in self.rows if metric in r]

    def final(self, metric: str, scale: float = 100) -> float | None:
        """Returns the metric after the last round; None if the run is unfinished.

        Args:
            metric: A column of metrics.csv.
            scale: What to multiply it by: 100 makes percent of a share.

        Raises:
            InvalidInputError: If the run is done but did not measure it.
        """
        if not self.is_done:
            return None
        if metric not in self.rows[-1]:
            raise InvalidInputError(
                f"{self.last_line}: the run is done, but its last row has no {metric}."
            )
        return scale * self.rows[-1][metric]

    def mean(self, column: str) -> float | None:
        """Returns the mean of a column of metrics.csv; None if it is empty."""
        values = [row[column] for row in self.rows if column in row]
        return statistics.fmean(values) if values else None

    def late_start(self, metric: str) -> int | None:
        """Returns the measured round that is nearest to three quarters of all.

        Of two that are equally near it is the later one.

        Args:
            metric: A column of metrics.csv.

        Returns:
            The round; None if the metric was not measured before the last one.
        """
        measured = [row["round"] for row in self.rows if metric in row][:-1]
        aim = _LATE * self.num_rounds
        return min(measured, key=lambda k: (abs(k - aim), -k), default=None)

    def late_gain(self, metric: str) -> float | None:
        """Returns the gain since `late_start`, in points of a hundred.

        Args:
            metric: A column of metrics.csv that holds shares.

        Returns:
            The gain; None if it was not measured before.
        """
        start = self.late_start(metric)
        if start is None:
            return None
        curve = self.curve(metric)
        return curve[-1][1] - dict(curve)[start]

    @property
    def hours(self) -> float:
        """How long rounds and evaluations took together."""
        seconds = ("round_seconds", "evaluation_seconds")
        return sum(row.get(key, 0.0) for row in self.speed for key in seconds) / 3600

    @property
    def has_collapsed(self) -> bool:
        """Whether it ended with features that are all alike, or at chance."""
        outcomes = (self.result or {}).get("outcomes") or {}
        return any(outcome.get("collapsed", False) for outcome in outcomes.values())

    @property
    def last_line(self) -> str:
        """Says for a message where the last row of metrics.csv stands."""
        return self.source.at(run_files.METRICS, len(self.rows) + 1)


AnyRun = TypeVar("AnyRun", bound=Run)


# --- Where runs are ---------------------------------------------------------------


def has_begun(path: pathlib.Path) -> bool:
    """Returns whether a run has left anything in a folder that tells of it.

    Raises:
        OSError: If that cannot be told: a forbidden folder is not an empty one.
    """
    for name in (run_files.FLAGS, run_files.METRICS, run_files.DONE):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (path / name).lstat()
            return True
    return False


def seed_of(path: pathlib.PurePath) -> int | None:
    """Returns K of a folder seedK; None if it has another name."""
    match = _SEED_FOLDER.fullmatch(path.name)
    return match and int(match[1])


def seed_folders(folder: pathlib.Path) -> list[pathlib.Path]:
    """Lists the folders seed0, seed1, ... in which a run has begun, in this order."""
    if not folder.is_dir():
        return []
    numbered = [path for path in folder.iterdir() if seed_of(path) is not None]
    return [path for path in sorted(numbered, key=seed_of) if has_begun(path)]


def folders_of_cells(
    results_dir: pathlib.Path, depth: int = 1, *, loose: bool = False
) -> dict[str, list[pathlib.Path]]:
    """Lists the folders of runs, see `seed_folders`, by the name of the cell.

    Args:
        results_dir: Holds CELL/seedK/. What is no run is let be.
        depth: How many parts the name of a cell has.
        loose: Whether CELL/ may be the folder of a run, too.

    Raises:
        InvalidInputError: If it is no folder.
    """
    if not results_dir.is_dir():
        raise InvalidInputError(f"--results_dir={results_dir} is no folder.")
    found = {
        path.relative_to(results_dir).as_posix(): [path]
        if loose and has_begun(path)
        else seed_folders(path)
        for path in sorted(results_dir.glob("/".join("*" * depth)))
    }
    return {cell: folders for cell, folders in found.items() if folders}


def find_cells(
    results_dir: pathlib.Path, depth: int = 1, *, loose: bool = False
) -> dict[str, list[RunFolder]]:
    """Finds the runs of a table, by the name of the cell.

    Args:
        results_dir: Holds CELL/seedK/, or an archive of them; or the archive.
        depth: See `folders_of_cells`.
        loose: See `folders_of_cells`.

    Raises:
        InvalidInputError: If it is no folder, the archive is damaged, or it holds both,
            or nothing.
        RunStoppedError: If it cannot be read.
    """
    path = results_dir
    if results_dir.is_dir():
        folders = folders_of_cells(results_dir, depth, loose=loose)
        path = results_dir / archive.NAME
        if folders and path.exists():
            raise InvalidInputError(
                f"--results_dir={results_dir} holds {archive.NAME} and the folder "
                f"{next(iter(folders))}, both with runs: take away one of them."
            )
        if folders:
            return {cell: [*map(RunFolder, paths)] for cell, paths in folders.items()}
    if path.is_file():
        return _archived_cells(path)
    if not results_dir.is_dir():
        raise InvalidInputError(f"--results_dir={results_dir} is no folder.")
    layout = "PART/" * (depth - 1) + "CELL/" + "[seedK/]" * loose
    raise InvalidInputError(
        f"--results_dir={results_dir} holds no run: expected folders "
        f"{layout}{'' if loose else 'seedK/'} with a flags.txt, as ./run.sh table "
        f"leaves them, or {archive.NAME}."
    )


def _archived_cells(path: pathlib.Path) -> dict[str, list[RunFolder]]:
    """Returns the runs in an archive by the name of the cell, by increasing seed."""
    runs: dict[pathlib.PurePosixPath, dict[str, bytes]] = {}
    for name, content in archive.read(path).items():
        parts = pathlib.PurePosixPath(name)
        runs.setdefault(parts.parent, {})[parts.name] = content
    cells: dict[str, list[RunFolder]] = {}
    for folder in sorted(runs, key=lambda x: (str(x.parent), seed_of(x) or 0)):
        if seed_of(folder) is None:
            raise InvalidInputError(
                f"{path}: found {folder}, expected files CELL/seedK/NAME."
            )
        cells.setdefault(str(folder.parent), []).append(
            RunFolder(path / folder, runs[folder])
        )
    return cells


# --- One run ----------------------------------------------------------------------


def read_run(
    source: RunFolder | pathlib.Path, kind: RunKind, run_class: type[AnyRun] = Run
) -> AnyRun:
    """Reads a run.

    Args:
        source: Where its files are, or its folder. If it is called seedK, the seed must
            be K.
        kind: Of which program it must be.
        run_class: What to return.

    Raises:
        InvalidInputError: If a file is damaged; it names the file, and the line.
        RunStoppedError: If a file is there and cannot be read.
    """
    if isinstance(source, pathlib.Path):
        source = RunFolder(source)
    flags = source.read_flags()
    _check_flags(source, flags, kind)
    result = source.read_json(run_files.DONE)
    is_done = result is not None
    name = kind.run_name(flags)
    run = run_class(
        source=source,
        kind=kind,
        flags=flags,
        rows=source.read_rows(run_files.METRICS, name, is_done),
        speed=source.read_rows(run_files.SPEED, name, is_done),
        result=result,
        description=_read_description(source),
        origin=_read_origin(source),
    )
    for line, row in enumerate(run.rows[1:], 3):
        for column in kind.columns:
            if column not in row:
                where = source.at(run_files.METRICS, line)
                raise InvalidInputError(f"{where}: there is no {column}.")
    if is_done:
        if run.rounds_done != run.num_rounds or not run.rows:
            raise InvalidInputError(
                f"{run.last_line}: the last round is "
                f"{run.rounds_done if run.rows else '(none)'}, but the run is done, "
                f"with --{kind.length}={run.num_rounds}."
            )
        kind.check_result(run)
    return run


def _check_flags(source: RunFolder, flags: Flags, kind: RunKind) -> None:
    where = source.at(run_files.FLAGS)
    for name, known in kind.choices.items():
        if flags.get(name) not in known:
            raise InvalidInputError(
                f"{where}: --{name}={flags.get(name, '(unset)')} is none of "
                f"{', '.join(known)}; expected a run of ./run.sh {kind.program}."
            )
    for name in kind.whole_numbers:
        value = flags.get(name, "")
        if not (value.isascii() and value.isdecimal() and len(value) < 19):
            raise InvalidInputError(
                f"{where}: --{name}={flags.get(name, '(unset)')} is no whole number."
            )
    for name in kind.numbers:
        value = flags.get(name, "")
        if not run_files.is_number(value):
            raise InvalidInputError(
                f"{where}: --{name}={flags.get(name, '(unset)')} is no number."
            )
    seed = seed_of(source.path)
    if seed is not None and int(flags["seed"]) != seed:
        raise InvalidInputError(
            f"{where}: --seed={flags['seed']} in the folder {source.path.name}."
        )


def _read_description(source: RunFolder) -> dict[str, Any] | None:
    value = source.read_json(run_files.RUN) or {}
    where = source.at(run_files.RUN)
    for name, kind in (("command", list), ("versions", dict), ("machine", dict)):
        if not isinstance(value.get(name, kind()), kind):
            raise InvalidInputError(
                f"{where}: {name} is {run_files.short(value[name])}, expected a JSON "
                f"{'array' if kind is list else 'object'}."
            )
    if not all(isinstance(part, str) for part in value.get("command", ())):
        raise InvalidInputError(f"{where}: command must be an array of strings.")
    return value or None


def _read_origin(source: RunFolder) -> dict[str, Any] | None:
    value = source.read_json(run_files.DATA)
    for name in ("data", "pretrained"):
        part = (value or {}).get(name)
        if part is not None and not isinstance(part, dict):
            raise InvalidInputError(
                f"{source.at(run_files.DATA)}: {name} is {run_files.short(part)}, "
                "expected a JSON object."
            )
    return value


def _check_values(run: Run) -> None:
    """Checks a done.json that has values by the columns of metrics.csv."""
    where, last = run.source.at(run_files.DONE), run.rows[-1]
    metric = run.result.get("metric")
    if metric is None or run.result.get(metric) is None:
        raise InvalidInputError(
            f"{where}: expected `metric` and its value, as ./run.sh "
            f"{run.kind.program} writes them."
        )
    for name, value in run.result.items():
        if name in ("metric", "text"):
            continue
        if name not in last and name != metric:
            continue
        measured = last.get(name, "(not there)")
        if isinstance(value, bool) or value != measured:
            raise InvalidInputError(
                f"{run.last_line}: {name} is {measured}, but {where} says "
                f"{run_files.short(value)}."
            )


# --- Runs together ----------------------------------------------------------------


def late_note(runs: Iterable[Run], metric: str) -> str:
    """Says since which round `Run.late_gain` counts; "" if it is the last quarter.

    Args:
        runs: Those that are done count.
        metric: A column of metrics.csv.

    Returns:
        A sentence that follows another one.
    """
    starts = {(run.late_start(metric), run.num_rounds) for run in runs if run.is_done}
    others = [
        f"round {start:,} of {rounds:,}"
        for start, rounds in starts
        if start not in (None, _LATE * rounds)
    ]
    if not others:
        return ""
    return (
        f" It is counted from {', '.join(sorted(others))}, the measurement nearest to "
        "three quarters."
    )


def check_same_cell(runs: Sequence[Run]) -> None:
    """Checks that runs may be averaged: they differ in the seed alone.

    Args:
        runs: Of one cell.

    Raises:
        InvalidInputError: If a flag that decides results differs, or the data, or the
            pretrained model, or two runs have the same seed; it names them.
    """
    by_seed: dict[int, Run] = {}
    for run in runs:
        if run.seed in by_seed:
            raise InvalidInputError(
                f"{run.path} and {by_seed[run.seed].path} of the same cell both have "
                f"--seed={run.seed}."
            )
        by_seed[run.seed] = run
    for run in runs[1:]:
        differences = _differences(run, runs[0], {"seed"})
        if differences:
            raise InvalidInputError(
                f"{run.path} has {differences[0]}, but {runs[0].path} of the same cell "
                f"has {differences[1]}. Runs of a cell differ in --seed alone."
            )
    _check_origins(runs)


def check_same_table(runs: Sequence[Run], may_differ: Collection[str] = ()) -> None:
    """Checks that cells may be compared: they differ in what defines a cell alone.

    Args:
        runs: Of all cells.
        may_differ: More flags in which they are meant to differ.

    Raises:
        InvalidInputError: If another flag that decides results differs, or the data, or
            the pretrained model; it names them.
    """
    for run in runs[1:]:
        free = {"seed", *run.kind.cell_flags, *_MEASUREMENT, *may_differ}
        differences = _differences(run, runs[0], free)
        if differences:
            raise InvalidInputError(
                f"One table cannot hold {run.path} with {differences[0]} and "
                f"{runs[0].path} with {differences[1]}."
            )
    _check_origins(runs, {*may_differ} - runs[0].kind.cell_flags if runs else ())


def _differences(
    mine: Run, theirs: Run, free: Collection[str]
) -> tuple[str, str] | None:
    """The flags in which two runs differ, as each of them has it."""
    names = [
        name
        for name in sorted({*mine.flags, *theirs.flags} - {*free})
        if _comparable(mine.flags, name) != _comparable(theirs.flags, name)
    ]
    if not names:
        return None
    first, second = (
        " ".join(f"--{name}={run.flags.get(name, '(unset)')}" for name in names)
        for run in (mine, theirs)
    )
    return first, second


def _comparable(flags: Flags, name: str) -> str | bool | None:
    if name == "pretrained":
        return bool(flags.get(name))
    return None if name in _PLACES else flags.get(name)


def _check_origins(runs: Sequence[Run], of_data: Collection[str] = ()) -> None:
    """Checks that runs that say what they have read, have read the same.

    Args:
        runs: The runs.
        of_data: Flags that may say which data are read: runs that differ in one need
            not have read the same.
    """
    firsts: dict[tuple, Run] = {}
    for run in runs:
        for part, by_seed in (
            ("data", run.kind.has_own_data(run.flags)),
            ("pretrained", run.kind.starts_by_seed),
        ):
            mine = (run.origin or {}).get(part)
            if mine is None:
                continue
            data = tuple(run.flags.get(name) for name in sorted(of_data))
            first = firsts.setdefault((part, run.seed if by_seed else None, data), run)
            theirs = first.origin[part]
            for key in sorted({*mine, *theirs}):
                if mine.get(key) != theirs.get(key):
                    flag = "data_dir" if part == "data" else "pretrained"
                    here, there = map(run_files.short, (mine.get(key), theirs.get(key)))
                    raise InvalidInputError(
                        f"{run.source.at(run_files.DATA)}: the run found something "
                        f"else at --{flag} than {first.path}: {key} is {here}, there "
                        f"{there}."
                    )
