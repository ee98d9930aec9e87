import numpy as np
import pytest
from scipy import optimize, special

from tff_fedss import metrics


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


def test_what_can_be_separated_is():
    (x, y), (test_x, test_y) = data(0, 60, 0.01), data(1, 30, 0.01)
    assert metrics.linear_accuracy(x, y, test_x, test_y) == 1.0


def test_a_feature_that_never_changes_says_nothing():
    (x, y), (test_x, test_y) = data(0, 60, 1.0), data(1, 30, 1.0)
    alone = metrics.linear_accuracy(x, y, test_x, test_y)
    wide = np.concatenate([x, np.full([60, 1], 7, np.float32)], 1)
    # Were it brought to variance 1, the test would be far away from the training.
    wild = np.concatenate([test_x, np.full([30, 1], 1e6, np.float32)], 1)
    assert metrics.linear_accuracy(wide, y, wild, test_y) == alone
