"""The round whose weights a run keeps: the last, or the best on validation clients."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import tensorflow_federated as tff

from experiments.fedss import run_parts
from experiments.fedss.run_config import RunConfig
from tff_fedss import tasks, training
from tff_fedss.datasets import splits
from tff_fedss.datasets.federated.dataset import FederatedDataset

_VALIDATION_SHARE = 0.1
# With fewer clients, by default all train.
_FEWEST_CLIENTS = 10

_ConfigT = TypeVar("_ConfigT", bound=RunConfig)


def may_be_kept(config: RunConfig) -> bool:
    """Returns whether the flags keep the best round, if the data allow it."""
    if config.keep is not None:
        return config.keep == "best"
    follows_data = config.spec.settings[config.task].follows_data
    return config.patience is not None or follows_data and not config.on_validation


def column(config: RunConfig) -> str:
    """Returns the column of metrics.csv that decides the best round."""
    metric = tasks.KINDS[config.task].metric
    return metric if config.on_validation else f"validation_{metric}"


def load(
    config: _ConfigT,
) -> tuple[_ConfigT, FederatedDataset, FederatedDataset | None, list[str]]:
    """Loads the data, with validation clients if the best round is kept.

    Args:
        config: The flags with the defaults of the data set.

    Returns:
        The flags, with `keep` and, if it is "best", a share of validation clients; the
        data set; the same with the validation clients' images as test, None if there
        are none or the run measures on them anyway; and a line for the user if the data
        decided.

    Raises:
        InvalidInputError: If the data are missing or damaged, or cannot have validation
            clients although the flags keep the best round.
    """
    last = dataclasses.replace(config, keep="last")
    if not may_be_kept(config):
        return last, run_parts.load_dataset(last), None, []
    share = config.validation_share or _VALIDATION_SHARE
    best = dataclasses.replace(config, keep="best", validation_share=share)
    if config.on_validation:
        return best, run_parts.load_dataset(best), None, []
    is_asked_for = config.keep is not None or config.patience is not None
    try:
        dataset = run_parts.load_dataset(best)
        validation = dataset.on_validation()
        if is_asked_for:
            return best, dataset, validation, []
        if dataset.num_clients + 1 >= _FEWEST_CLIENTS:
            line = (
                f"--keep=best --validation_share={share:g}: the weights are those of "
                "the round that is best for validation clients."
            )
            return best, dataset, validation, [line]
        why = f"there are fewer than {_FEWEST_CLIENTS} clients"
    except splits.NoValidationError as error:
        if is_asked_for:
            raise
        why = str(error).rstrip(".")
    return last, run_parts.load_dataset(last), None, [f"--keep=last: {why}."]


class KeptRound:
    """Finds the round that is kept of each method, in the rows of metrics.csv.

    It depends on the rows alone, so that a resumed run finds the same. Of equally good
    rounds the first is the best.

    Attributes:
        is_best: Whether it is the best round, not the last.
    """

    def __init__(
        self,
        config: RunConfig,
        task: tasks.FederatedTask,
        validation: FederatedDataset | None,
    ):
        """Takes the results of `load`, and the task of the run."""
        self.is_best = config.keep == "best"
        self._column = column(config)
        self._patience = config.patience
        self._task = validation and type(task)(validation, task.feature_extractor_fn)

    def measure(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures the task's metrics on validation clients."""
        if self._task is None:
            return {}
        return {self._column: self._task.evaluate(weights)[self._task.metric]}

    def row(self, rows: Sequence[training.Metrics], method: str) -> training.Metrics:
        """Returns the row of the round of a method that would be kept now."""
        own = [row for row in rows if row["method"] == method]
        if not self.is_best:
            return own[-1]
        return max(
            (row for row in own if self._column in row),
            key=lambda row: row[self._column],
        )

    def is_over(self, rows: Sequence[training.Metrics], method: str) -> bool:
        """Returns whether --patience ends the run."""
        if self._patience is None or not rows:
            return False
        newest = max(row["round"] for row in rows if row["method"] == method)
        return newest - self.row(rows, method)["round"] >= self._patience
