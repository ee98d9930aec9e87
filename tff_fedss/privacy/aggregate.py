"""What the sum over a cohort tells, where secure aggregation hides single updates.

A row to which one client alone has contributed is that client's row, sum or not. And a
client that takes part in several rounds is in several sums, each time among others:
what all of those have in common is its own, as in the testing of pooled samples.
"""

import numpy as np

from tff_fedss.privacy import intersection


def undo_momentum(
    before: np.ndarray,
    now: np.ndarray,
    after: np.ndarray,
    *,
    learning_rate: float = 1.0,
    momentum: float = 0.9,
) -> np.ndarray:
    """Returns a round's mean delta from three models in a row, as they are published.

    The step is alpha v_t with v_t = mu v_(t-1) + delta_t, so that momentum hides
    nothing, from the server or from anyone who gets the models.

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


def num_contributors(asked: np.ndarray) -> np.ndarray:
    """Returns how many clients of a cohort contribute to each row.

    Args:
        asked: bool[K, n], what each client has asked for.

    Returns:
        int[n].
    """
    return np.count_nonzero(asked, axis=0)


def lone_share(num_classes: int, request_size: int, cohort_size: int) -> float:
    """Returns the chance that nobody else contributes to a row that a client asks for.

    Where requests are uniform sets of classes: (1 - |S_k| / n)^(K - 1).

    Args:
        num_classes: n.
        request_size: |S_k|.
        cohort_size: K.
    """
    return (1 - request_size / num_classes) ** (cohort_size - 1)


def assigned(row_scores: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Scores of one client, from the sum's rows and the client's own request.

    Args:
        row_scores: float[n], of the sum's rows, by an attack of `update`.
        asked: bool[n], what the client has asked for.

    Returns:
        float64[n], minus infinity where it has not asked.
    """
    return np.where(asked, row_scores, -np.inf)


def in_all_sums(present: np.ndarray, took_part: np.ndarray) -> np.ndarray:
    """Claims the rows that are there whenever the client is: requests are not needed.

    Args:
        present: bool[rounds, n], the rows of each sum that are not zero.
        took_part: bool[rounds], whether the client was in the cohort.

    Returns:
        bool[n].
    """
    return intersection.in_all(present[took_part])


def traced(
    row_scores: np.ndarray, cohorts: np.ndarray, ridge: float = 1.0
) -> np.ndarray:
    """Scores every client's classes from sums alone, over many rounds.

    A ridge regression of each row's score on who took part: the coefficient of a client
    is what its presence adds to the score, whoever else was there.

    Args:
        row_scores: float[rounds, n], of each sum's rows, finite: the lowest where the
            sum has no such row.
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
    # In the space of the rounds, of which there are fewer than clients, mostly.
    kernel = design @ design.T + ridge * np.eye(rounds)
    return design.T @ np.linalg.solve(kernel, scores)


# Variances that `traced_through_noise` tries, of a client's effect on a score being 1.
_OTHER_VARIANCES = 10.0 ** np.arange(-2, 4)
_NOISE_VARIANCES = (0.0, *10.0 ** np.arange(-2, 5))


def traced_through_noise(
    row_scores: np.ndarray, cohorts: np.ndarray, noise_covariance: np.ndarray
) -> np.ndarray:
    """Traces as `traced`, knowing how the noise of one round goes with another's.

    Noise that a server adds (differential privacy) has a covariance over the rounds
    that is public, up to its size; that of a tree (DP-FTRL) is large in the difference
    of two rounds and small in sums over many. This is the posterior mean of the
    clients' effects, all of one variance, under that noise and one that is independent
    from round to round. The two variances are those that make the scores likeliest: the
    attack needs no truth.

    Args:
        row_scores: float[rounds, n], linear in the sums, as those of `update.push`.
        cohorts: bool[rounds, clients], who took part.
        noise_covariance: float[rounds, rounds], of the noise of each number.

    Returns:
        float64[clients, n].
    """
    rounds = len(cohorts)
    if rounds == 1:
        return np.zeros((cohorts.shape[1], row_scores.shape[1]))
    # An orthonormal basis of what has mean 0 over the rounds.
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
