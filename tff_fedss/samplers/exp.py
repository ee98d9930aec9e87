"""The softmax distribution itself as the proposal: unbiased, at a cost of O(n d)."""

import numpy as np
import scipy.special

from tff_fedss.samplers.class_sampler import (
    ClassSampler,
    Distribution,
    Negatives,
    points_on,
)

# Classes are summed in blocks of so many, so that drawing needs no running sum over n.
_BLOCK = 128


class ExpSampler(ClassSampler):
    """q_i ~ exp(tau h.c_i).

    "Only the softmax distribution provides an unbiased gradient estimate" (Rawat et
    al., RF-softmax): the ideal that the kernel samplers approximate.
    """

    needs_embeddings = True

    def __init__(self, num_classes: int, scale: float):
        """Holds no embeddings yet.

        Args:
            num_classes: n.
            scale: tau, that of the logits.
        """
        super().__init__(num_classes)
        self._scale = np.float32(scale)
        self._embeddings: np.ndarray | None = None

    def rebuild(self, embeddings: np.ndarray) -> None:
        """Takes over the embeddings of all classes."""
        self._embeddings = np.array(embeddings, np.float32, order="C")

    def update(self, ids: np.ndarray, embeddings: np.ndarray) -> None:
        """Replaces the embeddings of some classes."""
        self._embeddings[ids] = embeddings

    def draw(
        self,
        queries: np.ndarray,
        targets: np.ndarray,
        num_samples: int,
        generator: np.random.Generator,
    ) -> Negatives:
        """Draws for each query from its softmax without the target."""
        logits = self._logits(queries)
        logits[np.arange(len(queries)), targets] = -np.inf
        return _draw(_exp(logits), num_samples, generator)

    def draw_for_batch(
        self, queries: np.ndarray, num_samples: int, generator: np.random.Generator
    ) -> Negatives:
        """Draws for all queries together; q is the mean of their softmaxes."""
        weights = _exp(self._logits(queries))
        weights /= weights.sum(1, keepdims=True)
        ids, log_q = _draw(weights.mean(0, keepdims=True), num_samples, generator)
        return Negatives(ids[0], log_q[0])

    def distribution(
        self, queries: np.ndarray, targets: np.ndarray | None
    ) -> Distribution:
        """Returns q of each query, its softmax."""
        logits = self._logits(queries)[:, : self.num_classes].astype(np.float64)
        if targets is not None:
            logits[np.arange(len(queries)), targets] = -np.inf
        log_q = scipy.special.log_softmax(logits, 1)
        if targets is None:
            log_q = scipy.special.logsumexp(log_q, 0, keepdims=True)
            log_q -= np.log(len(queries))
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
    """exp() in place, with the largest value of a row brought to 1."""
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
    # Within the block by a second number: of the first one, few digits are left.
    ends = np.cumsum(blocks[rows, block_of], 2, np.float64)
    points = points_on(ends[..., -1], uniforms[1])
    ids = block_of * _BLOCK + (ends <= points[..., np.newaxis]).sum(2)
    log_q = np.log(weights[rows, ids] / block_ends[:, -1:])
    return Negatives(ids.astype(np.int32), log_q.astype(np.float32))
