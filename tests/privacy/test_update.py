import numpy as np
import pytest

from tff_fedss.metrics import unit
from tff_fedss.privacy import success, update

D = 32


def aucs_of(truth, *scores):
    return [success.auc(one, truth) for one in scores]


def client(seed, num_positives, num_negatives, per_class=5):
    """One gradient step of the sampled softmax on features in NumPy.

    Features share a mean, as those after a ReLU do. Returns deltas of the rows, the
    rows, the features and the truth.
    """
    rng = np.random.default_rng(seed)
    size = num_positives + num_negatives
    truth = rng.permutation(size) < num_positives
    labels = np.repeat(np.flatnonzero(truth), per_class)
    w = rng.normal(size=(size, D))
    centres = rng.normal(size=(size, D)) + 1
    features = unit(centres[labels] + 0.3 * rng.normal(size=(len(labels), D)))
    logits = 20 * features @ unit(w).T + np.where(truth, 0, np.log(10))
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    gradient = 20 * shares.T @ features
    around = unit(w)
    gradient -= np.sum(gradient * around, 1, keepdims=True) * around
    return -0.01 * gradient, w, features, truth


@pytest.mark.parametrize("num_positives, num_negatives", [(15, 40), (15, 5)])
def test_positives_are_distinguished_from_negatives(num_positives, num_negatives):
    push, bundle = [], []
    for seed in range(10):
        rows, w, features, truth = client(seed, num_positives, num_negatives)
        # The server's own images: other classes, the same mean.
        public = np.random.default_rng(99).normal(size=(200, D)) + 1
        mean = unit(public).mean(0)
        one = update.against_push(rows, w, mean)
        linear = update.push(rows, w, mean)
        np.testing.assert_allclose(linear, one * update.lengths(rows), atol=1e-12)
        two = update.against_bundle(rows, num_negatives, one)
        push.append(success.auc(one, truth))
        bundle.append(success.auc(update.together(one, two), truth))
    assert min(push) > 0.9
    assert min(bundle) > 0.9


def test_the_median_is_a_negatives_direction_only_among_many():
    for num_negatives, is_right in ((40, True), (5, False)):
        aucs = [
            success.auc(update.against_median(rows), truth)
            for rows, _, _, truth in (client(s, 15, num_negatives) for s in range(10))
        ]
        assert (np.mean(aucs) > 0.9) == is_right


def test_random_rows_are_at_chance():
    aucs = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        rows, w = rng.normal(size=(55, D)), rng.normal(size=(55, D))
        one = update.against_push(rows, w, rng.normal(size=D))
        aucs.append(
            aucs_of(
                np.arange(55) < 15,
                one,
                update.against_median(rows),
                update.against_bundle(rows, 40, one),
                update.lengths(rows),
            )
        )
    off = np.mean(aucs, 0) - 0.5
    assert np.all(np.abs(off) < 4 * np.std(aucs, 0) / 300**0.5)


def test_an_empty_update_tells_nothing():
    rows, w, truth = np.zeros((8, D)), np.ones((8, D)), np.arange(8) < 3
    start = update.against_push(rows, w, np.ones(D))
    scores = (
        update.against_median(rows),
        start,
        update.against_bundle(rows, 5, start),
        update.lengths(rows),
        update.together(start, start),
    )
    assert aucs_of(truth, *scores) == [0.5] * 5


def test_the_bundle_is_found_from_a_poor_start():
    rows = np.concatenate([np.eye(D)[:4], np.tile(-np.ones(D), (6, 1))])
    start = np.array([9.0, 9, 9, -9, 0, 0, 0, 0, 0, 0])  # One of the four is mistaken.
    scores = update.against_bundle(rows, 6, start)
    assert success.auc(scores, np.arange(10) < 4) == 1
    assert scores[4:] == pytest.approx([-1] * 6)


def test_the_last_layer_tells_the_classes():
    """Gradients of features in the last layer, with inputs that say the class."""
    n, inputs, aucs = 100, 40, []
    rng = np.random.default_rng(0)
    w = rng.normal(size=(n, D))
    hidden = np.abs(rng.normal(size=(n, inputs)))
    for seed in range(10):
        truth = np.random.default_rng(seed).permutation(n) < 8
        labels = np.flatnonzero(truth)
        towards = unit(w)[labels] - unit(w).mean(0)
        kernel, bias = hidden[labels].T @ towards, towards.sum(0)
        aucs.append(
            aucs_of(
                truth,
                update.by_bias(bias, w),
                update.by_kernel(kernel, w),
                update.by_inputs(kernel, w, hidden, np.arange(n)),
            )
        )
    means = np.mean(aucs, 0)
    assert np.all(means > 0.9), means


def test_a_class_without_images_has_the_score_zero():
    rng = np.random.default_rng(0)
    scores = update.by_inputs(
        rng.normal(size=(6, D)),
        rng.normal(size=(3, D)),
        rng.random((4, 6)),
        np.array([0, 0, 2, 2]),
    )
    assert scores[1] == 0 and scores[0] != 0 and scores[2] != 0
