"""Quality of a proposal q for estimates of a softmax's partition sum (RF-softmax)."""

from typing import NamedTuple

import numpy as np
import scipy.special

from tff_fedss.samplers import Distribution


class ProposalQuality(NamedTuple):
    """Of one proposal, the mean over some examples.

    Attributes:
        effective_samples: How many of m draws from q are worth as much as draws from
            the softmax distribution itself; in (0, m].
        clipped_mass: The share of the partition sum in classes whose log q rests on an
            estimate that was clipped; in [0, 1].
    """

    effective_samples: float
    clipped_mass: float


def proposal_quality(
    logits: np.ndarray,
    is_left_out: np.ndarray,
    proposal: Distribution,
    num_negatives: int,
) -> ProposalQuality:
    """Compares q with the softmax distribution p over an example's negatives, exactly.

    The effective sample size is Kong's (1992), m / (1 + cv^2) for the coefficient of
    variation cv of the weights p_i / q_i: m / sum_i p_i^2 / q_i. It is computed from q,
    not from the weights that happened to be drawn: these look even where the classes
    that matter are never drawn.

    Args:
        logits: float[examples, n], o.
        is_left_out: bool[examples, n], what is no negative of the example: its target,
            or what a mask leaves out.
        proposal: q of each example, or one for all.
        num_negatives: m.

    Returns:
        The means over the examples.
    """
    logits = np.where(is_left_out, -np.inf, np.float64(logits))
    log_p = scipy.special.log_softmax(logits, 1)
    # Where p is zero, q may be zero too.
    log_q = np.where(is_left_out, 0.0, proposal.log_q)
    spread = scipy.special.logsumexp(2 * log_p - log_q, 1)
    clipped = np.where(proposal.is_clipped, np.exp(log_p), 0.0).sum(1)
    return ProposalQuality(
        effective_samples=float(np.mean(num_negatives * np.exp(-spread))),
        clipped_mass=float(np.mean(clipped)),
    )
