"""Samplers of LEAP's training examples: easy and diverse ones, and neighbourhoods.

The student trains on the selection of self-paced learning with diversity (SPLD; Jiang
et al., NeurIPS 2014; LEAP, Algorithm 2), the embedding network on neighbourhoods of
clusters of each class (Rippel et al., ICLR 2016; LEAP, 3.1 and Algorithm 1).
"""

import dataclasses
import functools
from typing import Protocol

import numpy as np
import threadpoolctl

_LARGEST_GROWTH = 1e290  # Of gamma, so that it stays finite.


def select(
    losses: np.ndarray, clusters: np.ndarray, easiness: float, diversity: float
) -> np.ndarray:
    """Returns the weights W in {0, 1} that minimise LEAP's objective for fixed losses.

        sum_i w_i L_i - lambda sum_i w_i - gamma sum_k |W^k|_2

    The i-th example of a cluster, by increasing loss, raises |W^k|_2 from sqrt(i - 1)
    to sqrt(i): it lowers the objective exactly if L < lambda + gamma / (sqrt(i) +
    sqrt(i - 1)) (Algorithm 2, line 19). This takes O(N log N). With gamma < 0 it would
    not be the minimum.

    Args:
        losses: float[N], L. NaN is selected at lambda = infinity alone.
        clusters: int[N], the cluster of each example; any numbers.
        easiness: lambda. Infinity selects every example.
        diversity: gamma, at least 0.

    Returns:
        bool[N], W.
    """
    if np.isposinf(easiness):
        return np.ones(len(losses), bool)
    return losses - _bonus(losses, clusters, diversity) < easiness


def easiness_for(
    losses: np.ndarray, clusters: np.ndarray, diversity: float, count: int
) -> float:
    """Solves for the lambda with which `select` takes `count` examples.

    Line 19 takes an example if L - gamma / (sqrt(i) + sqrt(i - 1)) < lambda, and ranks
    do not depend on lambda: lambda is the next of these differences in order. With
    gamma = 0 it is a quantile of the losses.

    Args:
        losses: float[N], see `select`.
        clusters: int[N].
        diversity: gamma.
        count: Number of examples to take, in [1, N]. Examples with equal differences at
            the limit are not taken, unless they are the lowest: then all are.

    Returns:
        lambda; infinity if all must be taken, which are also those of NaN.
    """
    margins = losses - _bonus(losses, clusters, diversity)
    finite = np.sort(margins[np.isfinite(margins)])
    if count >= len(finite):
        return np.inf
    # At least one: equal examples at the bottom are all taken.
    return float(max(finite[count], np.nextafter(finite[0], np.inf)))


def _bonus(losses: np.ndarray, clusters: np.ndarray, diversity: float) -> np.ndarray:
    """float64[N], gamma / (sqrt(i) + sqrt(i - 1)) for the rank i within the cluster."""
    # By cluster, then by loss, then by position; NumPy sorts NaN to the end.
    order = np.lexsort((losses, clusters))
    sorted_clusters = clusters[order]
    starts = np.flatnonzero(np.diff(sorted_clusters, prepend=sorted_clusters[:1] - 1))
    sizes = np.diff(np.append(starts, len(order)))
    rank = 1 + np.arange(len(order)) - np.repeat(starts, sizes)
    bonus = np.empty(len(losses))
    bonus[order] = diversity / (np.sqrt(rank) + np.sqrt(rank - 1))
    return bonus


def _grown(diversity: float, growth: float, epoch: int) -> float:
    """Returns gamma of an epoch, finite: an infinite one would not order examples."""
    with np.errstate(over="ignore"):
        return float(diversity * min(np.float64(growth) ** epoch, _LARGEST_GROWTH))


class Pace(Protocol):
    """A schedule of lambda and gamma over the epochs."""

    def at(
        self, epoch: int, losses: np.ndarray, clusters: np.ndarray
    ) -> tuple[float, float]:
        """Returns lambda and gamma for the losses, float[N], and clusters, int[N].

        `epoch` is the number of selections before this one.
        """


@dataclasses.dataclass(frozen=True)
class ThresholdPace:
    """The schedule lambda <- beta_1 lambda, gamma <- beta_2 gamma (line 24).

    Attributes:
        easiness: The first lambda, in units of the loss, above 0.
        diversity: The first gamma, in units of the loss.
        easiness_growth: beta_1, above 1.
        diversity_growth: beta_2.
    """

    easiness: float
    diversity: float
    easiness_growth: float
    diversity_growth: float

    def __post_init__(self):
        # Otherwise lambda might never grow enough to select an example.
        if not self.easiness > 0:
            raise ValueError(f"easiness={self.easiness} must be above 0.")
        if not self.easiness_growth > 1:
            raise ValueError(f"easiness_growth={self.easiness_growth} must be above 1.")

    def at(self, epoch, losses, clusters) -> tuple[float, float]:
        """Returns lambda and gamma of an epoch."""
        with np.errstate(over="ignore"):
            easiness = float(self.easiness * np.float64(self.easiness_growth) ** epoch)
        return easiness, _grown(self.diversity, self.diversity_growth, epoch)


@dataclasses.dataclass(frozen=True)
class SharePace:
    """The schedule of the lambda that selects a growing share of the examples.

    Cross-entropy begins at log n and falls: a lambda that suits the start soon selects
    everything, so that lambda is better given by rank.

    Attributes:
        share: Share of the examples, in the first selection. From 1 on, all are taken.
        share_growth: Added to the share after every selection.
        diversity: The first gamma, in units of the loss.
        diversity_growth: beta_2, the factor of gamma after every selection.
        cap: The largest share. With wrong labels, the examples with the largest losses
            are better never taken.
    """

    share: float
    share_growth: float
    diversity: float
    diversity_growth: float
    cap: float = 1.0

    def at(self, epoch, losses, clusters) -> tuple[float, float]:
        """Returns lambda and gamma of an epoch."""
        # Ten steps of 0.1 do not add up to 1 in floating point.
        share = min(round(self.share + epoch * self.share_growth, 9), self.cap)
        diversity = _grown(self.diversity, self.diversity_growth, epoch)
        # A diverged student (NaN) must end, not wait for better losses.
        if share >= 1 or not np.isfinite(losses).any():
            return np.inf, diversity
        count = max(round(share * len(losses)), 1)
        return easiness_for(losses, clusters, diversity, count), diversity


_INITIALIZATIONS = 10
_MAX_ITERATIONS = 20


@dataclasses.dataclass(frozen=True)
class ClusterIndex:
    """K clusters for each of n classes.

    The k-th cluster of class c has the number c K + k. A class with fewer than K
    different examples has fewer clusters; the other numbers are unused.

    Attributes:
        clusters_per_class: K.
        assignments: int32[N], the cluster of each example.
        centers: float32[n K, d], mu; those of unused clusters are arbitrary.
    """

    clusters_per_class: int
    assignments: np.ndarray
    centers: np.ndarray

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """int[n K], the number of examples in each cluster."""
        return np.bincount(self.assignments, minlength=len(self.centers))

    @functools.cached_property
    def members(self) -> list[np.ndarray]:
        """The examples of each cluster, int[size], in their order."""
        order = np.argsort(self.assignments, kind="stable")
        return np.split(order, np.cumsum(self.sizes)[:-1])

    def classes(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the classes of clusters, as int32."""
        return (np.asarray(numbers) // self.clusters_per_class).astype(np.int32)


def build_index(
    representations: np.ndarray,
    labels: np.ndarray,
    num_classes: int,
    clusters_per_class: int,
    seed: int,
) -> ClusterIndex:
    """Clusters r, float32[N, d], by k-means++, class by class (Algorithm 1, 8-12).

    It takes the best of ten starts, of at most 20 iterations each, on one thread:
    with several, the order of additions and thus the clusters would vary. Labels
    are int32[N].
    """
    from sklearn import cluster  # Takes seconds, and only LEAP needs it.

    assignments = np.zeros(len(labels), np.int32)
    centers = np.zeros(
        (num_classes * clusters_per_class, representations.shape[1]), np.float32
    )
    by_class = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=num_classes))
    with threadpoolctl.threadpool_limits(1):
        for label, examples in enumerate(np.split(by_class, ends[:-1])):
            if not len(examples):
                continue
            own = np.ascontiguousarray(representations[examples], np.float32)
            # k-means warns if there are fewer different points than clusters.
            num_clusters = min(clusters_per_class, len(np.unique(own, axis=0)))
            kmeans = cluster.KMeans(
                num_clusters,
                init="k-means++",
                n_init=_INITIALIZATIONS,
                max_iter=_MAX_ITERATIONS,
                random_state=seed,
            ).fit(own)
            first = label * clusters_per_class
            assignments[examples] = first + kmeans.labels_
            centers[first : first + num_clusters] = kmeans.cluster_centers_
    return ClusterIndex(clusters_per_class, assignments, centers)


def cluster_losses(index: ClusterIndex, example_losses: np.ndarray) -> np.ndarray:
    """Averages the losses of each cluster (Algorithm 1, line 19): float64[n K], L_I.

    An example's loss, float[N], is -1 if it has not been seen yet. A cluster
    without seen examples has the mean of all seen examples (1 if there are none);
    an unused one has 0.
    """
    is_seen = example_losses != -1
    seen = index.assignments[is_seen]
    values = example_losses[is_seen].astype(np.float64)
    counts = np.bincount(seen, minlength=len(index.centers))
    sums = np.bincount(seen, values, minlength=len(index.centers))
    mean = values.mean() if len(values) else 1.0
    losses = np.where(counts, sums / np.maximum(counts, 1), mean)
    return np.where(index.sizes > 0, losses, 0.0)


def draw_neighbourhood(
    index: ClusterIndex,
    losses: np.ndarray,
    num_clusters: int,
    examples_per_cluster: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws a mini-batch of clusters that may be confused (LEAP, 3.1).

    The seed cluster I_1 is drawn with probability in proportion to its loss; I_2 to I_M
    are the nearest clusters of other classes; D examples are drawn from each,
    uniformly, without replacement if it has enough.

    Args:
        losses: float[n K], L_I, see `cluster_losses`. All 0: any cluster may be seed.
        num_clusters: M; there must be M - 1 clusters of other classes.
        examples_per_cluster: D.

    Returns:
        The clusters int[M], seed first, and the examples int[M, D].
    """
    is_used = index.sizes > 0
    weights = np.where(is_used, losses, 0.0)
    if not weights.sum() > 0:
        weights = is_used.astype(np.float64)
    seed_cluster = generator.choice(len(weights), p=weights / weights.sum())
    classes = index.classes(np.arange(len(weights)))
    distances = np.square(index.centers - index.centers[seed_cluster]).sum(1)
    is_impostor = is_used & (classes != classes[seed_cluster])
    distances = np.where(is_impostor, distances, np.inf)
    nearest = np.argsort(distances, kind="stable")[: num_clusters - 1]
    chosen = np.append(seed_cluster, nearest)
    if not is_impostor[nearest].all():
        raise ValueError(
            f"there are not {num_clusters - 1} clusters of other classes than "
            f"{classes[seed_cluster]}"
        )
    examples = [
        generator.choice(
            index.members[number],
            examples_per_cluster,
            replace=index.sizes[number] < examples_per_cluster,
        )
        for number in chosen
    ]
    return chosen, np.stack(examples)
