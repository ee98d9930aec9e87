"""Samplers of the rows of a sharded W for a step (Partial FC, section 2.2).

The classes are cut into strata of consecutive ids, which are sampled separately: a
device holds whole strata, so that devices have equal loads. Draws are a function of
(seed, step, stratum), not of the number of devices: a run that is resumed on other
devices has the same draws. With one stratum a device, this is exactly the article's
sampling.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Separates these draws from others with the same seed.
_PHILOX_STREAM = int.from_bytes(b"pfcstrat", "big")

SAMPLINGS = ("pprn", "all_random")


class ShardSample(NamedTuple):
    """The rows of one shard that take part in a step. Ids count from its first row.

    Attributes:
        positives: int32[P], the classes of examples of the mini-batch, ascending.
        negatives: int32[N], the others.
        labels: int32[examples]: the class of each example, or -1 if another shard has
            it.
        targets: int32[examples]: its position in `positives`, or -1 if it is not there.
    """

    positives: np.ndarray
    negatives: np.ndarray
    labels: np.ndarray
    targets: np.ndarray


class ShardSampler:
    """Draws, for each shard, the rows of W that take part in a step.

    pprn (Positive Plus Randomly Negative): all positives w_i^p of the mini-batch in
    stratum i, and s_i = (|w_i| - |w_i^p|) r of its other classes, rounded, uniform
    without replacement, for any number of positives: the article's formula. At r = 1,
    every class takes part.

    all_random: round(r |w_i|) of all classes of the stratum, drawn in the same way; a
    positive is among them only by chance. This is the second experiment of the
    article's section 2.2.1.
    """

    def __init__(
        self,
        stratum_bounds: np.ndarray,
        shard_bounds: np.ndarray,
        sample_rate: float,
        *,
        sampling: str = "pprn",
        seed: int = 0,
    ):
        """Checks and keeps the layout.

        Args:
            stratum_bounds: int64[strata + 1]: stratum i has the classes
                stratum_bounds[i]..stratum_bounds[i + 1]-1.
            shard_bounds: int64[shards + 1], some of the bounds of strata.
            sample_rate: r, 0 < r <= 1.
            sampling: One of `SAMPLINGS`.

        Raises:
            ValueError: If r or the sampling is not as above.
        """
        if not 0 < sample_rate <= 1:
            raise ValueError(f"sample_rate must be in (0, 1], found {sample_rate}")
        if sampling not in SAMPLINGS:
            raise ValueError(f"sampling must be of {SAMPLINGS}, found {sampling!r}")
        self._strata = stratum_bounds
        self._shards = shard_bounds
        self._rate = sample_rate
        self._sampling = sampling
        self._seed = seed

    def draw(self, labels: np.ndarray, step: int) -> list[ShardSample]:
        """Draws each shard's rows for labels int[examples] in [0, n), in O(rows)."""
        classes = np.unique(labels)
        cuts = np.searchsorted(classes, self._strata)
        drawn = []
        for stratum, (first, end) in enumerate(
            zip(self._strata[:-1], self._strata[1:], strict=True)
        ):
            key = np.array([self._seed, _PHILOX_STREAM], np.uint64)
            rng = np.random.Generator(
                np.random.Philox(key=key, counter=[0, 0, step, stratum])
            )
            own = classes[cuts[stratum] : cuts[stratum + 1]] - first
            positives, negatives = self._draw_stratum(own, int(end - first), rng)
            drawn.append((first + positives, first + negatives))
        places = np.searchsorted(self._strata, self._shards)
        return [
            _shard_sample(drawn[a:b], labels, *bounds)
            for a, b, *bounds in zip(
                places[:-1],
                places[1:],
                self._shards[:-1],
                self._shards[1:],
                strict=True,
            )
        ]

    def _draw_stratum(
        self, positives: np.ndarray, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        if self._sampling == "all_random":
            drawn = _subset(size, round(self._rate * size), rng)
            is_positive = np.isin(drawn, positives)
            return drawn[is_positive], drawn[~is_positive]
        num_others = size - len(positives)
        drawn = _subset(num_others, round(self._rate * num_others), rng)
        # The k-th class that is not positive: before it are the positives p_i with p_i
        # - i <= k.
        gaps = positives - np.arange(len(positives))
        return positives, drawn + np.searchsorted(gaps, drawn, "right")


def _subset(population: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws distinct integers of [0, population), every subset equally likely.

    For few integers, NumPy uses Floyd's algorithm. For more than a fiftieth of the
    population, it would shuffle all of it; here, independent draws are marked in a
    table until enough are distinct, and the surplus is removed at random. Given the
    number of marked integers, every subset is equally likely, and so is every remaining
    part.

    Returns:
        int64[size], ascending, so that rows are read in the order of their addresses.
    """
    if size == population:
        return np.arange(population)
    if 2 * size > population:  # Few are left out: mark those.
        is_out = np.zeros(population, bool)
        is_out[_subset(population, population - size, rng)] = True
        return np.flatnonzero(~is_out)
    if 50 * size < population:
        return np.sort(rng.choice(population, size, replace=False, shuffle=False))
    is_in = np.zeros(population, bool)
    # The number of draws with `size` distinct ones on average, and some more.
    wanted = -population * math.log1p(-size / population)
    while True:
        is_in[
            rng.integers(population, size=int(wanted + 2 * math.sqrt(wanted)) + 1)
        ] = 1
        drawn = np.flatnonzero(is_in)
        if len(drawn) >= size:
            break
        wanted = size - len(drawn)
    surplus = rng.choice(len(drawn), len(drawn) - size, replace=False, shuffle=False)
    return np.delete(drawn, surplus)


def _shard_sample(
    drawn: Sequence[tuple[np.ndarray, np.ndarray]],
    labels: np.ndarray,
    first: int,
    end: int,
) -> ShardSample:
    """Combines the strata of one shard."""
    positives, negatives = (
        np.concatenate(parts) - first for parts in zip(*drawn, strict=True)
    )
    own = np.where((first <= labels) & (labels < end), labels - first, -1)
    places = np.searchsorted(positives, own)
    is_there = np.zeros(len(labels), bool)
    inside = places < len(positives)
    is_there[inside] = positives[places[inside]] == own[inside]
    return ShardSample(
        positives.astype(np.int32),
        negatives.astype(np.int32),
        own.astype(np.int32),
        np.where(is_there, places, -1).astype(np.int32),
    )
