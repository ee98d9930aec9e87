"""Kernels K(h, c) that are products of features: K = phi(h) . phi(c) (RF-softmax).

The sum of K over many classes is then one product with the sum of their features.
"""

import abc
import math

import numpy as np

from tff_fedss.samplers import compiled


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
        """Computes phi, with the same bits for a vector whatever the others.

        Args:
            vectors: float32[k, d], inputs h or classes c.

        Returns:
            float32[k, num_features].
        """

    def bucket_sums(self, classes: np.ndarray, is_class: np.ndarray) -> np.ndarray:
        """Sums phi over buckets, with the same bits for a bucket whatever the others.

        Args:
            classes: float32[k, B, d], the vectors in each of k buckets.
            is_class: bool[k, B], which vectors count.

        Returns:
            float32[k, num_features].
        """
        num_buckets, size, dim = classes.shape
        features = self.features(classes.reshape(-1, dim))
        features[~is_class.reshape(-1)] = 0.0
        out = np.empty((num_buckets, self.num_features), np.float32)
        compiled.sum_groups(features, np.arange(num_buckets), out, size)
        return out

    def products(
        self,
        queries: np.ndarray,
        rows: np.ndarray,
        embeddings: np.ndarray,
        ids: np.ndarray,
    ) -> np.ndarray:
        """Computes phi(h) . phi(c) for some pairs, from the vectors.

        Args:
            queries: float32[examples, d].
            rows: int64[pairs], of the queries.
            embeddings: float32[n, d].
            ids: int64[pairs, L], the classes for the query of each pair.

        Returns:
            float32[pairs, L].
        """
        return compiled.pair_products(
            self.features(queries),
            rows,
            self.features(embeddings[ids.reshape(-1)]),
            np.arange(ids.size).reshape(ids.shape),
        )


class QuadraticKernel(Kernel):
    """K(h, c) = alpha (h.c)^2 + 1 (Blanc and Steffen, ICML 2018).

    The poster's phi(z) = [sqrt(alpha) z (x) z, 1] has every product z_i z_j twice. With
    each once, times sqrt(2), the kernel is the same with d (d + 1) / 2 + 1 features.
    """

    lower_bound = 1.0

    def __init__(self, embedding_dim: int, alpha: float = 100.0):
        """Lists the products.

        Args:
            embedding_dim: d.
            alpha: See the equation.
        """
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

    def products(
        self,
        queries: np.ndarray,
        rows: np.ndarray,
        embeddings: np.ndarray,
        ids: np.ndarray,
    ) -> np.ndarray:
        """Returns the kernel of each pair in O(d), by its equation."""
        logits = compiled.pair_products(queries, rows, embeddings, ids)
        return self._alpha * logits**2 + 1


class RandomFourierKernel(Kernel):
    """An estimate of exp(-nu |h - c|^2 / 2) for h and c at length 1.

    phi(u) = [cos(w_1.u), ..., cos(w_D.u), sin(w_1.u), ..., sin(w_D.u)] / sqrt(D) with
    w_j ~ N(0, nu I). (The poster writes N(0, I / nu), which would be the kernel of 1 /
    nu.) At length 1, the kernel is e^-nu exp(nu h.c): the softmax's at nu = tau.
    Vectors are scaled to length 1 here; a zero vector stays zero.
    """

    def __init__(self, embedding_dim: int, num_frequencies: int, nu: float, seed: int):
        """Draws the frequencies w.

        Args:
            embedding_dim: d.
            num_frequencies: D; there are 2 D features.
            nu: See the equation.
            seed: Seed of the frequencies.
        """
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
        angles = compiled.matmul(units, self.frequencies)
        num_frequencies = angles.shape[1]
        out = np.empty((len(vectors), self.num_features), np.float32)
        # Contiguous, so that NumPy computes every value in the same way.
        out[:, :num_frequencies] = np.cos(angles)
        out[:, num_frequencies:] = np.sin(angles)
        out *= np.float32(num_frequencies**-0.5)
        return out
