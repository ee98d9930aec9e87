import numpy as np
import pytest
import sklearn.metrics

from tests.arrays import rng
from tff_fedss.privacy import success


@pytest.mark.parametrize("num_values", [2, 5, 1000])
def test_auc_is_that_of_scikit_learn(num_values):
    # Few values: many ties.
    for seed in range(20):
        scores = rng(seed).integers(0, num_values, 60) - 0.5
        truth = rng(seed + 100).permutation(60) < 13
        assert success.auc(scores, truth) == pytest.approx(
            sklearn.metrics.roc_auc_score(truth, scores), abs=1e-12
        )


def test_infinite_scores_count_as_the_lowest():
    truth = np.array([True, False, False, True])
    assert success.auc(np.array([1.0, -np.inf, -np.inf, 0.0]), truth) == 1
    assert success.auc(np.full(4, -np.inf), truth) == 0.5


def test_precision_at_is_the_mean_over_orders_of_ties():
    scores = np.array([3.0, 2, 2, 2, 1, 0])
    truth = np.array([True, True, False, False, False, True])
    # One for certain, and two of the three that tie, of which one is right.
    assert success.precision_at(scores, truth) == pytest.approx((1 + 2 / 3) / 3)
    drawn = []
    for seed in range(2000):
        order = np.lexsort((rng(seed).random(6), -scores))
        drawn.append(truth[order[:3]].mean())
    assert success.precision_at(scores, truth) == pytest.approx(
        np.mean(drawn), abs=5 * np.std(drawn) / 2000**0.5
    )


def test_judge_counts_claims():
    truth = np.array([True, True, False, False, False])
    scores = np.array([0.9, 0.1, 0.8, 0.0, 0.2])
    claimed = np.array([True, False, True, False, True])
    expected = (4 / 6, 0.5, 1 / 3, 0.5, 0.0)
    assert success.judge(scores, claimed, truth) == pytest.approx(expected)
    assert success.judge(scores, truth, truth).exact == 1
    nothing = success.judge(scores, np.zeros(5, bool), truth)
    assert (nothing.precision, nothing.recall, nothing.exact) == (0, 0, 0)


def test_what_cannot_be_judged_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        success.auc(np.array([1.0, np.nan]), np.array([True, False]))
    for truth in ([True, True], [False, False]):
        with pytest.raises(ValueError, match="others"):
            success.auc(np.array([1.0, 2.0]), np.array(truth))


def test_top_claims_so_many():
    scores = np.array([1.0, 3, -np.inf, 3, 2])
    assert list(success.top(scores, 2)) == [False, True, False, True, False]
    assert list(success.top(scores, 1)) == [False, True, False, False, False]
    assert not success.top(scores, 0).any()


def test_two_groups_are_the_best_of_all_splits():
    for seed in range(20):
        scores = rng(seed).normal(size=15) + 2 * (rng(seed + 1).random(15) < 0.3)
        best = min(
            (
                sum(np.sum((g - g.mean()) ** 2) for g in (below, above)),
                split,
            )
            for split in np.sort(scores)[:-1]
            for below, above in [(scores[scores <= split], scores[scores > split])]
        )
        np.testing.assert_array_equal(success.two_groups(scores), scores > best[1])


def test_equal_scores_are_one_group():
    assert not success.two_groups(np.ones(5)).any()
    assert not success.two_groups(np.array([-np.inf, 0, 1])).any()
    for few in (0, 1):
        assert success.two_groups(np.ones(few)).tolist() == [False] * few
    assert list(success.two_groups(np.array([0.0, 1, 1]))) == [False, True, True]
    assert list(success.two_groups(np.array([0.0, 1]))) == [False, True]
