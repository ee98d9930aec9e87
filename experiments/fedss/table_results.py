"""The runs of `./run.sh train` by method and m, for FedSS's figures.

A cell is one method with one setting, run with several seeds. `results` reads the runs;
this module knows the contents of those of `./run.sh train`.
"""

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Iterable, Mapping

from experiments.common import comparable, sources
from experiments.common import results as results_lib
from experiments.fedss import methods
from experiments.fedss.methods import METHODS
from tff_fedss import models, tasks
from tff_fedss.errors import InvalidInputError


def row_of(method: str, is_corrected: bool = True) -> str:
    """Returns the row of a method, with Eq. 3's correction of the logits or without."""
    title = METHODS[method].title
    return title if is_corrected else f"{title}, no correction"


@dataclasses.dataclass(frozen=True)
class Setting:
    """The setting of a cell of a table.

    Attributes:
        method: By its name on the command line.
        num_negatives: m; None if the method draws none.
        is_corrected: Whether logits are corrected for the sampling. True also without
            sampling.
    """

    method: str
    num_negatives: int | None = None
    is_corrected: bool = True

    @property
    def title(self) -> str:
        """Returns the method's name in tables."""
        return row_of(self.method, self.is_corrected)

    def __str__(self) -> str:
        m = "" if self.num_negatives is None else f" (m = {self.num_negatives})"
        return self.title + m


class Run(results_lib.Run):
    """One run: a cell with one seed, finished or not."""

    @functools.cached_property
    def setting(self) -> Setting:
        """Its cell, by its flags."""
        method = methods.name_of(self.flags["method"])
        if not METHODS[method].draws_negatives:
            return Setting(method)
        return Setting(
            method,
            int(self.flags["num_negatives"]),
            self.flags.get("logit_correction") != "none",
        )

    @property
    def task(self) -> type[tasks.FederatedTask]:
        """The task on the test images."""
        return tasks.KINDS[self.flags["task"]]


@dataclasses.dataclass(frozen=True)
class Cell:
    """The runs of one cell.

    Attributes:
        runs: By increasing seed; at least one.
    """

    runs: tuple[Run, ...]

    @property
    def setting(self) -> Setting:
        """Its setting."""
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
        paper: The paper's values of the metric in percent, of a table at its scale.
    """

    cells: Mapping[Setting, Cell]
    paper: Mapping[Setting, float] = dataclasses.field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for cell in self.cells.values() for run in cell.runs]

    @property
    def dataset(self) -> str:
        """The data set, by its name on the command line."""
        return self.runs[0].flags["dataset"].partition(":")[0]

    @property
    def dataset_title(self) -> str:
        """The data set's name in tables."""
        return tasks.DATASETS[self.dataset].title

    @property
    def task(self) -> type[tasks.FederatedTask]:
        """The task on the test images."""
        return self.runs[0].task

    @functools.cached_property
    def num_classes(self) -> int | None:
        """Returns n; None if no run has it."""
        for run in self.runs:
            if run.is_done:
                return run.result["num_classes"]
        for run in self.runs:
            if run.setting.method == "full_softmax" and run.mean("classes_per_client"):
                return round(run.mean("classes_per_client"))
        return None

    @functools.cached_property
    def mean_positives(self) -> float | None:
        """The mean |P_k| over rounds and runs; None if it is not measured."""
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
        """Returns the values of m that a method was run with, increasing."""
        return sorted(
            {s.num_negatives for s in self.cells if s.method == method} - {None}
        )


def of_runs(runs: Iterable[results_lib.Run]) -> Results:
    """Sorts runs by their setting, those of a cell by their seed."""
    cells: dict[Setting, list[Run]] = {}
    for run in runs:
        fields = {x.name: getattr(run, x.name) for x in dataclasses.fields(run)}
        own = Run(**fields)
        cells.setdefault(own.setting, []).append(own)
    return Results({setting: Cell(tuple(own)) for setting, own in cells.items()})


def read(*results_dirs: str | pathlib.Path) -> Results:
    """Reads all runs of folders that hold CELL/seedK/, or of their archives.

    Raises:
        InvalidInputError: If there is no run, a file is damaged, or runs do not belong
            together.
    """
    found: dict[str, list[results_lib.Run]] = {}
    for results_dir in map(pathlib.Path, results_dirs):
        for name, folders in sources.find_cells(results_dir).items():
            runs = [results_lib.read_run(folder, KIND) for folder in folders]
            comparable.check_same_cell(runs)
            found.setdefault(name, runs)
    names: dict[Setting, str] = {}
    for name, runs in found.items():
        (setting,) = of_runs(runs).cells
        if names.setdefault(setting, name) != name:
            raise InvalidInputError(
                f"{names[setting]} and {name} are two cells of {setting}: figures "
                "cannot tell them apart."
            )
    results = of_runs(run for runs in found.values() for run in runs)
    comparable.check_same_table(results.runs)
    return results


def _check_result(run: results_lib.Run) -> None:
    """Checks that done.json and the row of the kept round agree."""
    where = run.source.at("done.json", 1)
    try:
        num_classes = run.result["num_classes"]
        outcome = run.result["outcomes"][run.name]
        percent = outcome["percent"]
    except (KeyError, TypeError) as error:
        raise InvalidInputError(
            f"{where}: expected num_classes and outcomes of {run.name} with their "
            f"percent; missing: {error}."
        ) from error
    for name, value in (("num_classes", num_classes), ("percent", percent)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInputError(f"{where}: {name} is {value!r}, not a number.")
    metric = tasks.KINDS[run.flags["task"]].metric
    measured = run.final(metric)
    if "kept_round" in outcome:
        measured = dict(run.curve(metric))[outcome["kept_round"]]
    if not abs(measured - percent) <= 1e-6:
        raise InvalidInputError(
            f"{run.last_line}: {metric} is {measured:g} %, but "
            f"{run.source.at('done.json')} says {percent:g} %."
        )


KIND = results_lib.RunKind(
    program="train",
    run_name=lambda flags: methods.name_of(flags["method"]),
    choices={
        "method": METHODS,
        "dataset": tasks.DATASETS,
        "task": tasks.KINDS,
        "model": models.FEATURE_EXTRACTORS,
    },
    cell_flags=frozenset(
        {
            "method",
            "num_negatives",
            "logit_correction",
            "initial_norm",
            "client_learning_rate",
            "schedule",
            "server_optimizer",
            "train_top1",
        }
    ),
    check_result=_check_result,
)
