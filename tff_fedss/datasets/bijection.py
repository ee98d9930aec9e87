"""A seeded bijection of [n] that needs no table."""

import numpy as np

_ROUNDS = 6


class Bijection:
    """A pseudo-random permutation of 0..n-1, evaluated element by element.

    A balanced Feistel network permutes the smallest 4^w >= n; a value outside [n] is
    mapped again until it is inside (cycle walking, Black and Rogaway, 2002), which
    gives a permutation of [n]. As 4^w < 4n, this takes less than four passes on
    average. Memory: a few integers, whatever n is.
    """

    def __init__(self, n: int, rng: np.random.Generator):
        """Draws the permutation of 0..n-1, 1 <= n <= 2^62."""
        self._n = n
        self._half_bits = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
        self._half_mask = np.uint64((1 << int(self._half_bits)) - 1)
        self._keys = rng.integers(1 << 64, size=_ROUNDS, dtype=np.uint64)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Maps every value, int[N] in 0..n-1, to int64[N]."""
        result = self._feistel(np.asarray(values).astype(np.uint64))
        outside = result >= self._n
        while outside.any():
            result[outside] = self._feistel(result[outside])
            outside = result >= self._n
        return result.astype(np.int64)

    def _feistel(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half_bits, values & self._half_mask
        for key in self._keys:
            left, right = right, left ^ (mix(right ^ key) & self._half_mask)
        return (left << self._half_bits) | right


def mix(x: np.ndarray) -> np.ndarray:
    """Scrambles 64 bits (the finalizer of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
