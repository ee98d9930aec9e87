import collections
import dataclasses
import itertools

import numpy as np
import pytest

from tests.arrays import rng
from tff_fedss.samplers import self_paced


def objective(weights, losses, clusters, easiness, diversity):
    """E(W) of LEAP, 3.2, for weights in {0, 1}."""
    norms = sum(
        np.sqrt(np.square(weights[clusters == k]).sum()) for k in np.unique(clusters)
    )
    return weights @ losses - easiness * weights.sum() - diversity * norms


@pytest.mark.parametrize("seed", range(12))
def test_no_other_weights_are_better(seed):
    generator = np.random.default_rng(seed)
    losses = generator.uniform(0, 1.5, 9)
    clusters = generator.integers(3, size=9) * 5
    easiness, diversity = generator.uniform(0, 1, 2)
    chosen = self_paced.select(losses, clusters, easiness, diversity)
    problem = (losses, clusters, easiness, diversity)
    best = min(
        objective(np.array(w, float), *problem)
        for w in itertools.product((0, 1), repeat=9)
    )
    assert objective(chosen.astype(float), *problem) == pytest.approx(best, abs=1e-12)


def test_without_diversity_it_is_a_threshold_and_strict():
    losses = np.array([0.1, 0.5, 0.2, 0.5000001, np.nan])
    chosen = self_paced.select(losses, np.zeros(5, int), 0.5, 0.0)
    assert chosen.tolist() == [True, False, True, False, False]


def test_infinite_easiness_takes_everything():
    losses = np.array([1e30, np.nan, np.inf])
    assert self_paced.select(losses, np.zeros(3, int), np.inf, 0.5).all()


def test_a_threshold_pace_multiplies():
    pace = self_paced.ThresholdPace(0.1, 0.5, 1.1, 1.2)
    for epoch in range(4):
        easiness, diversity = pace.at(epoch, np.zeros(3), np.zeros(3, int))
        assert easiness == pytest.approx(0.1 * 1.1**epoch)
        assert diversity == pytest.approx(0.5 * 1.2**epoch)
    assert pace.at(10**6, np.zeros(3), np.zeros(3, int)) == (np.inf, 0.5e290)
    with pytest.raises(ValueError, match="easiness_growth=1 must be above 1"):
        self_paced.ThresholdPace(0.1, 0.0, 1, 1)
    with pytest.raises(ValueError, match="easiness=0.0 must be above 0"):
        self_paced.ThresholdPace(0.0, 0.0, 1.1, 1)


@pytest.mark.parametrize("diversity", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("cap", [0.65, 1.0])
def test_a_share_pace_takes_a_growing_share(diversity, cap):
    losses = np.random.default_rng(0).exponential(1.0, 1000)
    clusters = np.random.default_rng(1).integers(20, size=1000)
    pace = self_paced.SharePace(0.1, 0.1, diversity, 1.0, cap)
    shares = []
    for epoch in range(10):
        easiness, gamma = pace.at(epoch, losses, clusters)
        assert gamma == diversity
        chosen = self_paced.select(losses, clusters, easiness, gamma)
        shares.append(chosen.mean())
    np.testing.assert_allclose(shares, np.minimum(np.arange(1, 11) / 10, cap))
    # Epochs of a few images: growth has no end, but the share has.
    pace = dataclasses.replace(pace, diversity_growth=1.1)
    easiness, gamma = pace.at(10**4, losses, clusters)
    chosen = self_paced.select(losses, clusters, easiness, gamma)
    assert np.isfinite(gamma) and cap - 0.05 < chosen.mean() <= cap


def test_lambda_is_the_largest_that_takes_so_many():
    # float32, as losses come: rounding must not take one more or one less.
    losses = np.random.default_rng(0).exponential(1.0, 40).astype(np.float32)
    clusters = np.random.default_rng(1).integers(4, size=40)
    for count in (1, 7, 39, 40):
        easiness = self_paced.easiness_for(losses, clusters, 0.7, count)
        assert self_paced.select(losses, clusters, easiness, 0.7).sum() == count
        if count == 40:
            assert easiness == np.inf
            continue
        taken = [
            self_paced.select(losses, clusters, x, 0.7).sum()
            for x in (np.nextafter(easiness, -np.inf), np.nextafter(easiness, np.inf))
        ]
        assert taken == [count, count + 1]  # The largest lambda that takes this many.


def test_examples_that_are_alike_do_not_stop_the_pace():
    # As of a network that says the same of all: nothing is below the lowest.
    losses = np.repeat([1.0, 2.0], 5)
    pace = self_paced.SharePace(0.1, 0.1, 0.0, 1.0, cap=0.3)
    easiness, _ = pace.at(9, losses, np.zeros(10, int))
    chosen = self_paced.select(losses, np.zeros(10, int), easiness, 0.0)
    np.testing.assert_array_equal(chosen, losses == 1.0)


def test_a_learner_that_has_diverged_does_not_wait():
    pace = self_paced.SharePace(0.1, 0.1, 0.5, 1.0)
    assert pace.at(0, np.full(5, np.nan), np.zeros(5, int))[0] == np.inf


def blobs():
    """Two classes with three blobs each; far apart, 10 examples a blob."""
    centers = np.array([[0, 0], [0, 9], [9, 0], [30, 0], [30, 9], [39, 0]], np.float32)
    points = np.repeat(centers, 10, 0) + 0.1 * rng().standard_normal([60, 2])
    labels = np.repeat([0, 1], 30).astype(np.int32)
    shuffle = rng(1).permutation(60)
    return points[shuffle].astype(np.float32), labels[shuffle], shuffle // 10


@pytest.fixture(scope="module")
def index():
    points, labels, _ = blobs()
    return self_paced.build_index(points, labels, 2, 3, seed=0)


def test_blobs_are_found_within_their_class(index):
    points, labels, blob = blobs()
    assert index.assignments.dtype == np.int32 and index.centers.shape == (6, 2)
    np.testing.assert_array_equal(index.classes(index.assignments), labels)
    pairs = collections.Counter(zip(index.assignments.tolist(), blob.tolist()))
    assert sorted(pairs.values()) == [10] * 6
    for number in range(6):
        members = index.members[number]
        assert (index.assignments[members] == number).all()
        np.testing.assert_allclose(
            index.centers[number], points[members].mean(0), atol=1e-5
        )
    assert index.sizes.tolist() == [10] * 6


def test_an_index_follows_from_the_seed():
    points, labels = rng(3).standard_normal([80, 5]), np.arange(80) % 4
    first, again, other = (
        self_paced.build_index(points, labels, 4, 6, seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.assignments, again.assignments)
    assert (first.assignments != other.assignments).any()


def test_a_class_may_have_fewer_points_than_clusters():
    points = np.array([[0.0], [0.0], [1.0], [5.0], [6.0], [7.0]], np.float32)
    labels = np.array([0, 0, 0, 2, 2, 2], np.int32)  # none of class 1
    index = self_paced.build_index(points, labels, 3, 3, seed=0)
    assert np.count_nonzero(index.sizes[:3]) == 2
    assert index.sizes[3:6].tolist() == [0, 0, 0]
    assert index.sizes[6:].tolist() == [1, 1, 1]


def test_cluster_losses_are_means_of_what_was_seen():
    index = self_paced.ClusterIndex(
        2, np.array([0, 0, 1, 1, 2], np.int32), np.zeros([4, 1], np.float32)
    )
    losses = np.array([1.0, 2.0, -1.0, 6.0, -1.0])
    np.testing.assert_allclose(
        self_paced.cluster_losses(index, losses), [1.5, 6.0, 3.0, 0.0]
    )
    nothing = self_paced.cluster_losses(index, np.full(5, -1.0))
    np.testing.assert_allclose(nothing, [1.0, 1.0, 1.0, 0.0])
    with np.errstate(all="raise"):
        self_paced.cluster_losses(index, losses)


def draw_many(index, losses, count=400, **kwargs):
    arguments = dict(num_clusters=3, examples_per_cluster=4) | kwargs
    return [
        self_paced.draw_neighbourhood(index, losses, generator=rng(i), **arguments)
        for i in range(count)
    ]


def test_a_neighbourhood_is_a_seed_and_its_nearest_impostors(index):
    for chosen, examples in draw_many(index, np.ones(6), 50):
        classes = index.classes(chosen)
        assert (classes[1:] != classes[0]).all()
        distances = {
            other: np.linalg.norm(index.centers[other] - index.centers[chosen[0]])
            for other in range(6)
            if index.classes(other) != classes[0]
        }
        assert chosen[1:].tolist() == sorted(distances, key=distances.get)[:2]
        assert examples.shape == (3, 4)
        assert (index.assignments[examples] == chosen[:, np.newaxis]).all()
        assert all(len(set(row)) == 4 for row in examples.tolist())


def test_seeds_are_drawn_by_their_loss(index):
    losses = np.array([0.0, 1.0, 3.0, 0.0, 4.0, 0.0])
    seeds = collections.Counter(c[0] for c, _ in draw_many(index, losses, 2000))
    assert set(seeds) == {1, 2, 4}
    for number, share in ((1, 1 / 8), (2, 3 / 8), (4, 4 / 8)):
        assert seeds[number] / 2000 == pytest.approx(share, abs=0.04)


def test_all_clusters_may_be_seeds_if_none_has_a_loss(index):
    assert {c[0] for c, _ in draw_many(index, np.zeros(6))} == set(range(6))


def test_small_clusters_give_examples_twice():
    index = self_paced.ClusterIndex(
        1, np.array([0, 0, 1], np.int32), np.array([[0.0], [1.0]], np.float32)
    )
    seen = set()
    for chosen, examples in draw_many(index, np.ones(2), 10, num_clusters=2):
        assert (index.assignments[examples] == chosen[:, np.newaxis]).all()
        seen.update(itertools.chain(*examples.tolist()))
    assert seen == {0, 1, 2}


def test_too_few_impostors_are_refused():
    index = self_paced.ClusterIndex(
        2, np.array([0, 1, 2], np.int32), np.zeros([4, 1], np.float32)
    )
    with pytest.raises(ValueError, match="not 2 clusters of other classes"):
        draw_many(index, np.array([1.0, 0, 0, 0]), 1)


def test_equal_points_are_one_cluster(recwarn):
    points = np.array([[1.0, 2.0]] * 4 + [[3.0, 4.0]] * 2, np.float32)
    index = self_paced.build_index(points, np.zeros(6, np.int32), 1, 4, seed=0)
    assert sorted(index.sizes) == [0, 0, 2, 4]
    assert not recwarn  # k-means warns if it is asked for more.
