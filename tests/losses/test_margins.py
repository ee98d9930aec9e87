import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms import partial_fc_twin
from tff_fedss import class_sets, losses
from tff_fedss.algorithms import settings


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


@pytest.mark.parametrize("kind", losses.MARGINS)
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


@pytest.mark.parametrize(
    "build, of_target",
    [
        # CosFace, Eq. 4; ArcFace, Eq. 3 (no angle here is beyond pi - 0.5).
        (losses.cosface_loss, lambda theta: np.cos(theta) - 0.4),
        (losses.arcface_loss, lambda theta: np.cos(theta + 0.4)),
    ],
)
def test_losses_are_those_of_the_papers(build, of_target):
    rng = np.random.default_rng(0)
    cosines = rng.uniform(-0.5, 0.95, (6, 5))
    targets = np.array([0, 2, 1, 0, 2, 1])
    is_member = np.array([True, True, True, True, False])
    correction = np.array([0.0, 0.0, 0.0, 1.3, 7.0])
    expected = []
    for row, t in zip(cosines, targets, strict=True):
        logits = 16 * np.where(np.arange(5) == t, of_target(np.arccos(row)), row)
        terms = np.exp(logits + correction)[is_member]
        expected.append(np.log(terms.sum()) - logits[t])
    class_set = class_sets.ClassSet(
        None, None, tf.constant(is_member), None, tf.constant(correction, tf.float32)
    )
    logits = tf.constant(16 * cosines, tf.float32)
    found = build(0.4, scale=16.0)(logits, tf.constant(targets), class_set)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_defaults_have_no_margin_and_the_scale_of_the_training():
    cosines = tf.constant([-0.5, 0.2, 0.9])
    for kind in losses.MARGINS:
        logits = losses.Margin(kind).target_logits(cosines)
        np.testing.assert_allclose(logits, 64 * cosines, rtol=1e-4)
    everything = class_sets.AllClasses(3).build(tf.range(3), tf.zeros([2], tf.int32))
    given = 20 * cosines[tf.newaxis], tf.constant([1]), everything
    scale = settings.ClientTraining().logit_scale
    for build, size in ((losses.cosface_loss, 0.35), (losses.arcface_loss, 0.5)):
        np.testing.assert_array_equal(build()(*given), build(size, scale)(*given))
