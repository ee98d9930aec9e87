"""Divergence guard: stops a run that no longer learns."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss.errors import RunStoppedError

# The number of rounds in a row without an accepted client that ends a run.
_MAX_LOST_ROUNDS = 3


class DivergenceGuard:
    """Stops a run when it has diverged."""

    def __init__(self, name: str, num_rounds: int, unit: str = "round"):
        self._name = name
        self._num_rounds = num_rounds
        self._unit = unit
        self._num_lost = 0

    def check_round(self, round_num: int, metrics: Mapping[str, Any]) -> bool:
        """Checks a completed round.

        Args:
            round_num: Its number.
            metrics: Its metrics. With `rejected_clients` but no `loss`, all updates of
                the cohort were rejected, because they were not finite.

        Returns:
            Whether an update was accepted.

        Raises:
            RunStoppedError: If its loss is not finite, or too many rounds in a row,
                with this one, accepted no client.
        """
        if "loss" in metrics and not math.isfinite(metrics["loss"]):
            self._stop(round_num, f"its loss is {metrics['loss']}")
        if "loss" in metrics or not metrics.get("rejected_clients"):
            self._num_lost = 0
            return True
        self._num_lost += 1
        if self._num_lost >= min(_MAX_LOST_ROUNDS, self._num_rounds):
            self._stop(
                round_num,
                f"for {self._num_lost} {self._unit}s in a row no client's update was "
                "finite, and all were rejected",
            )
        return False

    def check_weights(self, round_num: int, weights: Any) -> None:
        """Checks weights before they are evaluated or saved.

        Args:
            round_num: The number of completed rounds.
            weights: Any structure of arrays. A `models.ShardedMatrix` in it is skipped,
                and so are scalars, which are not weights and may be infinite, such as
                the easiness without a pace.

        Raises:
            RunStoppedError: If one is not finite.
        """
        if not all(map(_is_finite, tf.nest.flatten(weights))):
            self._stop(round_num, "a weight is not finite")

    def check_metrics(self, round_num: int, metrics: Mapping[str, Any]) -> None:
        """Checks the metrics of an evaluation.

        Args:
            round_num: The number of completed rounds.
            metrics: Metrics by name.

        Raises:
            RunStoppedError: If one is not finite.
        """
        for name, value in metrics.items():
            if isinstance(value, float) and not math.isfinite(value):
                self._stop(round_num, f"{name} is {value}")

    def _stop(self, round_num: int, why: str) -> None:
        if not round_num:
            raise RunStoppedError(
                f"{self._name} cannot be trained: before the first {self._unit} {why}. "
                "Try other weights to start from, or a smaller scale of the logits."
            )
        raise RunStoppedError(
            f"{self._name} has diverged in {self._unit} {round_num}: {why}. Try a "
            f"smaller learning rate. Checkpoints of earlier {self._unit}s stay as they "
            "are."
        )


def _is_finite(value: Any) -> bool:
    array = np.asarray(value)
    if array.dtype.kind != "f" or not array.ndim:
        return True
    flat = array.reshape(-1)
    # Faster than a check of each; a finite sum proves that all are finite.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(flat, flat)) or np.isfinite(flat).all())
