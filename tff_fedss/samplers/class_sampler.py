"""Samplers of sampled softmax: their base, fixed proposals, and the softmax itself.

A sampler draws m negative classes s_1..s_m for each example, independent and with
replacement, from the example's distribution q over [n] without its target t. It also
returns log q of each, for the correction o' = o - log(m q) (see
`losses.sampled_softmax_loss`).

Samplers are NumPy objects with state: adaptive ones hold the needed parts of the class
embeddings, and are updated when these change.
"""

import abc
from typing import NamedTuple

import numpy as np
import scipy.special


class Negatives(NamedTuple):
    """The draws of a sampler.

    Attributes:
        ids: int32[examples, m], never the example's target; a class may be repeated.
        log_q: float32[examples, m], the log-probability of each draw, given the target.
    """

    ids: np.ndarray
    log_q: np.ndarray


class Distribution(NamedTuple):
    """q over all classes, of each example.

    Attributes:
        log_q: float64[examples, n]; -inf for classes that are never drawn, such as the
            target.
        is_clipped: bool[examples, n], whether log_q depends on an estimate that was
            below its bound: of the class, or of a set that contains it.
    """

    log_q: np.ndarray
    is_clipped: np.ndarray


class ClassSampler(abc.ABC):
    """A proposal distribution q over n classes.

    Attributes:
        num_classes: n.
        needs_embeddings: Whether q depends on the class embeddings. If so, `rebuild`
            must come first; if not, `rebuild` and `update` have no effect.
        num_estimates: Number of class weights, or sums of them, that were estimated.
        num_clipped: Number of estimates that were out of bounds and clipped.
    """

    needs_embeddings = False

    def __init__(self, num_classes: int):
        """Starts the counters; ValueError below two classes: one must be the target."""
        if num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, found {num_classes}.")
        self.num_classes = num_classes
        self.num_estimates = 0
        self.num_clipped = 0

    @abc.abstractmethod
    def draw(
        self,
        queries: np.ndarray,
        targets: np.ndarray,
        num_samples: int,
        generator: np.random.Generator,
    ) -> Negatives:
        """Draws negatives for each example.

        Args:
            queries: float32[examples, d], the input embeddings h.
            targets: int[examples], the target class of each example.
            num_samples: m, at least 1.
            generator: Generator of the draws, which depend only on its state, the
                arguments and the embeddings.
        """

    @abc.abstractmethod
    def distribution(self, queries: np.ndarray, targets: np.ndarray) -> Distribution:
        """Computes q of all classes in at least O(n); arguments as in `draw`.

        It is for inspection; it draws nothing, and counts no estimate.
        """

    def rebuild(self, embeddings: np.ndarray) -> None:
        """Sets the embeddings of all classes, float32[n, d]."""
        del embeddings

    def update(self, ids: np.ndarray, embeddings: np.ndarray) -> None:
        """Replaces the embeddings, float32[k, d], of some classes, int[k], distinct."""
        del ids, embeddings


def points_on(lengths: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Maps numbers of [0, 1) to points, float64, on lines from 0 to their lengths.

    A product may be rounded up to the length, which is in no interval: the result is
    always below it.
    """
    return np.minimum(uniforms * lengths, np.nextafter(lengths, 0.0))


class FixedSampler(ClassSampler):
    """Draws from given probabilities, in O(log n) a class."""

    def __init__(self, probabilities: np.ndarray):
        """Takes float[n], positive and finite, else ValueError; of any sum."""
        probabilities = np.asarray(probabilities, np.float64)
        super().__init__(len(probabilities))
        if not (np.isfinite(probabilities).all() and (probabilities > 0).all()):
            raise ValueError("probabilities must be positive and finite.")
        self._ends = np.cumsum(probabilities)
        # The values that `draw` compares with, exact despite rounding of the sum.
        self._probabilities = np.diff(self._ends, prepend=0.0)

    def draw(self, queries, targets, num_samples, generator) -> Negatives:
        """Draws for each query, independently of it."""
        targets = np.asarray(targets)[:, np.newaxis]
        left_out = self._probabilities[targets]
        rest = self._ends[-1] - left_out
        # The target's interval is cut out: points beyond it are shifted.
        points = rest * generator.random((len(queries), num_samples))
        starts = self._ends[targets] - left_out
        points += np.where(points >= starts, left_out, 0.0)
        ids = np.searchsorted(self._ends, points, "right")
        ids = np.minimum(ids, self.num_classes - 1)  # Points may be rounded up.
        # Rounding may bring a point at a border to the wrong side.
        ids = np.where(ids == targets, np.where(targets, targets - 1, 1), ids)
        log_q = np.log(self._probabilities[ids] / rest)
        return Negatives(ids.astype(np.int32), log_q.astype(np.float32))

    def distribution(self, queries, targets) -> Distribution:
        """Returns q of each query, which does not depend on it."""
        weights = np.tile(self._probabilities, (len(targets), 1))
        weights[np.arange(len(targets)), targets] = 0.0
        with np.errstate(divide="ignore"):
            log_q = np.log(weights / weights.sum(1, keepdims=True))
        return Distribution(log_q, np.zeros(log_q.shape, bool))


# Number of classes in a block: sums of blocks avoid cumulative sums over n.
_BLOCK = 128


class ExpSampler(ClassSampler):
    """The softmax q_i ~ exp(tau h.c_i).

    "Only the softmax distribution provides an unbiased gradient estimate" (Rawat et
    al., RF-softmax): the ideal that the kernel samplers approximate.
    """

    needs_embeddings = True

    def __init__(self, num_classes: int, scale: float):
        """Starts without embeddings, for n classes and logits of scale tau."""
        super().__init__(num_classes)
        self._scale = np.float32(scale)
        self._embeddings: np.ndarray | None = None

    def rebuild(self, embeddings: np.ndarray) -> None:
        """Sets the embeddings of all classes."""
        self._embeddings = np.array(embeddings, np.float32, order="C")

    def update(self, ids: np.ndarray, embeddings: np.ndarray) -> None:
        """Replaces the embeddings of some classes."""
        self._embeddings[ids] = embeddings

    def draw(self, queries, targets, num_samples, generator) -> Negatives:
        """Draws from each query's softmax without its target."""
        logits = self._logits(queries)
        logits[np.arange(len(queries)), targets] = -np.inf
        return _draw(_exp(logits), num_samples, generator)

    def distribution(self, queries, targets) -> Distribution:
        """Returns q of each query, its softmax without its target."""
        logits = self._logits(queries)[:, : self.num_classes].astype(np.float64)
        logits[np.arange(len(queries)), targets] = -np.inf
        log_q = scipy.special.log_softmax(logits, 1)
        return Distribution(log_q, np.zeros(log_q.shape, bool))

    def _logits(self, queries: np.ndarray) -> np.ndarray:
        """float32[examples, n], padded by -inf to a whole number of blocks."""
        num_padded = -(-self.num_classes // _BLOCK) * _BLOCK
        logits = np.empty((len(queries), num_padded), np.float32)
        logits[:, self.num_classes :] = -np.inf
        np.matmul(
            self._scale * queries,
            self._embeddings.T,
            out=logits[:, : self.num_classes],
        )
        return logits


def _exp(logits: np.ndarray) -> np.ndarray:
    """Computes exp() in place, with each row's largest value scaled to 1."""
    logits -= logits.max(1, keepdims=True)
    return np.exp(logits, out=logits)


def _draw(
    weights: np.ndarray, num_samples: int, generator: np.random.Generator
) -> Negatives:
    """Draws from the distribution in each row of float32[rows, whole blocks]."""
    rows = np.arange(len(weights))[:, np.newaxis]
    blocks = weights.reshape(len(weights), -1, _BLOCK)
    block_ends = np.cumsum(blocks.sum(2), 1, np.float64)
    uniforms = generator.random((2, len(weights), num_samples))
    points = points_on(block_ends[:, -1:], uniforms[0])
    block_of = np.stack(
        [
            np.searchsorted(e, p, "right")
            for e, p in zip(block_ends, points, strict=True)
        ]
    )
    # NaN, of a run that has diverged, are beyond all ends: their draws are NaN, too.
    block_of = np.minimum(block_of, blocks.shape[1] - 1)
    # Within the block by a second number, since few digits of the first are left.
    ends = np.cumsum(blocks[rows, block_of], 2, np.float64)
    points = points_on(ends[..., -1], uniforms[1])
    within = (ends <= points[..., np.newaxis]).sum(2)
    ids = block_of * _BLOCK + np.minimum(within, _BLOCK - 1)
    log_q = np.log(weights[rows, ids] / block_ends[:, -1:])
    return Negatives(ids.astype(np.int32), log_q.astype(np.float32))
