"""LEAP run: a student and its embedding, in rounds of equally many mini-batches."""

import itertools
from collections.abc import Iterator

import numpy as np

from tff_fedss.algorithms import MagnetEmbedding, SelfPacedStudent
from tff_fedss.tasks import LabelledClassification
from tff_fedss.training.embedding_process import EmbeddingProcess
from tff_fedss.training.run import Metrics
from tff_fedss.training.step_run import StepRun

# In this process, with one update for each of the student's, repeatable and resumable
# to the bit; or in a separate process.
Embedding = MagnetEmbedding | EmbeddingProcess


class LeapRun(StepRun):
    """Trains a student, and its embedding network if it has one.

    A round is a number of mini-batches, the same for all methods, so that their curves
    can be compared. Epochs are passes through the selected examples and vary in length.
    The student takes its clusters from the embedding.
    """

    def __init__(
        self,
        name: str,
        task: LabelledClassification,
        student: SelfPacedStudent,
        embedding: Embedding | None,
        steps_per_round: int,
    ):
        super().__init__(name, task, student, steps_per_round)
        self.embedding = embedding

    @property
    def state(self) -> list[list[np.ndarray]]:
        """The states of the student and of the embedding ([] without one)."""
        embedding = [] if self.embedding is None else self.embedding.state
        return [self._algorithm.state, embedding]

    def set_state(self, state: list[list[np.ndarray]]) -> None:
        """Sets the state to an earlier value of `state`."""
        student, embedding = state
        self._algorithm.set_state(student)
        if self.embedding is not None:
            self.embedding.set_state(embedding)

    def _train_round(self, round_num: int) -> Metrics:
        """Trains the embedding first, then the student.

        Returns:
            `steps` (in all rounds so far), the student's `loss` and `accuracy` on its
            mini-batches, `num_examples`, `epoch`, and for the epoch in which the round
            ends: `selected_share`, `selected_classes` (the entropy of the selected
            labels, as a number of equally frequent classes), `mislabelled_share` (of
            the selected examples, if known), `easiness` (lambda) and `diversity`
            (gamma); and `embedding_loss`, the mean Magnet loss.
        """
        student, measured = self._algorithm, Metrics()
        if self.embedding is not None:
            # First, so that the student finds clusters.
            embedding_loss = self.embedding.advance(self._steps_per_round)
            if np.isfinite(embedding_loss):
                measured["embedding_loss"] = embedding_loss
        measured.update(super()._train_round(round_num))
        data = self.task.dataset
        measured.update(
            epoch=student.epoch,
            selected_share=float(student.selected.mean()),
            selected_classes=_effective_number(data.train_labels[student.selected]),
        )
        if data.mislabelled is not None:
            measured["mislabelled_share"] = float(
                data.mislabelled[student.selected].mean()
            )
        if np.isfinite(student.easiness):
            measured.update(easiness=student.easiness, diversity=student.diversity)
        return measured

    def _batches_after(self, num_done: int) -> Iterator[tuple]:
        """The student takes its mini-batches itself."""
        return itertools.repeat(())


def _effective_number(labels: np.ndarray) -> float:
    """Returns the exponential of the entropy: n for n equally frequent classes."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(np.exp(-np.sum(shares * np.log(shares))))
