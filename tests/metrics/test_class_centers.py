import numpy as np
import pytest

from tests.metrics.test_r_precision import images
from tff_fedss import metrics
from tff_fedss.metrics import class_centers


def one_by_one(features, labels):
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


@pytest.mark.parametrize("rows", [4096, 7])
def test_equals_centres_made_for_each_image(rows, monkeypatch):
    monkeypatch.setattr(class_centers, "_ROWS", rows)
    features, labels = images()
    expected = one_by_one(features.astype(np.float64), labels)
    assert 0.3 < expected < 0.95
    np.testing.assert_allclose(metrics.center_accuracy(features, labels), expected)


def test_an_image_does_not_help_itself():
    # Two of a class, opposite to each other: each is nearest to the other class.
    features = np.array([[1, 0], [-1, 0.1], [0.9, 0.1], [0.9, 0.2]])
    assert metrics.center_accuracy(features, np.array([0, 0, 1, 1])) == 0.5


@pytest.mark.parametrize(
    "features, labels, message",
    [
        (np.eye(3), [0, 0, 0], "two classes"),
        (np.eye(3), [0, 1, 2], "two images"),
        (np.eye(3), [0, 1], "found"),
        (np.full([3, 3], np.nan), [0, 0, 1], "finite"),
    ],
)
def test_bad_arguments_are_refused(features, labels, message):
    with pytest.raises(ValueError, match=message):
        metrics.center_accuracy(features, np.array(labels))
