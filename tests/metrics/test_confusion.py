import numpy as np
import pytest

from tff_fedss.metrics import confusion

# Five classes in the plane; the lengths of rows play no part.
W = np.array([[1, 0], [0, 3], [-1, 0], [0.5, 0.5], [0, -2]], np.float32)


def test_by_hand():
    features = np.array([[2, 0.1], [1, 0.9], [0.1, 5], [-3, 1], [1, 0.8]], np.float32)
    labels = np.array([0, 0, 1, 2, 2])
    # Class 3 would win the second and the last, but is not in P_k.
    matrix = confusion.client_confusion_matrix(features, labels, W, np.array([0, 1, 2]))
    np.testing.assert_array_equal(matrix, [[2, 0, 0], [0, 1, 0], [1, 0, 1]])
    assert matrix.dtype == np.int64


def test_rows_and_columns_follow_the_order_of_the_positives():
    features = np.array([[1, 0.1], [-1, 0], [0.1, 1]], np.float32)
    labels = np.array([2, 2, 0])
    matrix = confusion.client_confusion_matrix(features, labels, W, np.array([2, 4, 0]))
    # True 2: one seen as 0, one as 2. True 0: next to 1, but that is not in P_k.
    np.testing.assert_array_equal(matrix, [[1, 0, 1], [0, 0, 0], [0, 0, 1]])


def test_a_collapsed_classifier_fills_one_column():
    w = np.tile(np.array([[1, 1]], np.float32), (4, 1))
    features = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    labels = np.array([3, 1, 1, 3, 3, 1])
    # The class that comes first in positives wins among equals.
    matrix = confusion.client_confusion_matrix(features, labels, w, np.array([3, 1]))
    np.testing.assert_array_equal(matrix, [[3, 0], [3, 0]])


def test_counts_are_complete():
    rng = np.random.default_rng(1)
    w = rng.normal(size=(50, 8)).astype(np.float32)
    positives = rng.permutation(50)[:12]
    labels = rng.choice(positives, 300)
    features = rng.normal(size=(300, 8)).astype(np.float32)
    matrix = confusion.client_confusion_matrix(features, labels, w, positives)
    unit = w[positives] / np.linalg.norm(w[positives], axis=1, keepdims=True)
    expected = np.zeros((12, 12))
    for f, label in zip(features, labels):
        expected[list(positives).index(label), np.argmax(unit @ f)] += 1
    np.testing.assert_array_equal(matrix, expected)


def test_no_examples_are_no_counts():
    matrix = confusion.client_confusion_matrix(
        np.zeros((0, 2), np.float32), np.zeros(0, np.int32), W, np.array([0, 1])
    )
    np.testing.assert_array_equal(matrix, np.zeros((2, 2)))


@pytest.mark.parametrize(
    "labels, positives, message",
    [
        ([0, 3], [0, 1], r"found \[3\] too"),
        ([0, 0], [0, 1, 0], "distinct"),
        ([0, 0], [], "at least one"),
        ([0, 0], [0, 5], r"\[0, 5\)"),
        ([0, 0], [0, -1], r"\[0, 5\)"),
    ],
)
def test_bad_arguments_are_refused(labels, positives, message):
    with pytest.raises(ValueError, match=message):
        confusion.client_confusion_matrix(
            np.ones((2, 2), np.float32), np.array(labels), W, np.array(positives)
        )
