"""Kernels K(h, c) that are products of features: K = phi(h) . phi(c) (RF-softmax).

The sum of K over many classes is then one product with the sum of their features. The
loops at the end, compiled by Numba, give the same bits for the same values, whatever
the number of rows in a call: a tree that is updated class by class equals one that is
built at once.
"""

import abc
import math

import numba
import numpy as np


class Kernel(abc.ABC):
    """A kernel, or the estimate of one, with its feature map phi.

    Attributes:
        num_features: The length of phi.
        lower_bound: Lower bound of the kernel's values; an estimate may be less.
    """

    num_features: int
    lower_bound: float

    @abc.abstractmethod
    def features(self, vectors: np.ndarray) -> np.ndarray:
        """Maps h or c, float32[k, d], to phi, with the same bits whatever the others.

        The result is float32[k, num_features].
        """

    def bucket_sums(self, classes: np.ndarray, is_class: np.ndarray) -> np.ndarray:
        """Sums phi over buckets, with the same bits for a bucket whatever the others.

        Takes the vectors in each of k buckets, float32[k, B, d], and which
        count, bool[k, B]; returns float32[k, num_features].
        """
        num_buckets, size, dim = classes.shape
        features = self.features(classes.reshape(-1, dim))
        features[~is_class.reshape(-1)] = 0.0
        out = np.empty((num_buckets, self.num_features), np.float32)
        sum_groups(features, np.arange(num_buckets), out, size)
        return out

    def products(
        self,
        queries: np.ndarray,
        rows: np.ndarray,
        embeddings: np.ndarray,
        ids: np.ndarray,
    ) -> np.ndarray:
        """Computes phi(h) . phi(c) for some pairs, from the vectors: float32[pairs, L].

        Args:
            queries: float32[examples, d].
            rows: int64[pairs], of the queries.
            embeddings: float32[n, d].
            ids: int64[pairs, L], the classes for the query of each pair.
        """
        return pair_products(
            self.features(queries),
            rows,
            self.features(embeddings[ids.reshape(-1)]),
            np.arange(ids.size).reshape(ids.shape),
        )


class QuadraticKernel(Kernel):
    """K(h, c) = alpha (h.c)^2 + 1 (Blanc and Rendle, ICML 2018).

    The poster's phi(z) = [sqrt(alpha) z (x) z, 1] has every product z_i z_j twice. With
    each once, times sqrt(2), the kernel is the same with d (d + 1) / 2 + 1 features.
    """

    lower_bound = 1.0

    def __init__(self, embedding_dim: int, alpha: float = 100.0):
        """Lists the products of d numbers."""
        self._i, self._j = np.triu_indices(embedding_dim)
        twice = np.where(self._i == self._j, 1.0, 2.0)
        self._factors = np.sqrt(alpha * twice).astype(np.float32)
        self._alpha = np.float32(alpha)
        self.num_features = len(self._i) + 1

    def features(self, vectors: np.ndarray) -> np.ndarray:
        """Returns phi of each vector."""
        out = np.ones((len(vectors), self.num_features), np.float32)
        out[:, :-1] = vectors[:, self._i] * vectors[:, self._j] * self._factors
        return out

    def bucket_sums(self, classes: np.ndarray, is_class: np.ndarray) -> np.ndarray:
        """Sums phi over each bucket, whose products are one matrix product."""
        counted = np.where(is_class[..., np.newaxis], classes, np.float32(0.0))
        out = np.empty((len(classes), self.num_features), np.float32)
        products = np.matmul(counted.swapaxes(1, 2), counted)
        out[:, :-1] = products[:, self._i, self._j] * self._factors
        out[:, -1] = is_class.sum(1)
        return out

    def products(self, queries, rows, embeddings, ids) -> np.ndarray:
        """Returns the kernel of each pair in O(d), by its equation."""
        logits = pair_products(queries, rows, embeddings, ids)
        return self._alpha * logits**2 + 1


class RandomFourierKernel(Kernel):
    """An estimate of exp(-nu |h - c|^2 / 2) for h and c at length 1.

    phi(u) = [cos(w_1.u), ..., cos(w_D.u), sin(w_1.u), ..., sin(w_D.u)] / sqrt(D) with
    w_j ~ N(0, nu I). (The poster writes N(0, I / nu), which would be the kernel of 1 /
    nu.) At length 1, the kernel is e^-nu exp(nu h.c): the softmax's at nu = tau.
    Vectors are scaled to length 1 here; a zero vector stays zero.
    """

    def __init__(self, embedding_dim: int, num_frequencies: int, nu: float, seed: int):
        """Draws D frequencies w of N(0, nu I); there are 2 D features."""
        generator = np.random.Generator(np.random.Philox(seed))
        self.frequencies = (
            math.sqrt(nu) * generator.standard_normal((embedding_dim, num_frequencies))
        ).astype(np.float32)
        self.num_features = 2 * num_frequencies
        # |h - c| is at most 2.
        self.lower_bound = math.exp(-2 * nu)

    def features(self, vectors: np.ndarray) -> np.ndarray:
        """Returns phi of each vector."""
        vectors = np.ascontiguousarray(vectors, np.float32)
        norms = np.sqrt(np.square(vectors, dtype=np.float64).sum(1, keepdims=True))
        units = (vectors / np.where(norms > 0, norms, 1.0)).astype(np.float32)
        angles = matmul(units, self.frequencies)
        num_frequencies = angles.shape[1]
        out = np.empty((len(vectors), self.num_features), np.float32)
        # Contiguous, so that NumPy computes every value in the same way.
        out[:, :num_frequencies] = np.cos(angles)
        out[:, num_frequencies:] = np.sin(angles)
        out *= np.float32(num_frequencies**-0.5)
        return out


@numba.njit(cache=True)
def matmul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns x y, with every row summed in the same order, unlike a BLAS.

    Maps float32[rows, d] and float32[d, columns] to float32[rows, columns].
    """
    out = np.zeros((x.shape[0], y.shape[1]), np.float32)
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            factor = x[i, k]
            for j in range(y.shape[1]):
                out[i, j] += factor * y[k, j]
    return out


@numba.njit(cache=True)
def sum_groups(
    values: np.ndarray, groups: np.ndarray, out: np.ndarray, size: int
) -> None:
    """Sets out[g] = the sum of values[g * size : (g + 1) * size] for the given g.

    Values are float32[rows, F], groups int64[k], and `out` float32[> max(groups), F].
    """
    for g in groups:
        for j in range(values.shape[1]):
            out[g, j] = values[g * size, j]
        for r in range(g * size + 1, (g + 1) * size):
            for j in range(values.shape[1]):
                out[g, j] += values[r, j]


@numba.njit(fastmath=True, cache=True)
def _dot(a: np.ndarray, b: np.ndarray) -> np.float32:
    total = np.float32(0.0)
    for j in range(a.shape[0]):
        total += a[j] * b[j]
    return total


@numba.njit(cache=True)
def pair_products(
    left: np.ndarray, left_rows: np.ndarray, right: np.ndarray, right_rows: np.ndarray
) -> np.ndarray:
    """Computes left[left_rows[i]] . right[right_rows[i, j]]: float32[pairs, L].

    Takes float32[a, F] with int64[pairs], and float32[b, F] with int64[pairs, L].
    The rows are not copied.
    """
    out = np.empty(right_rows.shape, np.float32)
    for i in range(right_rows.shape[0]):
        for j in range(right_rows.shape[1]):
            out[i, j] = _dot(left[left_rows[i]], right[right_rows[i, j]])
    return out


@numba.njit(cache=True)
def descend(
    sums: np.ndarray,
    offsets: np.ndarray,
    spans: np.ndarray,
    fan_out: int,
    num_classes: int,
    lower_bound: float,
    queries: np.ndarray,
    targets: np.ndarray,
    target_products: np.ndarray,
    uniforms: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Draws nodes of the bottom level of a tree, branch by branch from its top.

    Draws at the same node share its branch weights.

    Args:
        sums: float32[nodes, F], level after level, from the top.
        offsets: int64[levels], the first row of each level.
        spans: int64[levels], the number of classes under a node of each level.
        fan_out: Number of siblings of nodes.
        num_classes: n; nodes may include ids from n on, which do not exist.
        lower_bound: Lower bound of a class's kernel.
        queries: float32[examples, F], phi(h).
        targets: int64[examples], the classes that are left out.
        target_products: float32[examples], phi(h) . phi(c_t).
        uniforms: float64[examples, m, at least levels], in [0, 1).

    Returns:
        int64[examples, m], the drawn nodes of the bottom level; float64[examples, m],
        their log-probabilities; the number of estimated branches; the number of
        estimates below their bound, which were clipped.
    """
    num_levels = len(offsets)
    num_examples, num_samples = uniforms.shape[0], uniforms.shape[1]
    nodes = np.zeros((num_examples, num_samples), np.int64)
    log_q = np.zeros((num_examples, num_samples))
    ends = np.empty(fan_out)
    counts = np.empty(fan_out + 1, np.int64)
    branch_of = np.empty(num_samples, np.int64)
    # Draws are ordered such that those at the same node are neighbours.
    order = np.empty(num_samples, np.int64)
    next_order = np.empty(num_samples, np.int64)
    num_estimates = num_clipped = 0
    for e in range(num_examples):
        query, target = queries[e], targets[e]
        for s in range(num_samples):
            order[s] = s
        for level in range(num_levels):
            span = spans[level]
            begin = 0
            while begin < num_samples:
                parent = nodes[e, order[begin]]
                end = begin + 1
                while end < num_samples and nodes[e, order[end]] == parent:
                    end += 1
                total = 0.0
                for branch in range(fan_out):
                    node = parent * fan_out + branch
                    has_target = target // span == node
                    eligible = min(max(num_classes - node * span, 0), span)
                    eligible -= has_target
                    if eligible:
                        weight = float(_dot(sums[offsets[level] + node], query))
                        if has_target:
                            weight -= target_products[e]
                        num_estimates += 1
                        if weight < lower_bound * eligible:
                            num_clipped += 1
                            weight = lower_bound * eligible
                        total += weight
                    ends[branch] = total
                counts[:] = 0
                for i in range(begin, end):
                    s = order[i]
                    point = uniforms[e, s, level] * total
                    branch = 0
                    while branch < fan_out - 1 and ends[branch] <= point:
                        branch += 1
                    # Rounding may bring the point to the end, where there may be no
                    # class.
                    while branch and ends[branch] == ends[branch - 1]:
                        branch -= 1
                    weight = ends[branch] - (ends[branch - 1] if branch else 0.0)
                    log_q[e, s] += np.log(weight / total)
                    nodes[e, s] = parent * fan_out + branch
                    branch_of[s] = branch
                    counts[branch + 1] += 1
                for branch in range(fan_out):
                    counts[branch + 1] += counts[branch]
                for i in range(begin, end):
                    s = order[i]
                    next_order[begin + counts[branch_of[s]]] = s
                    counts[branch_of[s]] += 1
                begin = end
            order, next_order = next_order, order
    return nodes, log_q, num_estimates, num_clipped
