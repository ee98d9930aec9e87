import collections
import itertools

import numpy as np
import pytest

from tff_fedss.samplers import neighbourhoods


def rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def blobs():
    """Two classes with three blobs each; far apart, 10 examples a blob."""
    centers = np.array([[0, 0], [0, 9], [9, 0], [30, 0], [30, 9], [39, 0]], np.float32)
    points = np.repeat(centers, 10, 0) + 0.1 * rng().standard_normal([60, 2])
    labels = np.repeat([0, 1], 30).astype(np.int32)
    shuffle = rng(1).permutation(60)
    return points[shuffle].astype(np.float32), labels[shuffle], shuffle // 10


def test_blobs_are_found_within_their_class():
    points, labels, blob = blobs()
    index = neighbourhoods.build_index(points, labels, 2, 3, seed=0)
    assert index.assignments.dtype == np.int32 and index.centers.shape == (6, 2)
    np.testing.assert_array_equal(index.classes(index.assignments), labels)
    pairs = collections.Counter(zip(index.assignments.tolist(), blob.tolist()))
    assert sorted(pairs.values()) == [10] * 6
    for number in range(6):
        members = index.members(number)
        assert (index.assignments[members] == number).all()
        np.testing.assert_allclose(
            index.centers[number], points[members].mean(0), atol=1e-5
        )
    assert index.sizes.tolist() == [10] * 6


def test_an_index_follows_from_the_seed():
    points, labels = rng(3).standard_normal([80, 5]), np.arange(80) % 4
    first, again, other = (
        neighbourhoods.build_index(points, labels, 4, 6, seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.assignments, again.assignments)
    assert (first.assignments != other.assignments).any()


def test_a_class_may_have_fewer_points_than_clusters():
    points = np.array([[0.0], [0.0], [1.0], [5.0], [6.0], [7.0]], np.float32)
    labels = np.array([0, 0, 0, 2, 2, 2], np.int32)  # none of class 1
    index = neighbourhoods.build_index(points, labels, 3, 3, seed=0)
    assert np.count_nonzero(index.sizes[:3]) == 2
    assert index.sizes[3:6].tolist() == [0, 0, 0]
    assert index.sizes[6:].tolist() == [1, 1, 1]


def test_cluster_losses_are_means_of_what_was_seen():
    index = neighbourhoods.ClusterIndex(
        2, np.array([0, 0, 1, 1, 2], np.int32), np.zeros([4, 1], np.float32)
    )
    losses = np.array([1.0, 2.0, -1.0, 6.0, -1.0])
    np.testing.assert_allclose(
        neighbourhoods.cluster_losses(index, losses), [1.5, 6.0, 3.0, 0.0]
    )
    nothing = neighbourhoods.cluster_losses(index, np.full(5, -1.0))
    np.testing.assert_allclose(nothing, [1.0, 1.0, 1.0, 0.0])


def draw_many(index, losses, count=400, **kwargs):
    arguments = dict(num_clusters=3, examples_per_cluster=4) | kwargs
    return [
        neighbourhoods.draw_neighbourhood(index, losses, generator=rng(i), **arguments)
        for i in range(count)
    ]


def test_a_neighbourhood_is_a_seed_and_its_nearest_impostors():
    points, labels, _ = blobs()
    index = neighbourhoods.build_index(points, labels, 2, 3, seed=0)
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


def test_seeds_are_drawn_by_their_loss():
    points, labels, _ = blobs()
    index = neighbourhoods.build_index(points, labels, 2, 3, seed=0)
    losses = np.array([0.0, 1.0, 3.0, 0.0, 4.0, 0.0])
    seeds = collections.Counter(c[0] for c, _ in draw_many(index, losses, 2000))
    assert set(seeds) == {1, 2, 4}
    for number, share in ((1, 1 / 8), (2, 3 / 8), (4, 4 / 8)):
        assert seeds[number] / 2000 == pytest.approx(share, abs=0.04)


def test_all_clusters_may_be_seeds_if_none_has_a_loss():
    points, labels, _ = blobs()
    index = neighbourhoods.build_index(points, labels, 2, 3, seed=0)
    assert {c[0] for c, _ in draw_many(index, np.zeros(6))} == set(range(6))


def test_small_clusters_give_examples_twice():
    index = neighbourhoods.ClusterIndex(
        1, np.array([0, 0, 1], np.int32), np.array([[0.0], [1.0]], np.float32)
    )
    seen = set()
    for chosen, examples in draw_many(index, np.ones(2), 10, num_clusters=2):
        assert (index.assignments[examples] == chosen[:, np.newaxis]).all()
        seen.update(itertools.chain(*examples.tolist()))
    assert seen == {0, 1, 2}


def test_too_few_impostors_are_refused():
    index = neighbourhoods.ClusterIndex(
        2, np.array([0, 1, 2], np.int32), np.zeros([4, 1], np.float32)
    )
    with pytest.raises(ValueError, match="not 2 clusters of other classes"):
        draw_many(index, np.array([1.0, 0, 0, 0]), 1)
