import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize, special

from tests.metrics.test_retrieval import labelled_images
from tff_fedss import metrics
from tff_fedss.metrics import classification


@pytest.mark.parametrize("class_block", [1, 7, 100, 1000])
def test_blocks_change_nothing(class_block):
    rng = np.random.default_rng(0)
    f = rng.normal(size=(20, 5)).astype(np.float32)
    w = rng.normal(size=(100, 5)).astype(np.float32)
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    np.testing.assert_array_equal(
        metrics.nearest_classes(f, w, tf.constant(class_block)), (f @ unit.T).argmax(1)
    )


def test_the_smallest_class_wins_among_equals():
    w = tf.constant([[0.0, 1.0], [2.0, 0.0], [1.0, 0.0], [4.0, 0.0]])
    for class_block in (1, 2, 4):
        nearest = metrics.nearest_classes(
            tf.constant([[3.0, 0.0]]), w, tf.constant(class_block)
        )
        np.testing.assert_array_equal(nearest, [1])


def test_all_predictions_are_counted():
    rng = np.random.default_rng(1)
    w = rng.normal(size=(50, 8)).astype(np.float32)
    positives = rng.permutation(50)[:12]
    labels = rng.choice(positives, 300)
    features = rng.normal(size=(300, 8))
    true, predicted = metrics.client_predictions(
        features.astype(np.float32), labels, w, positives
    )
    # Most of the other classes would win; the lengths of rows play no part.
    unit = w[positives] / np.linalg.norm(w[positives], axis=1, keepdims=True)
    np.testing.assert_array_equal(positives[true], labels)
    np.testing.assert_array_equal(predicted, (features @ unit.T).argmax(1))


def centers_one_by_one(features, labels):
    """The slow twin: a centre of each class for every image, without the image."""
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    right = []
    for k, unit in enumerate(units):
        others = np.arange(len(units)) != k
        if labels[k] not in labels[others]:
            continue
        classes = np.unique(labels[others])
        centers = [units[others & (labels == c)].mean(0) for c in classes]
        cosines = [unit @ c / np.linalg.norm(c) for c in centers]
        right.append(classes[np.argmax(cosines)] == labels[k])
    return np.mean(right)


@pytest.mark.parametrize("numbers", [2**22, 50, 1])
def test_equals_centres_made_for_each_image(numbers, monkeypatch):
    monkeypatch.setattr(classification, "_BLOCK_NUMBERS", numbers)
    features, labels = labelled_images()
    expected = centers_one_by_one(features.astype(np.float64), labels)
    assert 0.3 < expected < 0.95
    np.testing.assert_allclose(metrics.center_accuracy(features, labels), expected)


@pytest.mark.parametrize(
    "feature", [np.zeros(8), np.ones(8), np.random.default_rng(0).normal(size=8)]
)
def test_features_that_have_collapsed_are_near_no_centre(feature):
    features = np.tile(feature, (12, 1))
    assert metrics.center_accuracy(features, np.arange(12) % 4) == 0


@pytest.mark.parametrize(
    "value, labels, message",
    [
        (1, [0, 0, 0], "two classes"),
        (1, [0, 1, 2], "two images"),
        (1, [0, 1], "found"),
        (np.inf, [0, 0, 1], "finite"),
    ],
)
def test_classes_that_have_no_centre_to_compare_are_an_error(value, labels, message):
    for measure in (metrics.center_accuracy, metrics.retrieval_scores):
        with pytest.raises(ValueError, match=message):
            measure(np.full([3, 3], value), np.array(labels))


def data(seed, count, spread):
    rng = np.random.default_rng(seed)
    labels = (np.arange(count) % 3).astype(np.int32)
    centers = np.random.default_rng(9).normal(size=[3, 5])
    features = centers[labels] + spread * rng.standard_normal([count, 5])
    return (1000 * features + 3).astype(np.float32), labels


def test_it_is_the_optimum_of_regularized_logistic_regression():
    (x, y), (test_x, test_y) = data(0, 60, 2.0), data(1, 300, 2.0)
    mean, deviation = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)

    def objective(flat, c):
        w, b = flat[:15].reshape(5, 3), flat[15:]
        log_p = special.log_softmax((x - mean) / deviation @ w + b, axis=1)
        return -c * log_p[np.arange(60), y].sum() + 0.5 * (w**2).sum()

    accuracies = []
    for c in (0.001, 1.0):
        best = optimize.minimize(objective, np.zeros(18), args=(c,)).x
        scores = (test_x - mean) / deviation @ best[:15].reshape(5, 3) + best[15:]
        expected = (scores.argmax(1) == test_y).mean()
        found = metrics.linear_accuracy(x, y, test_x, test_y, strength=c)
        assert found == pytest.approx(expected, abs=1.01 / 300)
        accuracies.append(found)
    assert min(accuracies) > 0.4 and max(accuracies) < 0.95


def test_a_feature_that_never_changes_says_nothing():
    (x, y), (test_x, test_y) = data(0, 60, 1.0), data(1, 30, 1.0)
    alone = metrics.linear_accuracy(x, y, test_x, test_y)
    wide = np.concatenate([x, np.full([60, 1], 7, np.float32)], 1)
    # Were it brought to variance 1, the test would be far away from the training.
    wild = np.concatenate([test_x, np.full([30, 1], 1e6, np.float32)], 1)
    assert metrics.linear_accuracy(wide, y, wild, test_y) == alone


@pytest.mark.parametrize(
    "features, expected",
    [
        ([[1, 0]], 1),
        ([[1, 0], [2, 0]], 1),
        ([[0, 0], [1, 0]], 0),
        ([[0, 0], [1, 0], [1, 0]], 1 / 3),
        ([[0, 0]] * 4, 0),
    ],
)
def test_the_mean_cosine_of_pairs(features, expected):
    cosine = metrics.MeanCosine()
    for part in np.array_split(np.array(features, np.float32), 2):
        cosine.add(part)
    assert cosine.value == pytest.approx(expected)
