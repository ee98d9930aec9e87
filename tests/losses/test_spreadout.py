import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tff_fedss.losses import spreadout_loss_and_gradient


def literal(w, margin, k=None):
    """The equation, in a double loop."""
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    total = 0.0
    for c in range(len(w)):
        distances = sorted(
            np.linalg.norm(unit[c] - unit[other])
            for other in range(len(w))
            if other != c
        )
        total += sum(max(0.0, margin - d) ** 2 for d in distances[:k])
    return total


def numerical_gradient(w, margin, k, step=1e-6):
    gradient = np.zeros_like(w)
    for index in np.ndindex(*w.shape):
        for sign in (1, -1):
            moved = w.copy()
            moved[index] += sign * step
            gradient[index] += sign * literal(moved, margin, k) / (2 * step)
    return gradient


def random_w(n=11, d=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * rng.uniform(0.2, 3, (n, 1))


# All pairs, the pairs within the margin, those of few neighbours.
CASES = [(1.0, None), (2.5, None), (1.0, 1), (1.6, 3), (1.3, 10), (2.5, 11)]


@pytest.mark.parametrize("margin, k", CASES)
def test_loss_and_gradient_are_those_of_the_equation(margin, k):
    w = random_w()
    expected, slopes = literal(w, margin, k), numerical_gradient(w, margin, k)
    assert expected > 0.1 and np.abs(slopes).max() > 0.1
    loss, gradient = spreadout_loss_and_gradient(w, margin, k)
    assert loss.numpy() == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-7)
    single, gradient = spreadout_loss_and_gradient(w.astype(np.float32), margin, k)
    assert single.dtype == gradient.dtype == tf.float32
    assert single.numpy() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("block_size", [1, 2, 7, 39])
@pytest.mark.parametrize("k", [None, 4])
def test_blocks_change_nothing(k, block_size):
    w = random_w(40, 5)
    w[10] = w[3]
    for a, b in zip(
        spreadout_loss_and_gradient(w, 1.1, k, block_size),
        spreadout_loss_and_gradient(w, 1.1, k),
    ):
        # The distance of the two equal rows is 0 or its rounding, 1e-8.
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("k", [None, 1, 2, 3])
def test_only_close_classes_move(k):
    w = np.array([[2, 0, 0], [1, 0.1, 0], [0, 1, 0], [0, 0, -3]])
    loss, gradient = spreadout_loss_and_gradient(w, 0.5, k)
    assert loss > 0.1
    assert np.abs(gradient[:2]).max(1).min() > 0.1
    np.testing.assert_array_equal(gradient[2:], np.zeros((2, 3)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [None, 1, 4])
def test_equal_rows_and_zero_rows_have_finite_gradients(k, dtype):
    w = np.array([[1, 2, 3], [1, 2, 3], [2, 4, 6], [0, 0, 0], [3, 2, 1]], dtype)
    loss, gradient = spreadout_loss_and_gradient(w, 1.2, k)
    assert np.isfinite(loss) and loss > 1.2**2
    assert np.isfinite(gradient).all() and np.abs(gradient).max() < 10
    np.testing.assert_array_equal(gradient[3], np.zeros(3))


def test_a_zero_row_is_near_at_distance_one():
    # The two others are further apart than that: the root of 2 - 2 cos = 1.2.
    w = np.array([[1, 0], [0.4, np.sqrt(1 - 0.4**2)], [0, 0]])
    loss, _ = spreadout_loss_and_gradient(w, 1.05, 1)
    np.testing.assert_allclose(loss, 3 * 0.05**2, rtol=1e-6)


@pytest.mark.parametrize("k", [None, 2])
def test_equal_rows_alone_do_not_push(k):
    # 1/3 and its like have no exact length, so these rows are equal up to rounding.
    w = np.tile(np.array([[1 / 3, 1 / 7, 0.1]]), (3, 1))
    loss, gradient = spreadout_loss_and_gradient(w, 1.0, k)
    # Six ordered pairs at distance 0.
    assert loss.numpy() == pytest.approx(6.0, rel=1e-6)
    np.testing.assert_allclose(gradient, np.zeros((3, 3)), atol=1e-6)


def test_rows_at_a_small_distance_push_with_full_force():
    """In float32 cosines, a distance of 1e-5 cannot be distinguished from 0."""
    w = np.array([[1, 0], [1, 1e-5]], np.float32)
    for k in (None, 1):
        _, gradient = spreadout_loss_and_gradient(w, 1.0, k)
        # Along the circle; the pair counts twice in the exact sum and for k = 1.
        np.testing.assert_allclose(gradient[:, 1], [4.0, -4.0], rtol=1e-3)


_MEASURE_MEMORY = """
import numpy as np
from experiments.benchmarks import measured
from tff_fedss import losses
w = np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32)
losses.spreadout_loss_and_gradient(w[:2000], 1.0, {k})  # TensorFlow's own start.
before = measured.memory_bytes("VmHWM")
losses.spreadout_loss_and_gradient(w, 1.0, {k})
print(measured.memory_bytes("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("k", [None, 10])
def test_memory_does_not_grow_with_the_square_of_n(k):
    # A fresh process, because the peak of this one is not our own.
    run = subprocess.run(
        [sys.executable, "-c", _MEASURE_MEMORY.format(k=k)],
        check=True,
        capture_output=True,
    )
    # [n, n] in float32 would be 1.6 GB, and [n, k, d] in float64 100 MB each.
    assert int(run.stdout) < 400 * 2**20
