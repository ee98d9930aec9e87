"""The round whose weights a run leaves: the last, or validation clients' best."""

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
# By default, fewer clients than these all train: one of them is too much to lose.
_FEWEST_CLIENTS = 10

_ConfigT = TypeVar("_ConfigT", bound=RunConfig)


def may_be_kept(config: RunConfig) -> bool:
    """Returns whether the flags ask for the best round, if the data allow it."""
    if config.keep is not None:
        return config.keep == "best"
    follows_data = config.spec.settings[config.task].follows_data
    return config.patience is not None or follows_data and not config.on_validation


def column(config: RunConfig) -> str:
    """Returns the column of metrics.csv that the best round is chosen by."""
    metric = tasks.KINDS[config.task].metric
    return metric if config.on_validation else f"validation_{metric}"


def load(
    config: _ConfigT,
) -> tuple[_ConfigT, FederatedDataset, FederatedDataset | None, list[str]]:
    """Loads the data, with validation clients where the best round is to be kept.

    Args:
        config: With the defaults of its data set.

    Returns:
        The flags, with `keep` and, if it is "best", with a share of validation clients;
        the data set; the same whose test are the validation clients' images, None if
        there are none or the run measures on them anyway; and a line for the user where
        the data decided.

    Raises:
        InvalidInputError: If the data are not there, or damaged, or have no validation
            clients although the flags ask for the best round.
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
                "the round that is best for clients kept apart."
            )
            return best, dataset, validation, [line]
        why = f"there are fewer than {_FEWEST_CLIENTS} clients"
    except splits.NoValidationError as error:
        if is_asked_for:
            raise
        why = str(error).rstrip(".")
    return last, run_parts.load_dataset(last), None, [f"--keep=last: {why}."]


class KeptRound:
    """Finds the round of each method that is kept, in the rows of metrics.csv.

    It follows from the rows alone, so that a resumed run finds what an undisturbed one
    does. Of equally good rounds the first is the best.

    Attributes:
        is_best: Whether it is the best one; else it is the last.
    """

    def __init__(
        self,
        config: RunConfig,
        task: tasks.FederatedTask,
        validation: FederatedDataset | None,
    ):
        """Takes what `load` has returned, and the task of the run."""
        self.is_best = config.keep == "best"
        self._column = column(config)
        self._patience = config.patience
        self._task = validation and type(task)(validation, task.feature_extractor_fn)

    def measure(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures on validation clients what the task measures on the test."""
        if self._task is None:
            return {}
        return {self._column: self._task.evaluate(weights)[self._task.metric]}

    def row(self, rows: Sequence[training.Metrics], method: str) -> training.Metrics:
        """Returns the row of the round of a method that is kept, if it ended now."""
        own = [row for row in rows if row["method"] == method]
        if not self.is_best:
            return own[-1]
        return max(
            (row for row in own if self._column in row),
            key=lambda row: row[self._column],
        )

    def is_over(self, rows: Sequence[training.Metrics], method: str) -> bool:
        """Returns whether --patience has come to its end."""
        if self._patience is None or not rows:
            return False
        newest = max(row["round"] for row in rows if row["method"] == method)
        return newest - self.row(rows, method)["round"] >= self._patience
