"""Attacks on the sum over a cohort, if secure aggregation hides single updates.

A row with a single contributor is that client's row, summed or not. And a client that
takes part in several rounds is in several sums, each time with other clients: what the
sums have in common is its own, as in the testing of pooled samples.
"""

import numpy as np


def undo_momentum(
    before: np.ndarray,
    now: np.ndarray,
    after: np.ndarray,
    *,
    learning_rate: float = 1.0,
    momentum: float = 0.9,
) -> np.ndarray:
    """Returns a round's mean delta from three consecutive published models.

    The step is alpha v_t with v_t = mu v_(t-1) + delta_t, so that momentum hides
    nothing from the server or anyone who gets the models.

    Args:
        before: The model a round earlier; `now` itself in the first round.
        now: The model that the clients got.
        after: The model after the round.
        learning_rate: alpha, of the server.
        momentum: mu.

    Returns:
        In the shape of the models, float64.
    """
    before, now, after = (np.asarray(w, np.float64) for w in (before, now, after))
    return ((after - now) - momentum * (now - before)) / learning_rate


def lone_share(num_classes: int, request_size: int, cohort_size: int) -> float:
    """Returns the probability that no other client contributes to a client's row.

    For requests of uniform sets of classes, it is (1 - |S_k| / n)^(K - 1).
    """
    return (1 - request_size / num_classes) ** (cohort_size - 1)


def traced(
    row_scores: np.ndarray, cohorts: np.ndarray, ridge: float = 1.0
) -> np.ndarray:
    """Scores every client's classes from sums alone, over many rounds.

    It is a ridge regression of each row's score on participation: a client's
    coefficient is the effect of its presence on the score.

    Args:
        row_scores: float[rounds, n], finite scores of each sum's rows: the lowest for
            missing rows.
        cohorts: bool[rounds, clients], who took part.
        ridge: The weight of the squared coefficients.

    Returns:
        float64[clients, n].
    """
    design = np.asarray(cohorts, np.float64)
    design = design - design.mean(0)
    scores = np.asarray(row_scores, np.float64)
    scores = scores - scores.mean(0)
    rounds = len(design)
    # In the space of the rounds, which mostly are fewer than the clients.
    kernel = design @ design.T + ridge * np.eye(rounds)
    return design.T @ np.linalg.solve(kernel, scores)


# Variances that `traced_through_noise` tries; that of a client's effect on a score is
# 1.
_OTHER_VARIANCES = 10.0 ** np.arange(-2, 4)
_NOISE_VARIANCES = (0.0, *10.0 ** np.arange(-2, 5))


def traced_through_noise(
    row_scores: np.ndarray, cohorts: np.ndarray, noise_covariance: np.ndarray
) -> np.ndarray:
    """Traces as `traced`, with the known covariance of the noise of the rounds.

    The covariance over the rounds of a server's noise (differential privacy) is public,
    up to its scale; a tree's noise (DP-FTRL) is large in the difference of two rounds
    and small in sums over many. This is the posterior mean of the clients' effects, all
    of one variance, under that noise and independent noise in each round. The two
    variances maximize the likelihood of the scores: the attack needs no truth.

    Args:
        row_scores: float[rounds, n], linear in the sums, as those of `update.push`.
        cohorts: bool[rounds, clients], who took part.
        noise_covariance: float[rounds, rounds], of each coordinate's noise.

    Returns:
        float64[clients, n].
    """
    rounds = len(cohorts)
    if rounds == 1:
        return np.zeros((cohorts.shape[1], row_scores.shape[1]))
    # An orthonormal basis of the vectors with mean 0 over the rounds.
    ones = np.full((rounds, 1), 1 / np.sqrt(rounds))
    basis = np.linalg.svd(np.eye(rounds) - ones @ ones.T)[0][:, : rounds - 1]
    design = basis.T @ np.asarray(cohorts, np.float64)
    scores = basis.T @ np.asarray(row_scores, np.float64)
    noise = basis.T @ noise_covariance @ basis
    noise *= (rounds - 1) / np.trace(noise)
    by_clients = design @ design.T

    def likelihood(other: float, added: float) -> tuple[float, np.ndarray]:
        kernel = by_clients + other * np.eye(rounds - 1) + added * noise
        solved = np.linalg.solve(kernel, scores)
        log_determinant = np.linalg.slogdet(kernel)[1]
        spread = np.log(max(np.sum(scores * solved), np.finfo(float).tiny))
        return -log_determinant - (rounds - 1) * spread, solved

    candidates = (
        likelihood(other, added)
        for other in _OTHER_VARIANCES
        for added in _NOISE_VARIANCES
    )
    _, solved = max(candidates, key=lambda found: found[0])
    return design.T @ solved
