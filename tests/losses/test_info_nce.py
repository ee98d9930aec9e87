"""InfoNCE and its forms, against the paper's formulas in NumPy and float64."""

import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import losses

Q, K = 6, 40


@pytest.fixture(scope="module")
def logits():
    rng = np.random.default_rng(0)
    positive = rng.normal(2.0, 2.0, size=Q).astype(np.float32)
    queue = rng.normal(0.0, 2.0, size=[Q, K]).astype(np.float32)
    return positive, queue, rng.uniform(size=[Q, K]) < 0.3


def probability(form, positive, queue, same):
    """p as the paper's equations write it, query by query and key by key."""
    p = []
    for q in range(len(positive)):
        top = np.exp(np.float64(positive[q]))
        bottom = np.exp(np.float64(positive[q]))
        for k in range(queue.shape[1]):
            e = np.exp(np.float64(queue[q, k]))
            if form == "clustered" and same[q, k]:
                top += e
            if form != "filtered" or not same[q, k]:
                bottom += e
        p.append(top / bottom)
    return np.array(p)


def ours(form, gamma, positive, queue, same):
    return losses.info_nce_loss(
        tf.convert_to_tensor(positive),
        tf.convert_to_tensor(queue),
        gamma=gamma,
        form=form,
        is_same_cluster=None if form == "plain" else tf.constant(same),
    )


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("form", losses.INFO_NCE_FORMS)
def test_it_is_the_formula_of_the_paper(logits, form, gamma):
    p = probability(form, *logits)
    expected = -((1 - p) ** gamma) * np.log(p)
    np.testing.assert_allclose(ours(form, gamma, *logits), expected, rtol=2e-5)


@pytest.mark.parametrize("spread, temperature", [(0.0, 0.2), (0.3, 0.1), (10.0, 1.0)])
def test_the_mean_loss_is_never_below_its_floor(spread, temperature):
    # Queries that are distributed as the keys are, each with a perfect key of its own.
    rng = np.random.default_rng(1)
    keys = spread * rng.normal(size=[64, 8]) + np.eye(8)[rng.integers(8, size=64)]
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    logits = tf.constant(keys @ keys.T / temperature, tf.float32)
    loss = losses.info_nce_loss(tf.fill([64], np.float32(1 / temperature)), logits)
    floor = losses.info_nce_floor(64, temperature)
    assert float(tf.reduce_mean(loss)) >= floor
    # It is reached where every key of the queue is at a right angle to the query.
    loss = losses.info_nce_loss(tf.constant([1 / temperature]), tf.zeros([1, 64]))
    assert float(loss[0]) == pytest.approx(floor, rel=1e-5)


def test_the_floor_of_moco_v2():
    floor = losses.info_nce_floor(65536, 0.2)
    assert floor == pytest.approx(6.0927, abs=1e-4)
    assert (1 - np.exp(-floor)) ** 2 == pytest.approx(0.9955, abs=1e-4)
    assert losses.info_nce_floor(512, 0.1) == pytest.approx(0.023, abs=1e-3)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("form", ["clustered", "filtered"])
def test_no_cluster_is_plain_and_all_in_it_is_nothing(logits, form, gamma):
    positive, queue, same = logits
    none, every = np.zeros_like(same), np.ones_like(same)
    plain = ours("plain", gamma, positive, queue, None)
    np.testing.assert_allclose(ours(form, gamma, positive, queue, none), plain)

    variable = tf.Variable(queue)
    with tf.GradientTape() as tape:
        loss = ours(form, gamma, positive, variable, every)
    np.testing.assert_array_equal(loss, 0.0)
    np.testing.assert_array_equal(tape.gradient(loss, variable), 0.0)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("positive, queue", [(200.0, 0.0), (-200.0, 0.0), (9.0, 9.0)])
def test_extreme_logits_stay_finite_with_their_gradients(gamma, positive, queue):
    variables = [tf.Variable([positive]), tf.Variable([[queue] * 3])]
    with tf.GradientTape() as tape:
        loss = losses.info_nce_loss(*variables, gamma=gamma)
    for value in (loss, *tape.gradient(loss, variables)):
        assert np.isfinite(value).all()
    if positive < 0:
        np.testing.assert_allclose(loss, [200.0 + np.log(3.0)], rtol=1e-6)


def test_what_does_not_go_together_is_refused(logits):
    positive, queue, same = logits
    with pytest.raises(ValueError, match="form='other'"):
        ours("other", 0.0, positive, queue, same)
    with pytest.raises(ValueError, match=r"gamma=-0\.5"):
        ours("plain", -0.5, positive, queue, None)
