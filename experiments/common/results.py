"""Reads the files of runs, for all reports, and checks that runs may be compared.

A run has flags.txt, metrics.csv, speed.csv, run.json, data.json and, when it is done,
done.json (see `training.ResultsFolder`), in its own folder, on the disk or in the
archive of a table (see `sources`). All of them are checked as they are read, and
errors name the file and the line: a number from a damaged file, or of another run, must
not get into a table.

The runs of a cell, which are averaged, agree in every flag that decides results except
the seed. The cells of a table, which are compared, agree in every flag that does not
define a cell. Paths of data and pretrained models may differ; their fingerprints in
data.json must agree.
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
# Flags of additional measurements, which do not change other numbers.
MEASUREMENT = frozenset(
    {"rounds_per_evaluation", "epochs_per_evaluation", "train_top1"}
)
# Flags that change last digits only, and that a --cell sets by the machine.
_MACHINE = frozenset({"deterministic"})


@dataclasses.dataclass(frozen=True)
class RunKind:
    """The common properties of one program's runs.

    Attributes:
        paper: The folder of experiments/ with the program, train.py.
        run_name: Returns the name of a run in its files, from its flags.
        length: The flag of the number of rounds.
        cell_flags: Flags in which the cells of a table differ.
        has_own_data: Whether, by its flags, a run's data are drawn from its own seed,
            so that only runs of the same seed have the same data.
        starts_by_seed: Whether each seed has its own pretrained model.
        has_warm_starts: Whether the runs of a table share a --warm_start_cache.
        command: What follows `./run.sh`; None: the paper's name.
    """

    paper: str
    run_name: Callable[[Flags], str]
    length: str = "rounds"
    cell_flags: frozenset[str] = frozenset()
    has_own_data: Callable[[Flags], bool] = lambda flags: False
    starts_by_seed: bool = False
    has_warm_starts: bool = False
    command: str | None = None

    @property
    def program(self) -> str:
        """What follows `./run.sh`."""
        return self.command or self.paper


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, finished or not.

    Attributes:
        source: Its files.
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
    def outcomes(self) -> dict[str, dict]:
        """The outcomes of done.json by method; empty if there are none."""
        return (self.result or {}).get("outcomes") or {}

    @property
    def has_collapsed(self) -> bool:
        """Whether it ended with collapsed features, or at chance."""
        return any(own.get("collapsed", False) for own in self.outcomes.values())

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
    where = source.at(run_files.FLAGS)
    flags = run_files.parse_flags(source.read(run_files.FLAGS), where)
    for flag in ("seed", kind.length):
        if not flags.get(flag, "").isdecimal():
            raise InvalidInputError(
                f"{where}: --{flag}={flags.get(flag, '(unset)')} is no whole number; "
                f"expected a run of ./run.sh {kind.program}."
            )
    if sources.seed_of(source.path) not in (None, int(flags["seed"])):
        raise InvalidInputError(
            f"{where}: --seed={flags['seed']} in the folder {source.path.name}."
        )
    try:
        name = kind.run_name(flags)
    except KeyError as error:
        raise InvalidInputError(
            f"{where}: has no --{error.args[0]}; expected a run of ./run.sh "
            f"{kind.program}."
        ) from error
    result = source.read_json(run_files.DONE)
    is_done = result is not None
    rows, speed = (
        run_files.parse_rows(source.read(file), source.at(file), is_done, name)
        for file in (run_files.METRICS, run_files.SPEED)
    )
    description, origin = map(source.read_json, (run_files.RUN, run_files.DATA))
    run = Run(source, kind, flags, rows, speed, result, description or None, origin)
    if is_done:
        # A run that --patience ended early records this.
        length = result.get("last_rounds", {}).get(name, run.num_rounds)
        if run.rounds_done != length or not run.rows:
            raise InvalidInputError(
                f"{run.last_line}: the last round is "
                f"{run.rounds_done if run.rows else '(none)'}, but the run is done, "
                f"with --{kind.length}={length}."
            )
    return run


# --- Runs together ----------------------------------------------------------------


def check_comparable(
    cells: Mapping[str, Sequence[Run]], may_differ: Collection[str] = ()
) -> None:
    """Checks that the runs of each cell may be averaged, and cells be compared.

    Args:
        cells: The runs of each cell, by its name.
        may_differ: Flags in which cells may differ, beside those of `RunKind`.

    Raises:
        InvalidInputError: If another flag that decides results differs, or the data, or
            the pretrained model; it names them.
    """
    for own in cells.values():
        _check(own, {"seed", *_MACHINE}, "runs of a cell differ in --seed alone")
    runs = [run for own in cells.values() for run in own]
    of_cells = runs[0].kind.cell_flags if runs else ()
    free = {"seed", *of_cells, *MEASUREMENT, *_MACHINE, *may_differ}
    _check(runs, free, "one table cannot hold both", {*may_differ} - {*of_cells})


def _check(
    runs: Sequence[Run], free: Collection[str], why: str, of_data: Collection[str] = ()
) -> None:
    """Checks that runs agree in all flags except `free`, and in data.json if present.

    data.json may differ between runs that differ in a flag of `of_data`: these flags
    select the data.
    """
    firsts: dict[tuple, Run] = {}
    for run in runs:
        names = [
            name
            for name in sorted({*run.flags, *runs[0].flags} - {*free, "data_dir"})
            if _comparable(run.flags, name) != _comparable(runs[0].flags, name)
        ]
        if names:
            mine, theirs = (
                " ".join(f"--{name}={x.flags.get(name, '(unset)')}" for name in names)
                for x in (run, runs[0])
            )
            raise InvalidInputError(
                f"{run.path} has {mine}, but {runs[0].path} has {theirs}: {why}."
            )
        selected = tuple(run.flags.get(name) for name in sorted(of_data))
        for part, flag, is_by_seed in (
            ("data", "data_dir", run.kind.has_own_data(run.flags)),
            ("pretrained", "pretrained", run.kind.starts_by_seed),
        ):
            mine = (run.origin or {}).get(part)
            if mine is None:
                continue
            key = (part, run.seed if is_by_seed else None, selected)
            first = firsts.setdefault(key, run)
            theirs = first.origin[part]
            if mine != theirs:
                others = {k for k in {*mine, *theirs} if mine.get(k) != theirs.get(k)}
                raise InvalidInputError(
                    f"{run.source.at(run_files.DATA)}: the run found something else at "
                    f"--{flag} than {first.path}: another {', '.join(sorted(others))}."
                )


def _comparable(flags: Flags, name: str) -> str | bool | None:
    # Which pretrained model it is, its fingerprint tells.
    return bool(flags.get(name)) if name == "pretrained" else flags.get(name)
