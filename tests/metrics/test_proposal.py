"""The effective sample size of a proposal, against its definition by simulation."""

import numpy as np
import pytest

from tff_fedss import metrics
from tff_fedss.samplers import Distribution

N, M = 12, 20


def rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


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
    # One q for a batch: the draws of what is left out count nothing.
    shared = np.full((1, N), 1 / N)
    quality = metrics.proposal_quality(LOGITS, LEFT_OUT, proposal(shared), M)
    expected = np.mean(M / (N * (softmax() ** 2).sum(1)))
    assert quality.effective_samples == pytest.approx(expected)


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
