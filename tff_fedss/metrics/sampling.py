"""Quality of sampled negatives: gradient noise of a round, and quality of a proposal.

The first is FedSS, A.3 and Fig. 9; the second compares a proposal q with the softmax
(RF-softmax).
"""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy.special
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss.samplers import Distribution


@dataclasses.dataclass(frozen=True)
class GradientNoise:
    """Mean absolute differences |g_FedAvg - g_FedSS|, one per batch D.

    Each is the sum of absolute differences over some parameters, divided by the number
    of those parameters, so that models of different sizes are comparable.

    Attributes:
        model: float64[batches], over all parameters.
        feature_extractor: float64[batches], over phi.
        classifier: float64[batches], over all n * d entries of W.
    """

    model: np.ndarray
    feature_extractor: np.ndarray
    classifier: np.ndarray


def gradient_noise(
    full_process: tff.learning.templates.LearningProcess,
    sampled_process: tff.learning.templates.LearningProcess,
    weights: tff.learning.models.ModelWeights,
    batches: Iterable[tf.data.Dataset],
    cohort_size: int,
    seed: int,
) -> GradientNoise:
    """Compares one round of FullSoftmax and of a sampled method, batch by batch.

    A round has K clients that all hold the same data D and differ in their seeds, and
    thus in their negatives. g is the round's change of the model: the aggregated
    updates. Both processes start every round from the same weights, from a fresh server
    state, with the same clients.

    g is the difference of the weights after and before, so it has their rounding: in
    float32 about 1e-8 per parameter of size 0.3.

    Args:
        full_process: FullSoftmax, from `algorithms.build_fedss`. In both processes the
            server's first step must add the aggregated change unscaled: SGD with
            learning rate 1 and any momentum. A.3 takes |D| = 32, which is one local
            step at the default batch size.
        sampled_process: Such as FedSS, with the same model and optimizers.
        weights: The initial weights of each round, with trainable = [*phi, W].
        batches: For each batch D its examples, one {"image", "label"} per element.
        cohort_size: K, positive.
        seed: The clients' seeds are drawn from (seed, batch, client).

    Returns:
        The noise of each batch.

    Raises:
        ValueError: If a round rejected an update that was not finite.
    """
    noises = []
    for index, data in enumerate(batches):
        cohort = [
            {"data": data, "seed": _client_seed(seed, index, client)}
            for client in range(cohort_size)
        ]
        full = _one_round(full_process, weights, cohort)
        sampled = _one_round(sampled_process, weights, cohort)
        # Equal starting points cancel: differences of changes are differences of
        # results.
        differences = [
            np.abs(a - b).astype(np.float64) for a, b in zip(full, sampled, strict=True)
        ]
        noises.append(_means(differences))
    return GradientNoise(*np.transpose(noises))


def _client_seed(seed: int, batch: int, client: int) -> np.ndarray:
    """Draws int32[2], independent for different arguments."""
    words = np.random.SeedSequence([seed, batch, client]).generate_state(2)
    return words.view(np.int32)


def _one_round(
    process: tff.learning.templates.LearningProcess,
    weights: tff.learning.models.ModelWeights,
    cohort: list,
) -> list[np.ndarray]:
    """Runs a round from the given weights; returns the trainable weights after it."""
    state = process.set_model_weights(process.initialize(), weights)
    state, metrics = process.next(state, cohort)
    if rejected := metrics["rejected_clients"]:
        raise ValueError(f"{rejected} of {len(cohort)} updates were not finite.")
    return [np.asarray(w) for w in process.get_model_weights(state).trainable]


def _means(differences: list[np.ndarray]) -> tuple[float, float, float]:
    """Averages the absolute differences of [*phi, W], of phi and of W."""
    *phi, w = differences
    phi_sum, phi_size = sum(x.sum() for x in phi), sum(x.size for x in phi)
    return (
        (phi_sum + w.sum()) / (phi_size + w.size),
        phi_sum / phi_size,
        w.sum() / w.size,
    )


class ProposalQuality(NamedTuple):
    """The quality of a proposal, the mean over some examples.

    Attributes:
        effective_samples: The number of draws from the softmax distribution itself to
            which m draws from q are equivalent; in (0, m].
        clipped_mass: The share of the partition sum in classes whose log q depends on a
            clipped estimate; in [0, 1].
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
    not from the drawn weights, which would look even if important classes are never
    drawn.

    Args:
        logits: float[examples, n], o.
        is_left_out: bool[examples, n], classes that are no negatives of the example:
            its target, and masked classes.
        proposal: q of each example.
        num_negatives: m.

    Returns:
        The means over the examples.
    """
    logits = np.where(is_left_out, -np.inf, np.float64(logits))
    log_p = scipy.special.log_softmax(logits, 1)
    # If p is zero, q may also be zero.
    log_q = np.where(is_left_out, 0.0, proposal.log_q)
    spread = scipy.special.logsumexp(2 * log_p - log_q, 1)
    clipped = np.where(proposal.is_clipped, np.exp(log_p), 0.0).sum(1)
    return ProposalQuality(
        effective_samples=float(np.mean(num_negatives * np.exp(-spread))),
        clipped_mass=float(np.mean(clipped)),
    )
