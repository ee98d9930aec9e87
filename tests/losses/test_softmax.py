import numpy as np
from scipy.special import logsumexp

from tff_fedss import losses

# A loss next to zero is the difference of two float32 logits of about 20.
CLOSE = dict(rtol=1e-5, atol=5e-6)
RNG = np.random.default_rng(0)
LOGITS = RNG.uniform(-20, 20, (6, 7)).astype(np.float32)
TARGETS = np.array([0, 1, 1, 2, 0, 2])
IS_POSITIVE = np.array([1, 1, 1, 0, 0, 0, 0], bool)
IS_MEMBER = np.array([1, 1, 1, 1, 1, 1, 0], bool)
CORRECTION = np.where(IS_POSITIVE, 0.0, 1.3).astype(np.float32)


def literal(denominators, logits):
    """-o_t + log sum over the classes of each example's denominator."""
    rows = range(len(logits))
    return np.array(
        [
            -logits[i, TARGETS[i]] + logsumexp(logits[i, list(denominators[i])])
            for i in rows
        ]
    )


def test_softmax_loss_is_equation_2():
    np.testing.assert_allclose(
        losses.softmax_loss(LOGITS, TARGETS),
        literal([range(7)] * 6, LOGITS),
        **CLOSE,
    )


def test_fedss_loss_is_equation_5_and_6():
    corrected = LOGITS + CORRECTION
    loss = losses.fedss_loss(LOGITS, TARGETS, IS_MEMBER, CORRECTION)
    np.testing.assert_allclose(loss, literal([range(6)] * 6, corrected), **CLOSE)
    eq6 = [
        np.log1p(
            sum(np.exp(corrected[i, j] - corrected[i, t]) for j in range(6) if j != t)
        )
        for i, t in enumerate(TARGETS)
    ]
    np.testing.assert_allclose(loss, eq6, **CLOSE)


def test_neg_only_loss_is_equation_7():
    is_negative = IS_MEMBER & ~IS_POSITIVE
    loss = losses.neg_only_loss(LOGITS, TARGETS, is_negative, CORRECTION)
    np.testing.assert_allclose(
        loss,
        literal([[t, 3, 4, 5] for t in TARGETS], LOGITS + CORRECTION),
        **CLOSE,
    )


def test_pos_only_loss_is_equation_8():
    loss = losses.pos_only_loss(LOGITS, TARGETS, IS_POSITIVE)
    np.testing.assert_allclose(loss, literal([range(3)] * 6, LOGITS), **CLOSE)
