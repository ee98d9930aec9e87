import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms import partial_fc_twin
from tff_fedss import algorithms, losses, runtime
from tff_fedss.algorithms import shard_softmax

N, D, V, EXAMPLES = 83, 8, 12, 13
MARGINS = [
    losses.Margin("none", 16.0),
    losses.Margin("arcface", 16.0, 0.5),
    losses.Margin("cosface", 16.0, 0.35),
]


class Linear:
    """x = v A, an `algorithms.Encoder`."""

    initial_carry = ()

    def __init__(self):
        start = np.random.default_rng(7).normal(size=(V, D)).astype(np.float32)
        self.trainable_variables = [tf.Variable(start)]

    def __call__(self, inputs, carry, training):
        return tf.matmul(inputs, self.trainable_variables[0]), carry


def mesh(num_devices):
    # One CPU does the work of several devices: their shards, collectives and sums are
    # the same. tests/runtime/test_device_mesh.py has real logical devices.
    return runtime.DeviceMesh(["/CPU:0"] * num_devices)


def build(num_devices=1, margin=MARGINS[0], num_classes=N, **options):
    options = {"sample_rate": 1.0, "num_strata": 8, "learning_rate": 0.05, **options}
    return algorithms.PartialFC(
        Linear(), num_classes, D, mesh(num_devices), margin=margin, seed=3, **options
    )


def batch(step, examples=EXAMPLES, num_classes=N):
    rng = np.random.default_rng(step)
    labels = rng.integers(num_classes, size=examples).astype(np.int32)
    labels[1] = labels[0]  # Two examples of one class.
    return rng.normal(size=(examples, V)).astype(np.float32), labels


def matrices(algorithm):
    *_, w, momentum = algorithm.state
    return {"W": w.read(0, N), "momentum": momentum.read(0, N)}


def drawn_classes(algorithm, labels):
    """The classes that the next step takes, over all devices."""
    bounds = algorithm.state[-2].bounds
    return np.concatenate(
        [
            first + np.concatenate([sample.positives, sample.negatives])
            for first, sample in zip(bounds, algorithm.draw_sample(labels))
        ]
    )


def twin_of(algorithm, margin, decay=0.0):
    return partial_fc_twin.DenseTwin(
        algorithm.weights.trainable[0],
        matrices(algorithm)["W"],
        kind=margin.kind,
        scale=margin.scale,
        size=margin.size,
        rate=0.05,
        momentum=0.9,
        decay=decay,
    )


# Each number of devices and each margin once: tracing takes a while.
@pytest.mark.parametrize(
    "num_devices, margin",
    zip((4, 2, 1), MARGINS, strict=True),
    ids=[margin.kind for margin in MARGINS],
)
def test_at_r_1_it_is_the_dense_softmax(num_devices, margin, monkeypatch):
    monkeypatch.setattr(shard_softmax, "_CHUNK_ROWS", 5)
    # Exponentials of no chunk are kept, of the first two, or of all.
    kept_chunks = {1: 0, 2: 2}.get(num_devices, 100)
    kept_bytes = kept_chunks * 4 * 5 * EXAMPLES
    monkeypatch.setattr(shard_softmax, "_KEPT_BYTES", kept_bytes)
    decay = 0.05 if num_devices == 2 else 0.0
    ours = build(num_devices, margin, weight_decay=decay)
    twin = twin_of(ours, margin, decay)
    start = [w.copy() for w in twin.weights]
    for step in range(20):
        inputs, labels = batch(step)
        sums = ours.update(inputs, labels)
        assert sums["loss"] / EXAMPLES == pytest.approx(
            twin.update(inputs, labels), rel=2e-5
        )
        if step == 0:
            # The first momentum is the gradient.
            np.testing.assert_allclose(
                matrices(ours)["momentum"], twin.momentums[1], rtol=1e-4, atol=2e-5
            )
    ours_now = [ours.weights.trainable[0], matrices(ours)["W"]]
    for mine, dense, before in zip(ours_now, twin.weights, start):
        moved = np.linalg.norm(dense - before)
        assert moved > 0.1 * np.linalg.norm(before)
        assert np.linalg.norm(mine - dense) < 2e-5 * moved
    metrics = ours.round_metrics(sums)
    assert metrics["trained_share"] == 1.0 and metrics["classes_per_step"] == N


def test_only_sampled_rows_and_their_momentum_are_touched():
    algorithm = build(4, sample_rate=0.2)
    algorithm.update(*batch(0))
    before = matrices(algorithm)
    drawn = drawn_classes(algorithm, batch(1)[1])
    assert set(batch(1)[1]) <= set(drawn) and len(drawn) < N / 2
    algorithm.update(*batch(1))
    after = matrices(algorithm)
    for name in ("W", "momentum"):
        changed = np.flatnonzero((before[name] != after[name]).any(1))
        np.testing.assert_array_equal(changed, np.sort(drawn))


def test_a_sampled_step_is_the_dense_step_on_the_sample():
    margin = MARGINS[1]
    algorithm = build(2, margin, sample_rate=0.3)
    inputs, labels = batch(0)
    drawn = np.sort(drawn_classes(algorithm, labels))
    twin = twin_of(algorithm, margin)
    twin.weights[1] = twin.weights[1][drawn]
    twin.momentums[1] = twin.momentums[1][drawn]
    loss = twin.update(inputs, np.searchsorted(drawn, labels))
    ours = algorithm.update(inputs, labels)["loss"] / EXAMPLES
    assert ours == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(
        matrices(algorithm)["W"][drawn], twin.weights[1], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        algorithm.weights.trainable[0], twin.weights[0], rtol=1e-4, atol=1e-5
    )


def test_without_its_positive_an_example_is_left_out():
    algorithm = build(2, sample_rate=0.4, sampling="all_random")
    inputs, labels = batch(0)
    samples = algorithm.draw_sample(labels)
    there = np.any([sample.targets >= 0 for sample in samples], 0)
    assert 0 < there.sum() < EXAMPLES
    same = build(2, sample_rate=0.4, sampling="all_random")
    # The same step on those examples alone, in a batch whose others are of no matter.
    other_inputs = np.where(there[:, np.newaxis], inputs, 10 * inputs[::-1])
    sums = algorithm.update(inputs, labels)
    found = same.update(other_inputs, labels)
    assert found["loss"] == pytest.approx(sums["loss"], rel=1e-5)
    for mine, other in zip(matrices(algorithm).values(), matrices(same).values()):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    assert algorithm.round_metrics(sums)["trained_share"] == there.mean()
    others = np.setdiff1d(np.arange(N), drawn_classes(algorithm, labels))
    sums = algorithm.update(inputs, np.full(EXAMPLES, others[0], np.int32))
    assert algorithm.round_metrics(sums)["loss"] == sums["trained"] == 0
    assert np.isfinite(matrices(algorithm)["W"]).all()


def test_another_number_of_devices_resumes_with_the_same_losses():
    def sampled(num_devices):
        return build(num_devices, sample_rate=0.5)

    def more(algorithm):
        return [algorithm.update(*batch(step))["loss"] for step in range(4, 8)]

    whole, *others = map(sampled, (4, 2, 8))
    for step in range(4):
        whole.update(*batch(step))
    for other in others:
        other.set_state(whole.state)
    expected = more(whole)
    for other in others:
        np.testing.assert_allclose(more(other), expected, rtol=1e-4)
        for mine, theirs in zip(matrices(other).values(), matrices(whole).values()):
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def test_ca_pcc_is_the_mean_cosine_with_the_positive_centre():
    algorithm = build(4, sample_rate=0.1, sampling="all_random")
    inputs, labels = batch(0)
    x = partial_fc_twin.unit(inputs @ algorithm.weights.trainable[0])
    c = partial_fc_twin.unit(matrices(algorithm)["W"])
    metrics = algorithm.round_metrics(algorithm.update(inputs, labels))
    expected = np.mean(np.sum(x * c[labels], 1))
    assert metrics["ca_pcc"] == pytest.approx(expected, abs=1e-6)


def test_bad_sizes_are_named():
    for wrong in (-1, N):
        inputs, labels = batch(0)
        labels[3] = wrong
        with pytest.raises(ValueError, match="labels outside of 0..82"):
            build().update(inputs, labels)
    with pytest.raises(ValueError, match="2 examples for 4 devices"):
        build(4).update(*batch(0, examples=2))
    with pytest.raises(ValueError, match="num_strata=8 must be at least 9"):
        build(9)
    with pytest.raises(ValueError, match="num_strata=8 .* at most 5"):
        build(2, num_classes=5)
    with pytest.raises(ValueError, match="a stratum of 2 classes. Use fewer"):
        build(2, num_classes=16, sample_rate=0.1)
