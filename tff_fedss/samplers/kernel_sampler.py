"""Kernel-based sampling in O(F log n) a class, from a tree of feature sums.

For a kernel K(h, c) = phi(h) . phi(c) with F features, the weight of any set of classes
is phi(h) . sum phi(c_i). So a class is drawn by descending a tree over the classes,
choosing a branch at each node by the product of phi(h) with the sum under the branch
(Blanc and Rendle, ICML 2018; Rawat et al., RF-softmax).
"""

import numpy as np

from tff_fedss.samplers import kernels
from tff_fedss.samplers.class_sampler import (
    ClassSampler,
    Distribution,
    Negatives,
    points_on,
)

_FAN_OUT = 4
# Default limit of the bottom level's bytes; the whole tree takes 4/3 of it.
_BOTTOM_BYTES = 2**30
_CHUNK_BYTES = 2**24


class KernelSampler(ClassSampler):
    """q_i ~ phi(h) . phi(c_i), with clipped estimates, from a tree.

    The tree has a fan-out of 4. A node of its bottom level is a bucket of B classes,
    from which a class is drawn by the products phi(h) . phi(c_i), computed on demand.
    The sums take F n / B numbers, and a third more for the levels above.

    q is exactly the tree's distribution: the product of the branch probabilities. The
    weight of a branch is the product of phi(h) with its sum, less that of the target if
    it is under this branch, and at least k times the kernel's lower bound if k classes
    other than the target are under it. If no estimate is clipped, this is phi(h) .
    phi(c_i) over its sum on [n] without t. With a lower bound above zero every class
    can be drawn, as an unbiased correction of the logits requires.

    A draw or an update costs O(F log(n / B) + B F). An inner node is summed from its
    branches, not changed by a difference: after any number of updates, the sums equal
    those of a tree that is built at once, to the bit.

    Attributes:
        leaf_size: B.
        sums: float32[nodes, F], the feature sums, level by level from the top.
    """

    needs_embeddings = True

    def __init__(
        self, num_classes: int, kernel: kernels.Kernel, leaf_size: int | None = None
    ):
        """Lays the tree out, with B = leaf_size classes in a bucket.

        By default B is the smallest power of two with which the bottom level
        takes at most 1 GiB.
        """
        super().__init__(num_classes)
        if leaf_size is None:
            leaf_size = 1
            while leaf_size < num_classes and (
                -(-num_classes // leaf_size) * kernel.num_features * 4 > _BOTTOM_BYTES
            ):
                leaf_size *= 2
        self._kernel = kernel
        self.leaf_size = leaf_size
        sizes, spans = [], []
        size, span = -(-num_classes // leaf_size), leaf_size
        while True:
            size = -(-size // _FAN_OUT) * _FAN_OUT
            sizes.insert(0, size)
            spans.insert(0, span)
            if size == _FAN_OUT:
                break
            size, span = size // _FAN_OUT, span * _FAN_OUT
        self._sizes = sizes
        self._spans = np.array(spans)
        self._offsets = np.cumsum([0, *sizes[:-1]])
        self.sums = np.zeros((sum(sizes), kernel.num_features), np.float32)
        self._embeddings: np.ndarray | None = None

    def rebuild(self, embeddings: np.ndarray) -> None:
        """Builds the tree of the embeddings of all classes."""
        self._embeddings = np.array(embeddings, np.float32)
        num_buckets = -(-self.num_classes // self.leaf_size)
        bytes_per_bucket = 4 * self._kernel.num_features * self.leaf_size
        chunk = max(_CHUNK_BYTES // bytes_per_bucket, 1)
        for start in range(0, num_buckets, chunk):
            self._sum_buckets(np.arange(start, min(start + chunk, num_buckets)))
        self._sum_upwards(np.arange(num_buckets))

    def update(self, ids: np.ndarray, embeddings: np.ndarray) -> None:
        """Replaces the embeddings of some classes, and the sums above them."""
        self._embeddings[ids] = embeddings
        buckets = np.unique(np.asarray(ids) // self.leaf_size)
        self._sum_buckets(buckets)
        self._sum_upwards(buckets)

    def draw(self, queries, targets, num_samples, generator) -> Negatives:
        """Draws for each query, down the tree."""
        queries, targets = _typed(queries, targets)
        features = self._kernel.features(queries)
        own = self._target_products(queries, features, targets)
        num_levels = len(self._sizes)
        uniforms = generator.random((len(queries), num_samples, num_levels + 1))
        nodes, log_q, num_estimates, num_clipped = kernels.descend(
            self.sums,
            self._offsets,
            self._spans,
            _FAN_OUT,
            self.num_classes,
            self._kernel.lower_bound,
            features,
            targets,
            own,
            uniforms,
        )
        self.num_estimates += num_estimates
        self.num_clipped += num_clipped
        if self.leaf_size > 1:
            nodes, log_in_bucket = self._draw_in_buckets(
                queries, targets, nodes, uniforms[..., -1]
            )
            log_q += log_in_bucket
        return Negatives(nodes.astype(np.int32), log_q.astype(np.float32))

    def distribution(self, queries, targets) -> Distribution:
        """Returns q of each query in O(F n), from the whole tree, level by level."""
        queries, targets = _typed(queries, targets)
        features = self._kernel.features(queries)
        own = self._target_products(queries, features, targets)
        parts = Distribution(
            np.zeros((len(queries), 1)), np.zeros((len(queries), 1), bool)
        )
        for level, span in enumerate(self._spans):
            products = features @ self._level(level).T
            weights, is_low = self._clip(products, span, targets, own)
            parts = _split(parts, weights, is_low, _FAN_OUT)
        if self.leaf_size > 1:
            products = self._class_products(features)
            weights, is_low = self._clip(products, 1, targets, own)
            parts = _split(parts, weights, is_low, self.leaf_size)
        log_q, is_clipped = (part[:, : self.num_classes] for part in parts)
        return Distribution(log_q, is_clipped & np.isfinite(log_q))

    def _clip(
        self, products: np.ndarray, span: int, targets: np.ndarray, own: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the weights of all sets of `span` classes, and which were clipped.

        Args:
            products: float32[examples, sets], phi(h) with the sum of each set.
            span: Number of classes in a set.
            targets: int64[examples].
            own: float32[examples], phi(h) . phi(c_t).
        """
        weights = products.astype(np.float64)
        sets = np.arange(weights.shape[1])
        eligible = np.clip(self.num_classes - sets * span, 0, span)
        eligible = np.tile(eligible, (len(weights), 1))
        at = np.arange(len(targets)), targets // span
        eligible[at] -= 1
        weights[at] -= own
        bounds = self._kernel.lower_bound * eligible
        is_low = (weights < bounds) & (eligible > 0)
        return np.where(eligible > 0, np.maximum(weights, bounds), 0.0), is_low

    def _class_products(self, features: np.ndarray) -> np.ndarray:
        """float32[examples, whole buckets of classes], by the embeddings, in chunks."""
        products = np.zeros(
            (len(features), self._sizes[-1] * self.leaf_size), np.float32
        )
        chunk = max(_CHUNK_BYTES // (4 * self._kernel.num_features), 1)
        for start in range(0, self.num_classes, chunk):
            part = slice(start, min(start + chunk, self.num_classes))
            products[:, part] = (
                features @ self._kernel.features(self._embeddings[part]).T
            )
        return products

    def _target_products(
        self, queries: np.ndarray, features: np.ndarray, targets: np.ndarray
    ) -> np.ndarray:
        """float32[examples], phi(h) . phi(c_t)."""
        rows, ids = np.arange(len(queries)), targets[:, np.newaxis]
        if self.leaf_size > 1:
            return self._kernel.products(queries, rows, self._embeddings, ids)[:, 0]
        return kernels.pair_products(features, rows, self._level(-1), ids)[:, 0]

    def _draw_in_buckets(
        self,
        queries: np.ndarray,
        targets: np.ndarray,
        buckets: np.ndarray,
        uniforms: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws a class from each bucket: its id and log-probability in the bucket."""
        # Draws of an example from the same bucket share its weights.
        keys = np.arange(len(queries))[:, np.newaxis] * self._sizes[-1] + buckets
        keys, pair_of = np.unique(keys, return_inverse=True)
        rows, buckets = np.divmod(keys, self._sizes[-1])
        ids = buckets[:, np.newaxis] * self.leaf_size + np.arange(self.leaf_size)
        is_class = (ids < self.num_classes) & (ids != targets[rows, np.newaxis])
        present = np.minimum(ids, self.num_classes - 1)
        weights = self._kernel.products(queries, rows, self._embeddings, present)
        weights = weights.astype(np.float64)
        is_low = is_class & (weights < self._kernel.lower_bound)
        self.num_estimates += np.count_nonzero(is_class)
        self.num_clipped += np.count_nonzero(is_low)
        weights[is_low] = self._kernel.lower_bound
        weights[~is_class] = 0.0
        ends = np.cumsum(weights, 1)[pair_of]
        points = points_on(ends[:, -1:], uniforms.reshape(-1, 1))
        chosen = (ends <= points).sum(1)
        log_in_bucket = np.log(weights[pair_of, chosen] / ends[:, -1])
        shape = uniforms.shape
        return ids[pair_of, chosen].reshape(shape), log_in_bucket.reshape(shape)

    def _level(self, level: int) -> np.ndarray:
        start = self._offsets[level]
        return self.sums[start : start + self._sizes[level]]

    def _sum_buckets(self, buckets: np.ndarray) -> None:
        """Computes sums of the bottom level from the embeddings."""
        ids = buckets[:, np.newaxis] * self.leaf_size + np.arange(self.leaf_size)
        self._level(-1)[buckets] = self._kernel.bucket_sums(
            self._embeddings[np.minimum(ids, self.num_classes - 1)],
            ids < self.num_classes,
        )

    def _sum_upwards(self, nodes: np.ndarray) -> None:
        """Updates all levels above some nodes of the bottom level."""
        for level in range(len(self._sizes) - 2, -1, -1):
            nodes = np.unique(nodes // _FAN_OUT)
            kernels.sum_groups(
                self._level(level + 1), nodes, self._level(level), _FAN_OUT
            )


def _typed(queries: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns float32[examples, d] and int64[examples], for the compiled loops."""
    return np.asarray(queries, np.float32), np.asarray(targets, np.int64)


def _split(
    sets: Distribution, weights: np.ndarray, is_low: np.ndarray, width: int
) -> Distribution:
    """Divides the probability of each set, [examples, sets], among its `width` parts.

    Weights are float64[examples, parts], the parts of a set side by side, and those
    that were clipped bool[examples, parts]. Returns values of the parts, [examples,
    parts].
    """
    num_sets = weights.shape[1] // width
    parts = weights.reshape(len(weights), num_sets, width)
    totals = parts.sum(2, keepdims=True)
    with np.errstate(divide="ignore"):
        log_shares = np.log(parts / np.where(totals > 0, totals, 1.0))
    log_q = sets.log_q[:, :num_sets, np.newaxis] + log_shares
    is_clipped = sets.is_clipped[:, :num_sets, np.newaxis] | is_low.reshape(parts.shape)
    return Distribution(log_q.reshape(weights.shape), is_clipped.reshape(weights.shape))
