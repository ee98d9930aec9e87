import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import models


def test_logits_are_scaled_cosines():
    rng = np.random.default_rng(0)
    f, w = rng.normal(size=(5, 3)), rng.normal(size=(7, 3))
    cosines = (f @ w.T) / np.outer(np.linalg.norm(f, axis=1), np.linalg.norm(w, axis=1))
    logits = models.cosine_logits(tf.constant(f), tf.constant(w), scale=20.0)
    np.testing.assert_allclose(logits, 20 * cosines, rtol=1e-9)


def test_zero_vectors_have_cosine_zero_and_a_finite_gradient():
    f, w = tf.zeros([2, 3]), tf.zeros([4, 3])
    with tf.GradientTape() as tape:
        tape.watch((f, w))
        logits = models.cosine_logits(f, w)
    np.testing.assert_array_equal(logits, 0.0)
    for gradient in tape.gradient(logits, (f, w)):
        assert np.isfinite(gradient).all()


def test_logits_never_exceed_the_scale():
    rng = np.random.default_rng(0)
    f = rng.normal(size=(500, 7)).astype(np.float32)
    unit = f / np.linalg.norm(f, axis=1, keepdims=True)
    assert (unit @ unit.T).max() > 1.0  # This is what rounding does.
    assert models.cosine_logits(f, f, scale=20.0).numpy().max() == 20.0
    assert models.cosine_logits(f, -f, scale=20.0).numpy().min() == -20.0


@pytest.mark.parametrize("num_classes, embedding_dim", [(2000, 64), (300, 1280)])
def test_initial_rows_have_a_norm_of_about_a_third(num_classes, embedding_dim):
    w = models.initial_classifier(num_classes, embedding_dim, [0, 0])
    norms = np.linalg.norm(w, axis=1)
    assert norms.mean() == pytest.approx(0.3, rel=0.02)
    # The directions are unrelated: cosines have mean 0 and deviation 1 / sqrt(d).
    cosines = models.cosine_logits(w, w, scale=1.0).numpy()
    others = cosines[~np.eye(num_classes, dtype=bool)]
    assert abs(others.mean()) < 1e-3
    assert others.std() == pytest.approx(embedding_dim**-0.5, rel=0.02)


def test_the_norm_of_initial_rows_may_be_another():
    w = models.initial_classifier(2000, 64, [0, 0], norm=0.1)
    assert np.linalg.norm(w, axis=1).mean() == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize("num_classes", [11, 2028])
def test_at_adacos_scale_a_class_at_45_degrees_has_half_the_probability(num_classes):
    cosines = np.zeros(num_classes)
    cosines[0] = np.cos(np.pi / 4)
    odds = np.exp(models.adacos_scale(num_classes) * cosines)
    np.testing.assert_allclose(odds[0] / odds.sum(), 1 / 2, rtol=1e-6)
    assert models.adacos_scale(2) == 3.0
