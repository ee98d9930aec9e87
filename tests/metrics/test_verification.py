import numpy as np
import pytest
import sklearn.metrics

from tff_fedss import metrics


def scores_and_truth(seed, pairs=400, decimals=2):
    rng = np.random.default_rng(seed)
    is_same = rng.permutation(pairs) < pairs // 2
    # Rounded, so that many scores are equal.
    return np.round(rng.normal(is_same.astype(float), 0.8), decimals), is_same


# In floating point 0.29 * 200 (200 different pairs) is below 58.
@pytest.mark.parametrize("far", [0.0, 0.004, 0.01, 0.1, 0.29, 0.5, 1.0])
def test_tar_is_the_best_of_all_thresholds_that_keep_the_far(far):
    for seed in range(5):
        scores, is_same = scores_and_truth(seed)
        # drop_intermediate would leave thresholds out.
        fpr, tpr, _ = sklearn.metrics.roc_curve(
            is_same, scores, drop_intermediate=False
        )
        expected = tpr[fpr <= far].max()
        assert metrics.tar_at_far(scores, is_same, far) == pytest.approx(expected)


@pytest.mark.parametrize("num_folds", [2, 10, 60])
def test_accuracy_is_that_of_the_best_threshold_on_the_other_folds(num_folds):
    scores, is_same = scores_and_truth(3, pairs=60, decimals=1)
    folds = np.array_split(np.arange(60), num_folds)
    expected = []
    for fold in folds:
        others = np.setdiff1d(np.arange(60), fold)
        candidates = [*np.unique(scores[others]), np.inf]
        right = [np.sum((scores[others] >= t) == is_same[others]) for t in candidates]
        threshold = candidates[int(np.argmax(right))]  # The lowest of several.
        expected.append(np.mean((scores[fold] >= threshold) == is_same[fold]))
    found = metrics.fold_accuracies(scores, is_same, num_folds)
    np.testing.assert_allclose(found, expected)


def test_to_accept_no_pair_may_be_best():
    scores, is_same = np.array([12, 11, 10, 9, 13, 8, 7, 6]), [0, 0, 0, 1, 0, 1, 0, 1]
    # In the first half none is best; in the second as good as all, which is lower.
    accuracies = metrics.fold_accuracies(scores, is_same, 2)
    np.testing.assert_array_equal(accuracies, [1 / 4, 1 / 2])


def test_pairs_are_what_they_say():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(40), 3))
    labels[labels == 39] = np.arange(100, 103)  # Three identities of one image.
    pairs = metrics.draw_pairs(labels, 3999, seed=1)
    np.testing.assert_array_equal(pairs.is_same, [True, False] * 2000)
    same = labels[pairs.first] == labels[pairs.second]
    np.testing.assert_array_equal(same, pairs.is_same)
    assert (pairs.first != pairs.second).all()
    # Each of the 39 identities with several images: about 51 of 2,000 pairs.
    counts = np.bincount(labels[pairs.first[pairs.is_same]], minlength=103)
    assert counts[:39].min() > 20 and counts[39:].sum() == 0
    again = metrics.draw_pairs(labels, 3999, seed=1)
    np.testing.assert_array_equal(again.second, pairs.second)
    with pytest.raises(ValueError, match="two identities"):
        metrics.draw_pairs(np.arange(5), 10, 0)
    with pytest.raises(ValueError, match="two identities"):
        metrics.draw_pairs(np.zeros(5), 10, 0)


def test_cosines_ignore_lengths_and_zero_vectors_have_none():
    features = np.array([[3.0, 0.0], [0.5, 0.5], [0.0, 0.0]])
    pairs = metrics.Pairs(np.array([0, 0]), np.array([1, 2]), np.array([True, False]))
    np.testing.assert_allclose(
        metrics.pair_cosines(features, pairs), [np.sqrt(0.5), 0.0]
    )


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.tar_at_far([1.0, 2.0], [True, True], 0.1), "one and of two"),
        (lambda: metrics.tar_at_far([1.0, np.nan], [True, False], 0.1), "finite"),
        (lambda: metrics.tar_at_far([1.0, 2.0], [True, False], 1.5), "far=1.5 must be"),
        (lambda: metrics.fold_accuracies([1.0, 2.0], [True, False]), "into 10 folds"),
    ],
)
def test_what_cannot_be_measured_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- Traffic ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "protocol, rows, down, up",
    [
        # 10 rows of 8 numbers; a union of 30; n = 100.
        (metrics.Protocol(), None, 320, 320 + 40),
        (metrics.Protocol(requests="union"), 30, 960 + 120, 320 + 40),
        (metrics.Protocol(requests="all"), 100, 3200, 320 + 40),
        (metrics.Protocol(aggregation="secure"), 10, 320, 320 + 40),
        (metrics.Protocol(aggregation="secure", threshold=3), 10, 320, 320 + 80),
        (metrics.Protocol(requests="union", aggregation="secure"), 30, 1080, 960),
        (metrics.Protocol(True, "all", "secure", 2), 100, 3200, 3200 + 400),
    ],
)
def test_what_hides_costs_bytes(protocol, rows, down, up):
    traffic = metrics.classifier_traffic(10, 8, protocol=protocol, rows_per_client=rows)
    assert (traffic.bytes_down, traffic.bytes_up) == (down, up)
    assert traffic.parameters == 8 * (rows or 10)
