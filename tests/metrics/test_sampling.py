"""The effective sample size of a proposal, against its definition by simulation."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.toy import IMAGE_SHAPE, NUM_CLASSES, dense_features
from tests.arrays import rng
from tff_fedss import algorithms, metrics
from tff_fedss.metrics.sampling import _client_seed, gradient_noise
from tff_fedss.samplers import Distribution

NUM_POSITIVES = 5
ALL_NEGATIVES = NUM_CLASSES - NUM_POSITIVES


# Building a TFF computation takes seconds: one of each kind serves all tests here.
@functools.cache
def build(m=None, momentum=0.0, seed=0, loss_fn=None):
    """FedSS with m negatives; FullSoftmax for m = None."""
    return algorithms.build_fedss(
        dense_features,
        NUM_CLASSES,
        algorithms.ClassSets(NUM_POSITIVES, m or 0),
        algorithms.ClientTraining(
            tff.learning.optimizers.build_sgdm(0.1), logit_scale=5.0, loss_fn=loss_fn
        ),
        algorithms.ServerUpdate(tff.learning.optimizers.build_sgdm(1.0, momentum)),
        method="full_softmax" if m is None else "fedss",
        seed=seed,
    )


def make_batches(num_batches=3):
    """Batches D of 32 examples with |P_k| classes each."""
    rng = np.random.default_rng(0)
    for _ in range(num_batches):
        classes = rng.permutation(NUM_CLASSES)[:NUM_POSITIVES]
        images = rng.integers(0, 256, (32, *IMAGE_SHAPE)).astype(np.uint8)
        labels = np.resize(classes, 32).astype(np.int32)
        yield tf.data.Dataset.from_tensor_slices({"image": images, "label": labels})


def initial_weights():
    process = build()
    return process.get_model_weights(process.initialize())


def noise(full, sampled, cohort_size=8, seed=0, num_batches=3):
    return gradient_noise(
        full, sampled, initial_weights(), make_batches(num_batches), cohort_size, seed
    )


def test_noise_falls_as_m_grows_and_ends_at_zero():
    one, three = noise(build(), build(1)), noise(build(), build(3))
    # All negatives, no noise: even though this process has another initial W and a
    # server momentum, neither of which may matter.
    everything = noise(build(), build(ALL_NEGATIVES, momentum=0.9, seed=5))
    for part in ("model", "feature_extractor", "classifier"):
        falling = [getattr(n, part) for n in (one, three, everything)]
        assert all(x.shape == (3,) for x in falling)
        assert falling[0].mean() > 1.3 * falling[1].mean() > 1e-4
        assert falling[2].max() < 1e-6


def test_it_is_the_mean_absolute_difference_of_the_aggregated_changes():
    weights = initial_weights()
    changes = []
    for process in (build(), build(3)):
        clients = [
            {"data": data, "seed": _client_seed(4, 0, k)}
            for data in make_batches(1)
            for k in range(2)
        ]
        state, _ = process.next(
            process.set_model_weights(process.initialize(), weights), clients
        )
        after = process.get_model_weights(state).trainable
        changes.append([b - a for a, b in zip(weights.trainable, after)])
    phi_kernel, phi_bias, w = (np.abs(a - b) for a, b in zip(*changes))
    result = noise(build(), build(3), cohort_size=2, seed=4, num_batches=1)
    phi = np.concatenate([phi_kernel.ravel(), phi_bias])
    everything = np.concatenate([phi, w.ravel()])
    close = dict(rtol=1e-3)
    np.testing.assert_allclose(result.feature_extractor, [phi.mean()], **close)
    np.testing.assert_allclose(result.classifier, [w.mean()], **close)
    np.testing.assert_allclose(result.model, [everything.mean()], **close)


def test_the_seed_decides():
    first, again, other = (
        noise(build(), build(3), seed=seed, num_batches=2) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.model, again.model)
    assert np.all(first.model != other.model)
    seeds = {
        tuple(_client_seed(*key))
        for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    }
    assert len(seeds) == 4


def no_number(logits, targets, class_set):
    return logits[:, 0] * np.nan


def test_rejected_clients_are_an_error():
    broken = build(3, loss_fn=no_number)
    with pytest.raises(ValueError, match="2 of 2 updates were not finite"):
        gradient_noise(build(), broken, initial_weights(), make_batches(1), 2, 0)


N, M = 12, 20


def proposal(q):
    with np.errstate(divide="ignore"):
        return Distribution(np.log(q), np.zeros(q.shape, bool))


LOGITS = 2 * rng().standard_normal((3, N))
LEFT_OUT = np.arange(N) == np.array([[1], [5], [0]])


def softmax():
    weights = np.where(LEFT_OUT, 0.0, np.exp(LOGITS))
    return weights / weights.sum(1, keepdims=True)


def test_the_softmax_itself_has_all_its_draws():
    quality = metrics.proposal_quality(LOGITS, LEFT_OUT, proposal(softmax()), M)
    assert quality.effective_samples == pytest.approx(M)
    assert quality.clipped_mass == 0


def test_it_is_what_the_weights_of_many_draws_say():
    q = np.where(LEFT_OUT, 0.0, rng(1).random((3, N)) + 0.2)
    q /= q.sum(1, keepdims=True)
    quality = metrics.proposal_quality(LOGITS, LEFT_OUT, proposal(q), M)
    effective = []
    for own_q, own_p in zip(q, softmax()):
        drawn = rng(2).choice(N, 400_000, p=own_q)
        weights = own_p[drawn] / own_q[drawn]
        effective.append(M / (1 + weights.var() / weights.mean() ** 2))
    assert quality.effective_samples == pytest.approx(np.mean(effective), rel=0.01)


def test_a_class_that_is_never_drawn_leaves_nothing():
    # Of the draws themselves, all weights would be equal.
    logits = np.array([[10.0, 0.0, 0.0, 0.0]])
    q = np.array([[1e-30, 0.5, 0.5, 0.0]])
    is_clipped = np.array([[True, False, False, True]])
    quality = metrics.proposal_quality(
        logits,
        np.array([[False, False, False, True]]),
        proposal(q)._replace(is_clipped=is_clipped),
        M,
    )
    assert quality.effective_samples < 1e-27
    share = np.exp(10.0) / (np.exp(10.0) + 2)
    assert quality.clipped_mass == pytest.approx(share)
