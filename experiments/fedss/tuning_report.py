"""What a search on validation clients would take, and why: tables and a plot."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Sequence

from experiments.common import output_files, plots, table, table_header
from experiments.fedss import table_results
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import run_files

# A difference below so many of its standard errors may be chance.
_NOISE = 2.0


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of a search.

    Attributes:
        run: The run.
        failure: Says how it has diverged; None if it is done.
    """

    run: table_results.Run
    failure: str | None = None

    @property
    def rate(self) -> float:
        """The learning rate of the clients."""
        return float(self.run.flags["client_learning_rate"])

    @property
    def num_negatives(self) -> int | None:
        """The value of m; None if the method draws none."""
        return self.run.setting.num_negatives

    @property
    def percent(self) -> float | None:
        """The metric after the last round; None if the run has diverged."""
        return self.run.final(self.run.task.metric)

    @functools.cached_property
    def num_images(self) -> int:
        """How many images of validation clients it is measured on.

        Raises:
            InvalidInputError: If the run's data.json does not say it.
        """
        number = ((self.run.origin or {}).get("data") or {}).get("test images")
        if not isinstance(number, int) or number < 1:
            raise InvalidInputError(
                f"{self.run.source.at(run_files.DATA)}: there is no number of `test "
                "images`, as ./run.sh train writes it."
            )
        return number

    @property
    def standard_error(self) -> float | None:
        """Of the metric as the mean of so many images' values, in percent points.

        That of a proportion, sqrt(p (1 - p) / N). Values between 0 and 1, such as those
        whose mean is MAP@10, have at most that. It does not know of other seeds.
        """
        if self.percent is None:
            return None
        share = self.percent / 100
        return 100 * math.sqrt(max(0.0, share * (1 - share)) / self.num_images)

    def is_close_to(self, other: "Trial") -> bool:
        """Whether the difference to another run that is done may be chance.

        It is held against the error of a difference of two proportions of different
        images, which is no less than that of these, which are of the same images.
        """
        error = math.hypot(self.standard_error, other.standard_error)
        return abs(self.percent - other.percent) < _NOISE * error


@dataclasses.dataclass(frozen=True)
class Search:
    """All runs of a search that are done or have diverged.

    Attributes:
        trials: By m, then by rate; at least one.
        is_of_m: Whether m is searched, too.
    """

    trials: Sequence[Trial]
    is_of_m: bool

    @property
    def best(self) -> Trial | None:
        """The highest metric; of equal ones that of fewer negatives, then lower rate.

        None if all runs have diverged.
        """
        done = [trial for trial in self.trials if trial.percent is not None]
        return max(done, key=lambda trial: trial.percent, default=None)

    def write(
        self, folder: pathlib.Path, command: Sequence[str], num_missing: int = 0
    ) -> str:
        """Writes tuning.csv, tuning.md, tuning.png and, if it is chosen, tuned.flags.

        Args:
            folder: That of the search.
            command: What was given to write it, argument by argument.
            num_missing: How many runs are missing; nothing is chosen then.

        Returns:
            Table and choice, for the terminal.
        """
        text = f"{self._table()}\n\n{self._choice(num_missing)}"
        cells = {self._name(trial): [trial.run] for trial in self.trials}
        head = table_header.head("Search on validation clients", cells, command)
        self._write_csv(folder / "tuning.csv")
        self._plot(folder / "tuning.png")
        output_files.write_text(folder / "tuning.md", f"{head}{text}\n")
        if self.best is not None and not num_missing:
            output_files.write_text(
                folder / "tuned.flags", run_files.as_flagfile(self.chosen_flags())
            )
        return text

    def chosen_flags(self) -> dict[str, str]:
        """The flags that would be taken, name to value; there must be a `best`."""
        return self._flags_of(self.best)

    def _flags_of(self, trial: Trial) -> dict[str, str]:
        flags = {"client_learning_rate": f"{trial.rate}"}
        if self.is_of_m:
            flags["num_negatives"] = str(trial.num_negatives)
        return flags

    def _name(self, trial: Trial) -> str:
        m = f"m = {trial.num_negatives}, " if self.is_of_m else ""
        return f"{m}rate {trial.rate:g}"

    # --- What it says -----------------------------------------------------------------

    def _table(self) -> str:
        metric = self.trials[0].run.task.metric_title
        header = [f"{metric} %", "standard error", "after round"]
        rows = []
        for trial in self.trials:
            found = ["diverged", None]
            if trial.percent is not None:
                found = [f"{trial.percent:.2f}", f"{trial.standard_error:.2f}"]
            if trial is self.best:
                found[0] = f"**{found[0]}**"
            rows.append([f"{trial.rate:g}", *found, trial.run.rounds_done])
        header.insert(0, "client learning rate")
        if self.is_of_m:
            header.insert(0, "m")
            for row, trial in zip(rows, self.trials, strict=True):
                row.insert(0, trial.num_negatives)
        return table.as_markdown(header, rows, left=())

    def _choice(self, num_missing: int) -> str:
        if num_missing:
            return f"Nothing is chosen yet. Runs still to be done: {num_missing}."
        best = self.best
        if best is None:
            return "Nothing is chosen: all runs have diverged. Try smaller rates."
        flags = " ".join(f"--{k}={v}" for k, v in self.chosen_flags().items())
        lines = [
            f"Taken: {flags}, the highest {best.run.task.metric_title}: "
            f"{best.percent:.2f} ± {best.standard_error:.2f} % on {best.num_images:,} "
            f"images of validation clients, after {best.run.rounds_done:,} rounds."
        ]
        close = [
            trial
            for trial in self.trials
            if trial is not best
            and trial.percent is not None
            and trial.is_close_to(best)
        ]
        if close:
            names = "; ".join(
                f"{self._name(trial)} ({trial.percent:.2f} %)" for trial in close
            )
            lines.append(
                f"Within noise of it, {_NOISE:g} standard errors: {names}. More "
                "rounds, another --seed or a larger --validation_share may tell."
            )
        lines += self._edges("rate", "client_learning_rates", "rate")
        if self.is_of_m:
            lines += self._edges("m", "num_negatives_grid", "num_negatives")
        collapsed = [t for t in self.trials if t.run.has_collapsed]
        if best in collapsed:
            lines.append(
                "But nothing has been learned: the features have collapsed. Try more "
                "rounds, a warm start, smaller rates."
            )
        elif collapsed:
            names = "; ".join(map(self._name, collapsed))
            lines.append(f"Collapsed, all images look alike to phi: {names}.")
        return "\n".join(lines)

    def _edges(self, name: str, flag: str, attribute: str) -> list[str]:
        """Says so if the best is the smallest or the largest that was tried."""
        values = sorted({getattr(trial, attribute) for trial in self.trials})
        value = getattr(self.best, attribute)
        if len(values) < 2 or value not in (values[0], values[-1]):
            return []
        which, more = "smallest", "smaller"
        if value == values[-1]:
            which, more = "largest", "larger"
        return [
            f"At the edge: {name} {value:g} is the {which} of --{flag}; {more} ones "
            "may do better."
        ]

    def _write_csv(self, path: pathlib.Path) -> None:
        metric = self.trials[0].run.task.metric
        output_files.write_csv(
            path,
            [
                {
                    "client_learning_rate": trial.rate,
                    "num_negatives": trial.num_negatives,
                    f"{metric}_percent": trial.percent,
                    "standard_error_percent": trial.standard_error,
                    "validation_images": trial.num_images,
                    "rounds": trial.run.rounds_done,
                    "outcome": trial.failure
                    or ("collapsed" if trial.run.has_collapsed else "done"),
                    "is_taken": trial is self.best,
                }
                for trial in self.trials
            ],
        )

    def _plot(self, path: pathlib.Path) -> None:
        """Draws the metric by round: a panel for each m, a look for each rate."""
        rates = sorted({trial.rate for trial in self.trials})
        task = self.trials[0].run.task
        panels = []
        for size in dict.fromkeys(trial.num_negatives for trial in self.trials):
            series = [
                plots.Series(
                    f"rate {trial.rate:g}" + " (diverged)" * (trial.percent is None),
                    plots.style(rates.index(trial.rate)),
                    [trial.run.rows],
                )
                for trial in self.trials
                if trial.num_negatives == size
            ]
            panels.append(
                plots.panel(
                    series,
                    "round",
                    task.metric,
                    "round",
                    f"{task.metric_title} on validation clients (%)",
                    scale=100,
                    title=f"m = {size}" if self.is_of_m else "",
                    from_zero=True,
                )
            )
        plots.write_curves(path, panels)
