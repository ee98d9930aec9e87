"""Features of a few small classes."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from tff_fedss import metrics
from tff_fedss.metrics import retrieval
from tff_fedss.metrics.retrieval import average_precision_at_r, map_at_r


def by_sorting(features, r, queries):
    """All distances, in the order of distance and index; ties are equal to 9 digits."""
    units = features.astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    distances = np.round(np.linalg.norm(units[queries, None] - units, axis=2), 9)
    distances[np.arange(len(queries)), queries] = np.inf
    return np.argsort(distances, axis=1, kind="stable")[:, :r]


def brute_force(features, labels, r):
    """Eq. 9 in loops: (mean, per query)."""
    per_query = []
    for q, ranked in enumerate(by_sorting(features, r, np.arange(len(features)))):
        correct, total = 0, 0.0
        for rank, i in enumerate(ranked, start=1):
            if labels[i] == labels[q]:
                correct += 1
                total += correct / rank
        per_query.append(total / r)
    return np.mean(per_query), per_query


def assert_brute_force(features, labels, r, **tolerance):
    mean, per_query = brute_force(features, labels, r)
    found = average_precision_at_r(features, labels, r)
    np.testing.assert_allclose(found, per_query, **tolerance)
    return mean


def at_angles(*degrees):
    radians = np.deg2rad(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], 1)


def random_images(num_images=90, num_classes=7, dim=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_images)
    centres = rng.normal(size=(num_classes, dim))
    features = centres[labels] + rng.normal(size=(num_images, dim))
    lengths = rng.uniform(0.1, 9, (num_images, 1))
    return (features * lengths).astype(np.float32), labels


@pytest.mark.parametrize("r", [1, 3, 10, 89])
def test_it_equals_brute_force(r):
    features, labels = random_images()
    mean = assert_brute_force(features, labels, r, rtol=1e-12)
    assert 0.02 < mean < 0.98
    assert map_at_r(features, labels, r) == pytest.approx(mean, rel=1e-12)


def test_it_equals_brute_force_where_most_distances_are_ties():
    rng = np.random.default_rng(1)
    a, b, c = rng.uniform(0.1, 1, 3)
    corners = [
        np.multiply(signs, vector)
        for vector in itertools.permutations([a, b, c])
        for signs in itertools.product([1, -1], repeat=3)
    ]
    # Two of each, of other lengths, in any order.
    features = rng.permutation(np.concatenate([corners, corners]))
    features *= rng.uniform(0.5, 5, (len(features), 1))
    labels = rng.integers(0, 4, len(features))
    for r in (1, 5, 10, 40):
        assert_brute_force(features, labels, r, rtol=1e-12)


def test_by_hand():
    features = at_angles(0, 10, 20, 180)
    per_query = average_precision_at_r(features, np.array([7, 8, 7, 7]), r=2)
    # 0: finds 10 (wrong), 20 (right, P(2) = 1/2). 10: is alone in its class.
    # 20: finds 10 (wrong), 0 (tied with none). 180: finds 20 (P(1) = 1), 10 (wrong).
    np.testing.assert_allclose(per_query, [0.25, 0, 0.25, 0.5])


def test_collapsed_features_are_still_distinguished():
    """Distances of 1e-4 and their order, which cosines in float32 cannot see."""
    rng = np.random.default_rng(3)
    features = np.ones((60, 16)) + 1e-4 * rng.normal(size=(60, 16))
    labels = rng.integers(0, 3, 60)
    assert_brute_force(features, labels, 5, rtol=1e-7, atol=1e-12)


def test_zero_vectors_are_at_a_right_angle_to_everything():
    features = np.concatenate([at_angles(0, 80, 100), np.zeros((2, 2))])
    labels = np.array([0, 1, 2, 0, 1])
    per_query = average_precision_at_r(features, labels, r=2)
    # 0 finds 80 and then the first zero, at 90 degrees, before 100. To a zero vector
    # all are equal: the first one finds 0 and 80, and so does the second.
    np.testing.assert_allclose(per_query, [0.25, 0, 0, 0.5, 0.25])


@pytest.mark.parametrize("block_size", [1, 2, 7, 64, 89])
def test_blocks_change_nothing(block_size):
    features, labels = random_images()
    features[40:60] = features[:20]
    features[80] = 0
    np.testing.assert_array_equal(
        average_precision_at_r(features, labels, 10, block_size),
        average_precision_at_r(features, labels, 10),
    )


_MEASURE_MEMORY = """
import numpy as np
from experiments.benchmarks import measured
from tff_fedss.metrics.retrieval import map_at_r
features = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
labels = np.arange(20_000) // 5
map_at_r(features[:2000], labels[:2000])  # TensorFlow's own start.
before = measured.memory_bytes("VmHWM")
map_at_r(features, labels)
print(measured.memory_bytes("VmHWM") - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_square_of_the_images():
    # A fresh process, because the peak of this one is not our own.
    run = subprocess.run(
        [sys.executable, "-c", _MEASURE_MEMORY], check=True, capture_output=True
    )
    # All distances at once would be 20,000^2 * 8 bytes = 3.2 GB.
    assert int(run.stdout) < 300 * 2**20


def test_finds_what_sorting_all_distances_finds():
    queries = np.array([7, 40, 0, 69, 7])
    features = np.random.default_rng(0).normal(size=(70, 5)).astype(np.float32)
    features[40] = 2 * features[7]  # A copy, at another length.
    found = metrics.nearest_images(features, 9, queries, block_size=2)
    np.testing.assert_array_equal(found, by_sorting(features, 9, queries))
    assert found[0, 0] == 40 and 7 not in found[0]


def test_copies_at_lengths_of_powers_of_two_rank_by_index():
    features = np.random.default_rng(5).normal(size=(200, 64)).astype(np.float32)

    def found(lengths):
        copies = features[:, np.newaxis] * lengths[:, np.newaxis]
        copies = copies.astype(np.float32).reshape(-1, 64)
        return metrics.nearest_images(copies, 6)

    all_seven = np.arange(1400).reshape(200, 7)
    others = [np.delete(own, k) for own in all_seven for k in range(7)]
    np.testing.assert_array_equal(found(2.0 ** np.arange(-3, 4)), others)
    # Other factors round every number, and so change the directions.
    assert np.any(found(np.arange(1.0, 8.0)) != others)


@pytest.mark.parametrize(
    "features, r, message",
    [
        (np.zeros([3]), 1, r"\[images, d\]: \(3,\)"),
        (np.zeros([3, 2]), 3, "takes more than 3 images, found 3"),
        (np.zeros([3, 2]), 0, "R = 0 takes"),
    ],
)
def test_bad_arguments_are_refused(features, r, message):
    with pytest.raises(ValueError, match=message):
        metrics.nearest_images(features, r)


def one_by_one(features, labels, rank=10):
    """The slow twin: R-precision, MAP at each query's R, and recall at 1 and a rank."""
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    rows = []
    for k, unit in enumerate(units):
        others = np.flatnonzero(np.arange(len(units)) != k)
        r = np.sum(labels[others] == labels[k])
        if not r:
            continue
        near = others[np.argsort(-(units[others] @ unit), kind="stable")]
        right = labels[near] == labels[k]
        precisions = [np.mean(right[: i + 1]) for i in range(r) if right[i]]
        rows.append(
            (np.mean(right[:r]), sum(precisions) / r, right[0], right[:rank].any())
        )
    return np.mean(rows, 0)


@pytest.mark.parametrize("block_numbers", [None, 3000])
def test_equals_the_search_for_one_query_at_a_time(block_numbers, monkeypatch):
    if block_numbers:
        monkeypatch.setattr(retrieval, "_BLOCK_NUMBERS", block_numbers)
    features, labels = labelled_images()
    expected = one_by_one(features, labels)
    assert np.all((expected > 0.1) & (expected < 1))
    scores = metrics.retrieval_scores(features, labels)
    np.testing.assert_allclose(scores[1:], expected)


@pytest.mark.parametrize("r", [1, 5, 20])
def test_one_search_measures_map_at_r_to_the_bit(r):
    """Of classes with fewer and with more images than R, and with one."""
    features, labels = labelled_images()
    features[7] = features[3]
    done = []
    scores = metrics.retrieval_scores(features, labels, r, progressed=done.append)
    assert scores.map_at_r == metrics.map_at_r(features, labels, r)
    assert sum(done) == len(labels)


def test_effective_rank_counts_directions():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20_000, 8))
    assert 7.9 < metrics.effective_rank(features) <= 8
    assert metrics.effective_rank(np.outer(range(1, 6), np.ones(8))) == 0
    on_a_line = np.outer([1.0, -1, 1, -1], np.eye(8)[2])
    np.testing.assert_allclose(metrics.effective_rank(on_a_line), 1, rtol=1e-6)


def test_hits_are_counted_by_rank():
    ranked = np.array([[4, 1, 0, 2, 3], [0, 1, 2, 3, 4]])
    labels = [np.array([0, 4]), np.array([3])]
    assert metrics.precision_at_k(ranked, labels, 1) == 1 / 2
    assert metrics.precision_at_k(ranked, labels, 3) == 2 / 6
    assert metrics.precision_at_k(ranked, labels, 5) == 3 / 10
    # Ranks that are not there are wrong.
    assert metrics.precision_at_k(ranked[:, :2], labels, 5) == 1 / 10


def labelled_images(seed=0):
    """Classes of 1 to 9 images, somewhat apart."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(9), np.arange(1, 10))
    centers = rng.normal(size=(9, 6))
    features = centers[labels] + rng.normal(size=(len(labels), 6))
    order = rng.permutation(len(labels))
    return features[order].astype(np.float32), labels[order] * 10


def test_the_approximate_search_finds_what_the_exact_one_does():
    features, labels = random_images(6000, 300, dim=16)
    features[6] = 0  # The search does not find it among its own nearest.
    search = metrics.approximate_search(features)
    queries = np.arange(0, 6000, 3)
    exact = metrics.nearest_images(features, 10, queries)
    found = search(features, 10, queries)
    assert found.shape == exact.shape and not (found == queries[:, None]).any()
    shared = [len(np.intersect1d(a, b)) for a, b in zip(exact, found, strict=True)]
    assert np.mean(shared) > 9.8
    np.testing.assert_allclose(
        metrics.retrieval_scores(features, labels, 10, search),
        metrics.retrieval_scores(features, labels, 10),
        atol=0.005,
    )
    # More than its lists hold: the exact search answers.
    alone = np.array([7])
    np.testing.assert_array_equal(
        search(features, 5998, alone), metrics.nearest_images(features, 5998, alone)
    )


def test_few_images_are_searched_exactly(monkeypatch):
    monkeypatch.setattr(retrieval, "approximate_search", len)
    features, _ = random_images()
    assert metrics.search_for(features, 90) is metrics.nearest_images
    assert metrics.search_for(range(100_000), 1000) == 100_000
    assert not metrics.is_approximate(99_999, 99_999)
    assert not metrics.is_approximate(10**6, 100)
