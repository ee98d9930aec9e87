import numpy as np
import pytest

from tff_fedss import metrics
from tff_fedss.metrics import nearest


def images(count=70, dim=5):
    features = np.random.default_rng(0).normal(size=(count, dim)).astype(np.float32)
    features[40] = 2 * features[7]  # A copy, at another length.
    return features


def by_sorting(features, r, queries):
    """The slow twin: all distances, in the order of distance and index."""
    units = features.astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    distances = np.round(np.linalg.norm(units[queries, None] - units, axis=2), 6)
    distances[np.arange(len(queries)), queries] = np.inf
    return np.argsort(distances, axis=1, kind="stable")[:, :r]


@pytest.mark.parametrize("queries", [None, [7, 40, 0, 69, 7]])
@pytest.mark.parametrize("block_size", [1024, 16])
def test_finds_what_sorting_all_distances_finds(queries, block_size):
    features = images()
    found = metrics.nearest_images(features, 9, queries, block_size)
    asked = np.arange(70) if queries is None else np.array(queries)
    np.testing.assert_array_equal(found, by_sorting(features, 9, asked))
    place = list(asked).index(7)
    assert found[place, 0] == 40 and asked[place] not in found[place]


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
        (np.full([3, 2], np.inf), 1, "finite"),
    ],
)
def test_bad_arguments_are_refused(features, r, message):
    with pytest.raises(ValueError, match=message):
        metrics.nearest_images(features, r)


def test_one_graph_serves_every_number_of_images_and_neighbours():
    for r in range(1, 8):
        metrics.nearest_images(images(60 + r), r)
    assert nearest._nearest.experimental_get_tracing_count() == 1
