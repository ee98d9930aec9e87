"""The sampled softmax loss, and the bias of its gradient (RF-softmax).

theta is the vector of the n logits themselves, so that the gradient of o_i is the i-th
unit vector, M = 1 and g_j = exp(o_j).
"""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.arrays import rng, unit
from tff_fedss import losses, samplers


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def gradient(logits, target):
    p = softmax(logits)
    p[target] -= 1
    return p


def sampled_gradients(logits, target, ids, log_q):
    """By TensorFlow, from the loss: [draws, n] for ids and log_q of [draws, m]."""
    logits = tf.repeat(tf.constant(logits, tf.float64)[tf.newaxis], len(ids), 0)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = losses.sampled_softmax_loss(
            logits[:, target],
            tf.gather(logits, ids, batch_dims=1),
            tf.constant(log_q, tf.float64),
        )
    return tf.convert_to_tensor(tape.gradient(loss, logits)).numpy()


def expected_gradient(logits, target, q, m):
    """E[gradient of L'] by a sum over everything that m draws can be."""
    others = [i for i in range(len(logits)) if i != target]
    draws = list(itertools.combinations_with_replacement(others, m))
    log_probabilities = [
        math.lgamma(m + 1)
        + sum(
            k * math.log(q[i]) - math.lgamma(k + 1)
            for i, k in zip(*np.unique(draw, return_counts=True))
        )
        for draw in draws
    ]
    ids = np.array(draws)
    probabilities = np.exp(log_probabilities)
    assert probabilities.sum() == pytest.approx(1)
    return probabilities @ sampled_gradients(logits, target, ids, np.log(q[ids]))


def test_loss_is_that_of_the_equation_without_other_labels():
    terms = np.exp([0.2, -1.0, 0.7]) / (3 * np.array([0.5, 0.2, 0.3]))
    for is_left_out, rest in ((None, terms), ([[False, True, False]], terms[[0, 2]])):
        loss = losses.sampled_softmax_loss(
            tf.constant([0.4]),
            tf.constant([[0.2, -1.0, 0.7]]),
            tf.constant(np.log([[0.5, 0.2, 0.3]]), tf.float32),
            is_left_out,
        )
        expected = -0.4 + math.log(math.exp(0.4) + rest.sum())
        assert float(loss[0]) == pytest.approx(expected)


def test_large_logits_do_no_harm():
    loss = losses.sampled_softmax_loss(
        tf.constant([-500.0]), tf.constant([[500.0]]), tf.constant([[-20.0]])
    )
    assert float(loss[0]) == pytest.approx(1020.0)


LOGITS = rng(0).normal(0, 1.0, 5)
Q = np.array([0.4, 0.1, 0.2, 0.0, 0.3])  # The target is 3.


@pytest.mark.parametrize("m", [1, 2, 5])
def test_the_softmax_distribution_is_unbiased(m):
    q = softmax(LOGITS)
    q[3] = 0
    q /= q.sum()
    mean = expected_gradient(LOGITS, 3, q, m)
    np.testing.assert_allclose(mean, gradient(LOGITS, 3), atol=1e-12)


def test_bias_falls_as_one_over_m():
    biases = [
        np.abs(expected_gradient(LOGITS, 3, Q, m) - gradient(LOGITS, 3)).sum()
        for m in (4, 8, 16, 32)
    ]
    assert biases[0] > 0.01
    ratios = np.divide(biases[:-1], biases[1:])
    assert (ratios > 1.5).all() and (ratios < 2.5).all()


@pytest.mark.parametrize("seed", range(4))
def test_bias_is_between_the_bounds(seed):
    """The poster's LB and UB, without their o(1/m) terms, at m = 30."""
    m, generator = 30, rng(seed)
    logits = generator.normal(0, 1.0, 5)
    q = generator.dirichlet(np.ones(4)) + 0.05
    q = np.append(q / q.sum(), 0.0)  # The target is 4.
    bias = expected_gradient(logits, 4, q, m) - gradient(logits, 4)

    e, q = np.exp(logits[:4]), q[:4]
    z, z_t = np.exp(logits).sum(), e.sum()
    ratio = e / q
    lower = -(e * np.abs(z_t - ratio)).sum() / (m * z**2)
    second = (e * ratio).sum()
    upper = 2 / m * (ratio.max() - ratio.min()) * z_t / (z**2 + second)
    upper = upper + (second - z_t**2) / (m * z**3) * np.append(e, 0.0)
    assert np.abs(bias).max() > 1e-4
    assert (lower <= bias).all() and (bias <= upper).all()


# --- With the samplers themselves --------------------------------------------------

N, D, SCALE, TARGET = 40, 8, 6.0, 5


CLASSES = unit(rng(1).standard_normal((N, D))).astype("f4")
# Near the target, as after some training.
QUERY = unit(CLASSES[TARGET] + 0.6 * unit(rng(2).standard_normal(D))).astype("f4")
FULL = gradient(SCALE * np.float64(CLASSES) @ QUERY, TARGET)


def mean_gradient(name, m, num_draws=10_000, **options):
    """The mean over sampled gradients of the sampler's own draws."""
    options = samplers.SamplerOptions(N, D, SCALE, **options)
    sampler = samplers.SAMPLERS[name](options)
    sampler.rebuild(CLASSES)
    # All for one example: its draws are independent.
    ids, log_q = sampler.draw(QUERY[np.newaxis], [TARGET], num_draws * m, rng(3))
    gradients = sampled_gradients(
        SCALE * np.float64(CLASSES) @ QUERY,
        TARGET,
        ids.reshape(num_draws, m),
        log_q.reshape(num_draws, m),
    )
    return gradients.mean(0)


@pytest.mark.parametrize("m", [1, 10])
def test_exp_is_unbiased_within_its_confidence_interval(m):
    num_draws = 20_000
    mean = mean_gradient("exp", m, num_draws)
    # Under the softmax distribution Z' is Z itself. So the target's part has no error
    # but that of float32, and a class that is drawn k times has k / m (1 - p_t).
    assert abs(mean[TARGET] - FULL[TARGET]) < 1e-5
    drawn = -FULL[TARGET]
    q = np.delete(FULL, TARGET) / drawn
    error = drawn * np.sqrt(q * (1 - q) / (m * num_draws))
    z = (np.delete(mean - FULL, TARGET) / error)[q * m * num_draws > 20]
    assert len(z) > 10 and np.abs(z).max() < 4 and 0.3 < np.mean(z**2) < 2


def test_bias_of_rff_falls_with_the_number_of_features():
    def bias(k, seed):
        mean = mean_gradient("rff", 4, nu=SCALE, num_frequencies=k, seed=seed)
        return np.abs(mean - FULL).sum()

    biases = [
        # A mean over frequencies: one draw of few of them may be lucky.
        np.mean([bias(k, seed) for seed in range(8)])
        for k in (4, 32, 256, 4096)
    ]
    assert all(np.diff(biases) < 0), biases
    # The rest is the noise of the measurement.
    assert biases[-1] < biases[0] / 5
