"""Reads the files of runs, for all reports.

A run has flags.txt, metrics.csv, speed.csv, run.json, data.json and, when it is done,
done.json (see `training.ResultsFolder`), in its own folder, on the disk or in the
archive of a table (see `sources`). All of them are checked as they are read, and
errors name the file and the line: a number from a damaged file, or of another run, must
not get into a table.
"""

import dataclasses
import pathlib
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from experiments.common import sources
from tff_fedss import training
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import run_files

Flags = Mapping[str, str]

# Share of the rounds before the last quarter, in which late gains are measured.
LATE = 0.75


@dataclasses.dataclass(frozen=True)
class RunKind:
    """The common properties of one program's runs.

    Attributes:
        program: Its name in `./run.sh`.
        run_name: Returns the name of a run in its files, from its flags.
        choices: Required flags, and their allowed values.
        length: The flag of the number of rounds.
        columns: Columns of metrics.csv with a number in every row but the first.
        cell_flags: Flags in which the cells of a table differ.
        has_own_data: Whether, by its flags, a run's data are drawn from its own seed,
            so that only runs of the same seed have the same data.
        starts_by_seed: Whether each seed has its own pretrained model.
        check_result: Checks that done.json and the last row agree; raises
            InvalidInputError.
    """

    program: str
    run_name: Callable[[Flags], str]
    choices: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)
    length: str = "rounds"
    columns: Sequence[str] = ()
    cell_flags: frozenset[str] = frozenset()
    has_own_data: Callable[[Flags], bool] = lambda flags: False
    starts_by_seed: bool = False
    check_result: Callable[["Run"], None] = lambda run: _check_values(run)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, finished or not.

    Attributes:
        source: Its files.
        kind: The kind of program.
        flags: The flags that decide the results, name to value.
        rows: The rows of metrics.csv, a mapping each, with parsed numbers, without
            missing values.
        speed: The rows of speed.csv, in the same form.
        result: done.json; None if the run is not finished.
        description: run.json: command, versions, machine; None if it is missing.
        origin: data.json: fingerprints of its inputs; None if it is missing.
    """

    source: sources.RunFolder
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
        """Its name in its files."""
        return self.kind.run_name(self.flags)

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.flags["seed"])

    @property
    def is_done(self) -> bool:
        """Whether it has finished."""
        return self.result is not None

    @property
    def num_rounds(self) -> int:
        """The number of rounds that it should have."""
        return int(self.flags[self.kind.length])

    @property
    def rounds_done(self) -> int:
        """The number of recorded rounds."""
        return self.rows[-1]["round"] if self.rows else 0

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Returns rounds and a share of metrics.csv after them, in percent."""
        return [(r["round"], 100 * r[metric]) for r in self.rows if metric in r]

    def final(self, metric: str, scale: float = 100) -> float | None:
        """Returns a column's last value, scaled; None if the run is unfinished.

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

        Of two equally near ones it is the later. None if the metric was not measured
        before the last round.
        """
        measured = [row["round"] for row in self.rows if metric in row][:-1]
        aim = LATE * self.num_rounds
        return min(measured, key=lambda k: (abs(k - aim), -k), default=None)

    def late_gain(self, metric: str) -> float | None:
        """Returns the gain since `late_start`, in points, if it was measured."""
        start = self.late_start(metric)
        if start is None:
            return None
        curve = self.curve(metric)
        return curve[-1][1] - dict(curve)[start]

    @property
    def hours(self) -> float:
        """The time of rounds and evaluations together."""
        seconds = ("round_seconds", "evaluation_seconds")
        return sum(row.get(key, 0.0) for row in self.speed for key in seconds) / 3600

    @property
    def has_collapsed(self) -> bool:
        """Whether it ended with collapsed features, or at chance."""
        outcomes = (self.result or {}).get("outcomes") or {}
        return any(outcome.get("collapsed", False) for outcome in outcomes.values())

    @property
    def last_line(self) -> str:
        """The place of the last row of metrics.csv, for messages."""
        return self.source.at(run_files.METRICS, len(self.rows) + 1)


def read_run(source: sources.RunFolder | pathlib.Path, kind: RunKind) -> Run:
    """Reads a run of a kind; in a folder seedK, its seed must be K.

    Raises:
        InvalidInputError: If a file is damaged; it names the file, and the line.
        RunStoppedError: If an existing file cannot be read.
    """
    if isinstance(source, pathlib.Path):
        source = sources.RunFolder(source)
    flags = run_files.parse_flags(
        source.read(run_files.FLAGS), source.at(run_files.FLAGS)
    )
    _check_flags(source, flags, kind)
    result = source.read_json(run_files.DONE)
    is_done, name = result is not None, kind.run_name(flags)
    rows, speed = (
        run_files.parse_rows(source.read(file), source.at(file), is_done, name)
        for file in (run_files.METRICS, run_files.SPEED)
    )
    description = source.read_json(run_files.RUN)
    _check_parts(description, source.at(run_files.RUN), "versions", "machine")
    origin = source.read_json(run_files.DATA)
    _check_parts(origin, source.at(run_files.DATA), "data", "pretrained")
    run = Run(source, kind, flags, rows, speed, result, description or None, origin)
    for line, row in enumerate(run.rows[1:], 3):
        for column in kind.columns:
            if column not in row:
                where = source.at(run_files.METRICS, line)
                raise InvalidInputError(f"{where}: there is no {column}.")
    if is_done:
        # A run that --patience ended early records this.
        length = result.get("last_rounds", {}).get(name, run.num_rounds)
        if run.rounds_done != length or not run.rows:
            raise InvalidInputError(
                f"{run.last_line}: the last round is "
                f"{run.rounds_done if run.rows else '(none)'}, but the run is done, "
                f"with --{kind.length}={length}."
            )
        kind.check_result(run)
    return run


def _check_flags(source: sources.RunFolder, flags: Flags, kind: RunKind) -> None:
    where = source.at(run_files.FLAGS)
    for name, known in kind.choices.items():
        if flags.get(name, "").partition(":")[0] not in known:
            raise InvalidInputError(
                f"{where}: --{name}={flags.get(name, '(unset)')} is none of "
                f"{', '.join(known)}; expected a run of ./run.sh {kind.program}."
            )
    for name in ("seed", kind.length):
        value = flags.get(name, "")
        if not (value.isascii() and value.isdecimal() and len(value) < 19):
            raise InvalidInputError(
                f"{where}: --{name}={flags.get(name, '(unset)')} is no whole number."
            )
    seed = sources.seed_of(source.path)
    if seed is not None and int(flags["seed"]) != seed:
        raise InvalidInputError(
            f"{where}: --seed={flags['seed']} in the folder {source.path.name}."
        )


def _check_parts(value: Mapping[str, Any] | None, where: str, *names: str) -> None:
    for name in names:
        part = (value or {}).get(name)
        if part is not None and not isinstance(part, dict):
            raise InvalidInputError(
                f"{where}: {name} is {run_files.short(part)}, expected a JSON object."
            )


def _check_values(run: Run) -> None:
    """Checks a done.json with values by the columns of metrics.csv."""
    where, last = run.source.at(run_files.DONE), run.rows[-1]
    metric = run.result.get("metric")
    if metric is None or run.result.get(metric) is None:
        raise InvalidInputError(
            f"{where}: expected `metric` and its value, as ./run.sh "
            f"{run.kind.program} writes them."
        )
    for name, value in run.result.items():
        if name in ("metric", "text") or name not in (*last, metric):
            continue
        measured = last.get(name, "(not there)")
        if isinstance(value, bool) or value != measured:
            raise InvalidInputError(
                f"{run.last_line}: {name} is {measured}, but {where} says "
                f"{run_files.short(value)}."
            )
