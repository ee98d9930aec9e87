import numpy as np

from tff_fedss import metrics


def test_hits_are_counted_by_rank():
    ranked = np.array([[4, 1, 0, 2, 3], [0, 1, 2, 3, 4]])
    labels = [np.array([0, 4]), np.array([3])]
    assert metrics.precision_at_k(ranked, labels, 1) == 1 / 2
    assert metrics.precision_at_k(ranked, labels, 3) == 2 / 6
    assert metrics.precision_at_k(ranked, labels, 5) == 3 / 10
    # Ranks that are not there are wrong.
    assert metrics.precision_at_k(ranked[:, :2], labels, 5) == 1 / 10
