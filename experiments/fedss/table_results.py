"""Reads what the runs of a table have left: RESULTS_DIR/CELL/seedK/, or an archive.

A cell is one method with one setting, run with several seeds. The runs are read by
`results`; this module knows what is in those of `./run.sh train`.
"""

import dataclasses
import functools
import pathlib
import re
import statistics
from collections.abc import Collection, Iterable, Mapping

from experiments.common import results as results_lib
from experiments.fedss import defences_config
from experiments.fedss.methods import METHODS
from tff_fedss import models, tasks
from tff_fedss.errors import InvalidInputError

_DEFENCES = tuple(defences_config.DefencesConfig.flags())


@dataclasses.dataclass(frozen=True)
class Setting:
    """What tells the cells of a table apart.

    Attributes:
        method: By its name on the command line.
        num_negatives: m; None if the method draws none.
        is_corrected: Whether logits are corrected for how classes are drawn. True also
            where nothing is drawn.
        defences: What differs from the paper of what the server sees: flags with their
            values.
    """

    method: str
    num_negatives: int | None = None
    is_corrected: bool = True
    defences: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Returns the method as tables call it."""
        title = METHODS[self.method].title
        parts = [title, *([] if self.is_corrected else ["no correction"])]
        return ", ".join([*parts, *self.defences])

    def __str__(self) -> str:
        m = "" if self.num_negatives is None else f" (m = {self.num_negatives})"
        return self.title + m


def setting_of_name(cell: str) -> Setting | None:
    """Returns what the name of a cell says, as `omniglot_fedss_m5`; None if nothing.

    Args:
        cell: The name: of a flagfile, without `.flags`, or of a folder.
    """
    match = re.fullmatch(
        rf".+?_(?P<method>{'|'.join(METHODS)})"
        r"(?:_m(?P<m>\d+))?(?P<uncorrected>_uncorrected)?",
        cell,
    )
    if match is None:
        return None
    m = match["m"]
    if (m is not None) != METHODS[match["method"]].draws_negatives:
        return None
    return Setting(match["method"], m and int(m), match["uncorrected"] is None)


class Run(results_lib.Run):
    """One run: a cell with one seed, finished or not."""

    @property
    def cell(self) -> str:
        """The name of the cell."""
        return self.path.parent.name

    @functools.cached_property
    def setting(self) -> Setting:
        """Which cell it is, by its flags."""
        method = self.flags["method"]
        defences = tuple(
            f"{name} {self.flags[name]}" for name in _DEFENCES if name in self.flags
        )
        if not METHODS[method].draws_negatives:
            return Setting(method, defences=defences)
        return Setting(
            method,
            int(self.flags["num_negatives"]),
            self.flags.get("logit_correction") != "none",
            defences,
        )

    @property
    def task(self) -> type[tasks.FederatedTask]:
        """What was asked of the test images."""
        return tasks.KINDS[self.flags["task"]]

    def mean(self, column: str) -> float | None:
        """Returns the mean of a column of metrics.csv; None if it is empty.

        Args:
            column: Its name.
        """
        values = [row[column] for row in self.rows if column in row]
        return statistics.fmean(values) if values else None

    @property
    def has_collapsed(self) -> bool:
        """Whether it ended with features that are all alike, or at chance."""
        if not self.is_done:
            return False
        return self.result["outcomes"][self.name].get("collapsed", False)

    @property
    def summary(self) -> str:
        """What came of it, once it is done, in a line."""
        text = f"{self.final(self.task.metric):.2f} %"
        return f"{text}, features collapsed" if self.has_collapsed else text


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
    def task(self) -> type[tasks.FederatedTask]:
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


def read(
    *results_dirs: str | pathlib.Path, may_differ: Collection[str] = ()
) -> Results:
    """Reads all runs in the folders.

    Args:
        *results_dirs: Folders that hold CELL/seedK/, or an archive of them. A run that
            was never begun is no run; other folders and files are let be. If several
            hold a cell of the same setting, the first one counts.
        may_differ: Flags in which cells are meant to differ, besides those of `KIND`.

    Raises:
        InvalidInputError: If there is no run, a file is damaged, or runs do not belong
            together.
    """
    cells: dict[Setting, Cell] = {}
    for results_dir in map(pathlib.Path, results_dirs):
        for setting, cell in _read_folder(results_dir).items():
            cells.setdefault(setting, cell)
    results = Results(cells)
    results_lib.check_same_table(results.runs, may_differ)
    done = [run for run in results.runs if run.is_done]
    for run in done[1:]:
        mine, theirs = (r.result["num_classes"] for r in (run, done[0]))
        if mine != theirs:
            raise InvalidInputError(
                f"One table cannot hold {run.path} and {done[0].path}: n differ, "
                f"{mine} and {theirs}."
            )
    return results


def _read_folder(results_dir: pathlib.Path) -> dict[Setting, Cell]:
    cells: dict[Setting, Cell] = {}
    for name, sources in results_lib.find_cells(results_dir).items():
        runs = (results_lib.read_run(source, KIND, Run) for source in sources)
        cell = Cell(name, tuple(runs))
        _check_cell(cell)
        if cell.setting in cells:
            raise InvalidInputError(
                f"{results_dir} has two cells of {cell.setting}: "
                f"{cells[cell.setting].name} and {cell.name}."
            )
        cells[cell.setting] = cell
    return cells


def _check_cell(cell: Cell) -> None:
    results_lib.check_same_cell(cell.runs)
    named = setting_of_name(cell.name)
    if named is not None and named != cell.setting:
        raise InvalidInputError(
            f"{cell.runs[0].path.parent} is named for {named}, but its runs are of "
            f"{cell.setting}."
        )


def common_rounds(runs: Iterable[Run], metric: str) -> list[int]:
    """Returns the rounds after which all of the runs measured the metric.

    Args:
        runs: The runs.
        metric: A column of metrics.csv.
    """
    rounds = [{number for number, _ in run.curve(metric)} for run in runs]
    return sorted(set.intersection(*rounds)) if rounds else []


def _check_result(run: Run) -> None:
    """Checks that done.json and the last row tell the same."""
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
    if not isinstance(num_classes, int) or num_classes < 1:
        raise InvalidInputError(f"{where}: num_classes is {num_classes}.")
    if not isinstance(outcome.get("collapsed", False), bool):
        raise InvalidInputError(
            f"{where}: collapsed is {outcome['collapsed']!r}, expected true or false."
        )
    measured = run.final(run.task.metric)
    if not abs(measured - percent) <= 1e-6:
        raise InvalidInputError(
            f"{run.last_line}: {run.task.metric} is {measured:g} %, but "
            f"{run.source.at('done.json')} says {percent:g} %."
        )


KIND = results_lib.RunKind(
    program="train",
    run_name=lambda flags: flags["method"],
    choices={
        "method": METHODS,
        "dataset": tasks.FAMILIES,
        "task": tasks.KINDS,
        "model": models.FEATURE_EXTRACTORS,
    },
    whole_numbers=("seed", "rounds", "embedding_dim", "num_negatives"),
    numbers=("client_learning_rate",),
    cell_flags=frozenset(
        {
            "method",
            "num_negatives",
            "logit_correction",
            "spreadout_weight",
            "spreadout_margin",
            "spreadout_neighbors",
            "centralized_updates",
            "initial_norm",
            *_DEFENCES,
        }
    ),
    check_result=_check_result,
)
