import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.arrays import assert_same, rng, unit
from tff_fedss import algorithms, models, samplers

N, D, V, SCALE = 60, 8, 30, 5.0


def rows(seed, num_rows=6):
    generator = rng(seed)
    inputs = {
        "ids": generator.integers(V, size=3 * num_rows).astype(np.int32),
        "values": generator.standard_normal(3 * num_rows).astype(np.float32),
        "rows": np.repeat(np.arange(num_rows), 3).astype(np.int32),
        "num_rows": np.int32(num_rows),
    }
    return inputs, generator.integers(N, size=num_rows).astype(np.int32)


def build(name, optimizer=None, num_negatives=12, num_frequencies=20):
    sampler = None
    if name != "full":
        options = samplers.SamplerOptions(N, D, SCALE, num_frequencies=num_frequencies)
        sampler = samplers.SAMPLERS[name](options)
    return algorithms.SampledSoftmax(
        models.SparseEncoder(V, D, seed=1),
        N,
        D,
        optimizer or tf.keras.optimizers.SGD(0.5),
        sampler,
        num_negatives=num_negatives,
        logit_scale=SCALE,
        seed=2,
    )


# Other labels of six rows; NO_CLASS fills up.
OTHERS = np.array(
    [[3, 7, -1], [-1, -1, -1], [0, -1, -1], [9, 10, 11], [59, 1, -1], [5, -1, -1]],
    np.int32,
)


def logits_of(algorithm, inputs):
    """By the definition, in float64: [rows, n]."""
    encoder, w = map(np.float64, algorithm.weights.trainable)
    terms = inputs["values"][:, np.newaxis] * encoder[inputs["ids"]]
    return SCALE * unit(terms.reshape(-1, 3, D).sum(1)) @ unit(w).T


def full_loss(algorithm, inputs, labels, others=()):
    logits = logits_of(algorithm, inputs)
    for row, own in zip(logits, others):
        row[own[own >= 0]] = -np.inf
    return (
        np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
    ).sum()


def masked_rows():
    inputs, labels = rows(0)
    assert not (labels[:, np.newaxis] == OTHERS).any()
    return inputs, labels, OTHERS


@pytest.mark.parametrize("is_masked", [False, True])
def test_without_a_sampler_it_is_the_full_softmax(is_masked):
    """Masked labels are no part of it."""
    algorithm = build("full")
    batch = masked_rows() if is_masked else rows(0)
    expected = full_loss(algorithm, *batch)
    assert (expected < full_loss(algorithm, *rows(0)) - 0.05) == is_masked
    loss = algorithm.update(*batch)["loss"]
    assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "name, is_masked",
    [*((name, False) for name in samplers.SAMPLERS), ("exp", True)],
)
def test_with_very_many_negatives_a_step_is_that_of_the_full_softmax(name, is_masked):
    # The sampled gradient comes to the full one as m grows.
    full, sampled = build("full"), build(name, None, 20_000, 500)
    batch = masked_rows() if is_masked else rows(0)
    before = full.weights.trainable
    loss = full.update(*batch)["loss"]
    assert sampled.update(*batch)["loss"] == pytest.approx(loss, rel=0.02)
    for start, a, b in zip(
        before, full.weights.trainable, sampled.weights.trainable, strict=True
    ):
        assert np.linalg.norm(a - b) < 0.1 * np.linalg.norm(a - start)


def test_the_proposal_is_measured_after_a_step():
    assert build("full").measure_proposal() is None
    assert build("exp").measure_proposal() is None  # No step yet.
    # Without a step's change of W: q of exp is the softmax, without its other labels.
    algorithm = build("exp", tf.keras.optimizers.SGD(0.0))
    algorithm.update(*rows(0))
    plain = algorithm.measure_proposal()
    algorithm.update(*masked_rows())
    masked = algorithm.measure_proposal()
    inputs, labels, _ = masked_rows()
    e = np.exp(logits_of(algorithm, inputs))
    is_target = labels[:, np.newaxis] == np.arange(N)
    q = np.where(is_target, 0.0, e)
    q /= q.sum(1, keepdims=True)
    for quality, others in ((plain, OTHERS[:, :0]), (masked, OTHERS)):
        is_out = is_target | (others[..., np.newaxis] == np.arange(N)).any(1)
        p = np.where(is_out, 0.0, e)
        p /= p.sum(1, keepdims=True)
        ratios = np.divide(p**2, q, where=p > 0, out=np.zeros_like(p))
        expected = np.mean(12 / ratios.sum(1))
        assert quality.effective_samples == pytest.approx(expected, rel=1e-4)
        assert quality.clipped_mass == 0
    # An example that has all labels has no negatives, and is not measured.
    every = np.tile(np.arange(N, dtype=np.int32), (len(labels), 1))
    algorithm.update(inputs, labels, every)
    assert algorithm.measure_proposal() is None
    every[1:] = -1
    algorithm.update(inputs, labels, every)
    assert 0 < algorithm.measure_proposal().effective_samples <= 12


@pytest.mark.parametrize(
    "name, optimizer", [("exp", "SGD"), ("quadratic", "SGD"), ("rff", "Adagrad")]
)
def test_the_sampler_keeps_up_with_the_classes(name, optimizer):
    algorithm = build(name, getattr(tf.keras.optimizers, optimizer)(0.5))
    for step in range(5):
        algorithm.update(*rows(step))
    fresh = build(name, getattr(tf.keras.optimizers, optimizer)(0.5))
    fresh.set_state(algorithm.state)  # It takes all classes at once.
    query, target = unit(rng(9).standard_normal((3, D))).astype("f4"), np.arange(3)
    ours = algorithm.sampler.draw(query, target, 50, rng(1))
    theirs = fresh.sampler.draw(query, target, 50, rng(1))
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    np.testing.assert_array_equal(ours.log_q, theirs.log_q)


@pytest.mark.parametrize("name", ["full", "exp", "rff"])
def test_it_learns_and_resumes_from_a_state_bit_for_bit(name):
    algorithm = build(name, tf.keras.optimizers.Adagrad(0.2))
    before = full_loss(algorithm, *rows(0))
    for step in range(20):
        algorithm.update(*rows(step % 2))
    state = algorithm.state
    assert full_loss(algorithm, *rows(0)) < 0.5 * before

    again = build(name, tf.keras.optimizers.Adagrad(0.2))
    again.set_state(state)
    for step in range(3):
        assert again.update(*rows(step)) == algorithm.update(*rows(step))
    assert_same(again.state, algorithm.state)


def test_an_lstm_carries_its_state_until_a_text_begins_again():
    encoder = models.LstmEncoder(20, D, batch_size=2, num_units=5, seed=0)
    tokens = rng().integers(20, size=(2, 6)).astype(np.int32)

    def run(part, carry, keep=1.0):
        inputs = {"tokens": tokens[:, part], "keep": keep}
        features, carry = encoder(inputs, carry, training=True)
        return features.numpy().reshape(2, -1, D), carry

    whole, _ = run(slice(0, 6), encoder.initial_carry)
    first, carry = run(slice(0, 3), encoder.initial_carry)
    second, _ = run(slice(3, 6), carry)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, atol=1e-6)
    again, _ = run(slice(0, 3), carry, keep=0.0)
    np.testing.assert_allclose(again, first, atol=1e-6)


def test_sparse_rows_are_weighted_sums_of_their_features():
    encoder = models.SparseEncoder(4, 3, seed=0)
    (weights,) = encoder.trainable_variables
    inputs = {
        "ids": np.array([1, 3, 3], np.int32),
        "values": np.array([2.0, -1.0, 0.5], np.float32),
        "rows": np.array([0, 0, 2], np.int32),
        "num_rows": np.int32(3),
    }
    features, carry = encoder(inputs, (), training=True)
    w = weights.numpy()
    np.testing.assert_allclose(
        features, [2 * w[1] - w[3], np.zeros(3), 0.5 * w[3]], atol=1e-6
    )
    assert carry == ()


def test_after_a_short_mini_batch_of_images_a_run_has_the_bytes_of_the_whole_one():
    images = rng().integers(0, 256, (24, 56, 56, 3)).astype(np.uint8)
    labels = np.arange(24, dtype=np.int32) % 5

    def new():
        encoder = models.ImageEncoder(models.small_cnn(images.shape[1:], D))
        optimizer = tf.keras.optimizers.SGD(0.1)
        return algorithms.SampledSoftmax(
            encoder, N, D, optimizer, None, num_negatives=1, logit_scale=SCALE
        )

    whole, resumed = new(), new()
    whole.update(images[:16], labels[:16])
    resumed.set_state(whole.state)
    for part in (slice(16, 24), slice(16)):
        expected = whole.update(images[part], labels[part])
        assert resumed.update(images[part], labels[part]) == expected
    assert_same(resumed.state, whole.state)


def zipf_text():
    # 8 texts of 12 words each, most of them frequent ones.
    p = 1 / np.arange(1, N + 1)
    words = rng(3).choice(N, (8, 13), p=p / p.sum()).astype(np.int32)
    inputs = {"tokens": words[:, :-1], "keep": np.float32(1)}
    encoder = models.LstmEncoder(N, D, batch_size=8, num_units=5, seed=1)
    return encoder, inputs, words[:, 1:].reshape(-1)


def sparse_rows(same_class):
    inputs, labels = rows(0)
    labels = np.full_like(labels, 7) if same_class else labels
    return models.SparseEncoder(V, D, seed=1), inputs, labels


@pytest.mark.parametrize(
    "build_batch, sampler",
    [
        (zipf_text, None),
        (zipf_text, "exp"),
        (functools.partial(sparse_rows, same_class=True), "exp"),
        (functools.partial(sparse_rows, same_class=False), "uniform"),
    ],
    ids=["words, all", "words, exp", "one class, exp", "several classes, uniform"],
)
def test_clipping_is_that_of_the_dense_gradient(build_batch, sampler):
    def step(max_gradient_norm):
        encoder, inputs, labels = build_batch()
        options = samplers.SamplerOptions(N, D, SCALE)
        algorithm = algorithms.SampledSoftmax(
            encoder,
            N,
            D,
            tf.keras.optimizers.SGD(1.0),
            sampler and samplers.SAMPLERS[sampler](options),
            num_negatives=12,
            logit_scale=SCALE,
            max_gradient_norm=max_gradient_norm,
            seed=2,
        )
        before = algorithm.weights.trainable
        sums = algorithm.update(inputs, labels)
        moved = zip(before, algorithm.weights.trainable, strict=True)
        return [b - a for b, a in moved], algorithm.round_metrics(sums)

    dense, metrics = step(None)
    assert "clipped_steps" not in metrics
    norm = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in dense))
    for share in (0.97, 1.03):  # The norm of slices may be on the other side of 1.
        clipped, metrics = step(share * norm)
        assert metrics["clipped_steps"] == (share < 1)
        for ours, g in zip(clipped, dense, strict=True):
            np.testing.assert_allclose(ours, g * min(share, 1), rtol=1e-4, atol=1e-6)
