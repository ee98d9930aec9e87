"""Proposal distributions that do not depend on the embeddings."""

import numpy as np

from tff_fedss.samplers.class_sampler import ClassSampler, Distribution, Negatives


class FixedSampler(ClassSampler):
    """Draws from given probabilities, in O(log n) a class."""

    def __init__(self, probabilities: np.ndarray):
        """Adds them up.

        Args:
            probabilities: float[n], positive; they need not sum to 1.

        Raises:
            ValueError: If a probability is not positive and finite.
        """
        probabilities = np.asarray(probabilities, np.float64)
        super().__init__(len(probabilities))
        if not (np.isfinite(probabilities).all() and (probabilities > 0).all()):
            raise ValueError("probabilities must be positive and finite.")
        self._ends = np.cumsum(probabilities)
        # What `draw` compares with: exact also where the sum has rounded.
        self._probabilities = np.diff(self._ends, prepend=0.0)

    def rebuild(self, embeddings: np.ndarray) -> None:
        """Does nothing: the embeddings do not matter."""

    def update(self, ids: np.ndarray, embeddings: np.ndarray) -> None:
        """Does nothing: the embeddings do not matter."""

    def draw(
        self,
        queries: np.ndarray,
        targets: np.ndarray,
        num_samples: int,
        generator: np.random.Generator,
    ) -> Negatives:
        """Draws for each query; of the queries, only their number matters."""
        targets = np.asarray(targets)[:, np.newaxis]
        left_out = self._probabilities[targets]
        rest = self._ends[-1] - left_out
        # A line without the target's interval: what is beyond it moves up.
        points = rest * generator.random((len(queries), num_samples))
        starts = self._ends[targets] - left_out
        points += np.where(points >= starts, left_out, 0.0)
        ids = self._classes_at(points)
        # Rounding may put a point that is on a border to the wrong side of it.
        ids = np.where(ids == targets, np.where(targets, targets - 1, 1), ids)
        return self._negatives(ids, rest)

    def draw_for_batch(
        self, queries: np.ndarray, num_samples: int, generator: np.random.Generator
    ) -> Negatives:
        """Draws for all queries together; the queries do not matter."""
        points = self._ends[-1] * generator.random(num_samples)
        return self._negatives(self._classes_at(points), self._ends[-1])

    def distribution(
        self, queries: np.ndarray, targets: np.ndarray | None
    ) -> Distribution:
        """Returns q of each query; the queries do not matter."""
        if targets is None:
            weights = self._probabilities[np.newaxis]
        else:
            weights = np.tile(self._probabilities, (len(targets), 1))
            weights[np.arange(len(targets)), targets] = 0.0
        with np.errstate(divide="ignore"):
            log_q = np.log(weights / weights.sum(1, keepdims=True))
        return Distribution(log_q, np.zeros(log_q.shape, bool))

    def _classes_at(self, points: np.ndarray) -> np.ndarray:
        ids = np.searchsorted(self._ends, points, "right")
        return np.minimum(ids, self.num_classes - 1)  # Points may be rounded up.

    def _negatives(self, ids: np.ndarray, total: np.ndarray | float) -> Negatives:
        log_q = np.log(self._probabilities[ids] / total)
        return Negatives(ids.astype(np.int32), log_q.astype(np.float32))


def uniform_sampler(num_classes: int) -> FixedSampler:
    """The uniform distribution over [n].

    Args:
        num_classes: n.
    """
    return FixedSampler(np.ones(num_classes))


def log_uniform_sampler(num_classes: int) -> FixedSampler:
    """Zipf's law: q_i ~ log((i + 2) / (i + 1)), for text.

    It suits classes that are sorted by falling frequency, as a vocabulary is.

    Args:
        num_classes: n.
    """
    return FixedSampler(np.diff(np.log(np.arange(1.0, num_classes + 2))))
