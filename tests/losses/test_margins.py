import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms import partial_fc_twin
from tff_fedss import losses


@pytest.mark.parametrize("kind", losses.MARGINS)
@pytest.mark.parametrize("size", [0.0, 0.35, 0.5])
def test_logits_and_slopes_are_those_of_the_definition(kind, size):
    cosines = np.linspace(-0.99, 0.99, 101)
    expected, slopes = partial_fc_twin.target_logits(cosines, kind, 64.0, size)
    given = tf.constant(cosines, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(given)
        logits = losses.Margin(kind, 64.0, size).target_logits(given)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(tape.gradient(logits, given), slopes, rtol=1e-3)


def test_both_arcfaces_are_the_same_but_beyond_pi_and_in_their_slope():
    # theta from 0 to pi; beyond pi - 0.5 the newer one rises again.
    theta = np.linspace(0.01, np.pi - 0.01, 200)
    cosines = tf.constant(np.cos(theta), tf.float32)
    older, newer = (
        losses.Margin(kind, 1.0, 0.5).target_logits(cosines).numpy()
        for kind in ("arcface", "arcface_straight")
    )
    within = theta + 0.5 < np.pi - 0.01
    np.testing.assert_allclose(newer[within], older[within], atol=1e-3)
    beyond = theta + 0.5 > np.pi + 0.01
    assert (np.diff(newer[beyond]) > 0).all() and (np.diff(older[beyond]) < 0).all()


@pytest.mark.parametrize("kind", sorted({*losses.MARGINS} - {"arcface_straight"}))
def test_ends_are_finite_and_logits_never_fall_with_the_cosine(kind):
    cosines = tf.constant(
        [-1.0001, -1.0, *np.linspace(-0.999, 0.999, 999), 1.0, 1.0001]
    )
    with tf.GradientTape() as tape:
        tape.watch(cosines)
        logits = losses.Margin(kind, 64.0, 0.5).target_logits(cosines)
    slopes = tape.gradient(logits, cosines)
    assert np.isfinite(logits).all() and np.isfinite(slopes).all()
    assert (np.diff(logits) > 0).all()
    assert (logits.numpy() <= 64 * cosines.numpy() + 1e-3).all()
