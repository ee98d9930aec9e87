"""Kernel samplers, against recursion in float64: slow and obvious."""

import numpy as np
import pytest

from tests.arrays import assert_drawn_from, assert_same, rng, unit
from tff_fedss.samplers import kernels
from tff_fedss.samplers.kernel_sampler import KernelSampler
from tff_fedss.samplers.kernels import QuadraticKernel, RandomFourierKernel

D, FAN_OUT = 6, 4
KERNELS = {
    "quadratic": QuadraticKernel(D, alpha=30.0),
    "rff": RandomFourierKernel(D, 400, nu=2.0, seed=3),
    # So few features that many estimates are clipped.
    "rff_clipped": RandomFourierKernel(D, 8, nu=4.0, seed=4),
}


def unit_vectors(number, seed=0):
    return unit(rng(seed).standard_normal((number, D)).astype(np.float32))


def kernel_values(kernel, query, embeddings):
    """phi(h) . phi(c_i) of all classes, by the poster's equations."""
    query, embeddings = np.float64(query), np.float64(embeddings)
    if isinstance(kernel, QuadraticKernel):
        return float(kernel._alpha) * (embeddings @ query) ** 2 + 1
    w = np.float64(kernel.frequencies)
    # cos a cos b + sin a sin b = cos(a - b)
    return np.cos((unit(query) - unit(embeddings)) @ w).mean(1)


def probabilities(kernel, query, embeddings, target, leaf_size):
    """q over [n], how many estimates are below their bound, and which q rest on one."""
    values = kernel_values(kernel, query, embeddings)
    n = len(values)
    is_open = np.arange(n) != target
    q = np.zeros(n)
    low = 0
    is_clipped = np.zeros(n, bool)

    def weight_of(ids):
        nonlocal low
        ids = ids[is_open[ids]]
        bound = kernel.lower_bound * len(ids)
        if values[ids].sum() < bound:
            low += 1
            is_clipped[ids] = True
        return max(values[ids].sum(), bound)

    def visit(ids, span, probability):
        if not is_open[ids].any():
            return
        width = 1 if span == leaf_size else span // FAN_OUT
        parts = [ids[i : i + width] for i in range(0, len(ids), width)]
        weights = np.array([weight_of(part) for part in parts])
        for part, share in zip(parts, weights / weights.sum()):
            if width > 1 or span > leaf_size > 1:
                visit(part, width, probability * share)
            else:
                q[part] = probability * share

    span = leaf_size * FAN_OUT
    while span < n:
        span *= FAN_OUT
    visit(np.arange(n), span, 1.0)
    return q, low, is_clipped


def build(kernel, num_classes, leaf_size, seed=0):
    sampler = KernelSampler(num_classes, KERNELS[kernel], leaf_size)
    embeddings = unit_vectors(num_classes, seed)
    sampler.rebuild(embeddings)
    return sampler, embeddings


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "num_classes, leaf_size",
    [(2, 1), (5, 1), (65, 1), (4, 8), (9, 2), (61, 3), (300, 16)],
)
def test_log_q_is_that_of_the_twin(kernel, num_classes, leaf_size):
    sampler, embeddings = build(kernel, num_classes, leaf_size)
    queries = unit_vectors(4, seed=1)
    targets = rng().integers(num_classes, size=4)
    ids, log_q = sampler.draw(queries, targets, 100, rng(2))
    assert ids.dtype == np.int32 and log_q.dtype == np.float32
    assert ids.shape == log_q.shape == (4, 100)
    assert (ids != targets[:, np.newaxis]).all()
    counted = sampler.num_estimates, sampler.num_clipped
    whole = sampler.distribution(queries, targets)
    assert (sampler.num_estimates, sampler.num_clipped) == counted
    num_low = 0
    for i in range(4):
        q, low, is_clipped = probabilities(
            KERNELS[kernel], queries[i], embeddings, targets[i], leaf_size
        )
        assert q.sum() == pytest.approx(1)
        # float32 products of up to 300 classes' sums
        np.testing.assert_allclose(log_q[i], np.log(q[ids[i]]), atol=3e-4)
        np.testing.assert_allclose(np.exp(whole.log_q[i]), q, rtol=3e-4)
        np.testing.assert_array_equal(whole.is_clipped[i], is_clipped)
        num_low += low
    # The twin visits all branches, the sampler only those on its way.
    assert (
        sampler.num_clipped <= num_low and sampler.num_clipped < sampler.num_estimates
    )
    if kernel == "rff_clipped" and num_classes > 60:
        assert sampler.num_clipped > 0
    if kernel == "quadratic":
        assert sampler.num_clipped == 0


def assert_draws_follow(sampler, q, query, target, seed):
    ids, _ = sampler.draw(np.repeat(query, 50, 0), [target] * 50, 4000, rng(seed))
    counts = np.bincount(ids.reshape(-1), minlength=len(q))
    assert counts[target] == 0
    assert_drawn_from(q, counts)


@pytest.mark.parametrize("leaf_size", [1, 6])
@pytest.mark.parametrize("kernel", KERNELS)
def test_draws_follow_q_also_after_ten_thousand_updates(kernel, leaf_size):
    num_classes, target = 150, 11
    sampler, embeddings = build(kernel, num_classes, leaf_size)
    query = unit_vectors(1, seed=1)

    def q():
        return probabilities(KERNELS[kernel], query[0], embeddings, target, leaf_size)[
            0
        ]

    assert_draws_follow(sampler, q(), query, target, seed=5)
    generator = rng(6)
    done = 0
    while done < 10_000:
        ids = generator.choice(num_classes, generator.integers(1, 20), replace=False)
        embeddings[ids] = unit_vectors(len(ids), seed=[7, done])
        sampler.update(ids, embeddings[ids])
        done += len(ids)
    assert_draws_follow(sampler, q(), query, target, seed=8)

    # Sums do not drift: they are those of a new tree, and of float64.
    again = KernelSampler(num_classes, KERNELS[kernel], leaf_size)
    again.rebuild(embeddings)
    np.testing.assert_array_equal(sampler.sums, again.sums)
    exact = np.float64(KERNELS[kernel].features(embeddings)).sum(0)
    np.testing.assert_allclose(sampler.sums[:4].sum(0), exact, rtol=1e-5, atol=1e-4)


def test_random_fourier_features_estimate_the_gaussian_kernel():
    # The mean over many draws of the frequencies: nu I is their covariance.
    h, c = unit_vectors(2, seed=9)
    estimates = [
        float(k.features(h[np.newaxis])[0] @ k.features(5 * c[np.newaxis])[0])
        for k in (RandomFourierKernel(D, 50, nu=1.5, seed=s) for s in range(400))
    ]
    kernel = np.exp(-1.5 * np.sum((h - c) ** 2) / 2)
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - kernel) < 4 * error


def test_what_is_drawn_does_not_depend_on_the_other_examples():
    sampler, _ = build("rff", 100, 1)
    queries, targets = unit_vectors(8, seed=1), np.arange(8)
    ids, log_q = sampler.draw(queries, targets, 20, rng(1))
    again = sampler.draw(queries[:3], targets[:3], 20, rng(1))
    np.testing.assert_array_equal(again.ids, ids[:3])
    np.testing.assert_array_equal(again.log_q, log_q[:3])


def test_large_trees_get_buckets():
    kernel = RandomFourierKernel(64, 1000, nu=4.0, seed=0)
    assert KernelSampler(10_000, kernel).leaf_size == 1
    assert KernelSampler(500_000, kernel).leaf_size == 4


def test_fourier_features_are_of_directions():
    kernel, vectors = KERNELS["rff"], unit_vectors(5)
    for length in (0.01, 3.0):
        np.testing.assert_allclose(
            kernel.features(length * vectors), kernel.features(vectors), atol=1e-6
        )
    assert np.isfinite(kernel.features(np.zeros((1, D), np.float32))).all()


def test_estimates_are_counted_once_for_all_draws_of_a_node():
    sampler, _ = build("quadratic", 4, 1)
    sampler.draw(unit_vectors(2, seed=1), np.array([2, 0]), 5, rng())
    assert sampler.num_estimates == 2 * 3  # Without the target.


def test_the_compiled_loop_is_pythons(monkeypatch):
    """Python finds an index out of range, compiled code does not."""
    sampler, _ = build("rff_clipped", 65, 1)
    arguments = unit_vectors(3, seed=1), np.array([0, 7, 64]), 20
    compiled_draws = sampler.draw(*arguments, rng(2))
    monkeypatch.setattr(kernels, "descend", kernels.descend.py_func)
    assert_same(compiled_draws, sampler.draw(*arguments, rng(2)))


def test_a_sum_below_its_bound_is_clipped_to_it():
    # Four nodes of four classes, the last one's without the target: its bound is 3.
    uniforms = (np.arange(28) + 0.5)[np.newaxis, :, np.newaxis] / 28
    nodes, log_q, num_estimates, num_clipped = kernels.descend(
        sums=np.array([[1.5], [8], [8], [9]], np.float32),
        offsets=np.array([0]),
        spans=np.array([4]),
        fan_out=4,
        num_classes=16,
        lower_bound=1.0,
        queries=np.ones((1, 1), np.float32),
        targets=np.array([15]),
        target_products=np.ones(1, np.float32),
        uniforms=uniforms,
    )
    weights = np.array([4, 8, 8, 8])
    np.testing.assert_array_equal(np.bincount(nodes[0]), weights)
    np.testing.assert_allclose(np.exp(log_q[0]), weights[nodes[0]] / 28)
    assert (num_estimates, num_clipped) == (4, 1)
