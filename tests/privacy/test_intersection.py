import math

import numpy as np
import pytest
from scipy.special import gammaln

from tff_fedss.privacy import intersection, success

N, P, M = 30, 4, 6


def requests(seed, participations, n=N, positives=P, m=M):
    """Fresh requests of a client that holds the first classes."""
    rng = np.random.default_rng(seed)
    asked = np.zeros((participations, n), bool)
    asked[:, :positives] = True
    for request in asked:
        request[positives + rng.choice(n - positives, m, replace=False)] = True
    return asked


def survivors(num_others, m, t):
    """The probabilities that 0..m negatives are common to t fresh requests.

    Of m draws from n - |P_k| classes, those that hit what has survived so far.
    """

    def log_choose(a, b):
        return gammaln(a + 1) - gammaln(b + 1) - gammaln(a - b + 1)

    then = np.arange(m + 1)
    now = then[:, np.newaxis]
    hits = log_choose(now, then) + log_choose(num_others - now, m - then)
    step = np.exp(hits - log_choose(num_others, m))
    step /= step.sum(1, keepdims=True)
    chance = np.eye(m + 1)[m]
    for _ in range(t - 1):
        chance = chance @ step
    return chance


def expected(n, p, m, t):
    """The exact success of the intersection of t fresh requests.

    Its mean precision, the probability that it is P_k, and its mean size.
    """
    chance = survivors(n - p, m, t)
    sizes = p + np.arange(m + 1)
    return chance @ (p / sizes), chance[0], chance @ sizes


def test_the_measured_success_is_the_expected_one():
    for t in (1, 2, 3):
        found = []
        for seed in range(300):
            asked = requests(1000 * t + seed, t)
            claimed = asked.all(0)
            scores = intersection.log_likelihood_ratio(
                asked, intersection.fresh(N, P, M)
            )
            np.testing.assert_array_equal(claimed, scores > 0)
            truth = np.arange(N) < P
            judged = success.judge(scores, claimed, truth)
            assert judged.recall == 1
            assert judged.precision_at == pytest.approx(judged.precision)
            found.append((judged.precision, judged.exact, claimed.sum()))
        error = np.std(found, axis=0) / 300**0.5
        off = np.mean(found, axis=0) - expected(N, P, M, t)
        assert np.all(np.abs(off) <= 4 * error + 1e-12), (t, off, error)


def test_a_client_that_holds_nothing_is_at_chance():
    """What the intersection says of random classes, where there are no positives."""
    truth = np.arange(N) < P
    model = intersection.fresh(N, P, M)
    aucs = [
        success.auc(
            intersection.log_likelihood_ratio(requests(s, 3, positives=0), model), truth
        )
        for s in range(400)
    ]
    assert abs(np.mean(aucs) - 0.5) < 4 * np.std(aucs) / 20


def test_the_posterior_is_the_share_of_positives_among_classes_asked_alike():
    """Independent draws with p = 0.8: Bayes' rule, counted over many classes."""
    n, t, model = 200_000, 3, intersection.RequestModel(0.8, 0.3)
    rng = np.random.default_rng(0)
    truth = rng.random(n) < 0.1
    asked = rng.random((t, n)) < np.where(truth, model.positive, model.other)
    ratio = intersection.log_likelihood_ratio(asked, model)
    posterior = 1 / (1 + np.exp(-(ratio + math.log(0.1 / 0.9))))
    for times in range(t + 1):
        alike = asked.sum(0) == times
        (value,) = np.unique(posterior[alike].round(12))
        share, error = truth[alike].mean(), (value * (1 - value) / alike.sum()) ** 0.5
        assert abs(share - value) < 4 * error
        likelihood = [
            q**times * (1 - q) ** (t - times) for q in (model.positive, model.other)
        ]
        assert ratio[alike][0] == pytest.approx(math.log(np.divide(*likelihood)))


def test_a_permanent_draw_tells_no_more_the_second_time():
    asked = requests(0, 1)
    model = intersection.fresh(N, P, M)._replace(is_permanent=True)
    again = np.repeat(asked, 5, axis=0)
    np.testing.assert_array_equal(
        intersection.log_likelihood_ratio(again, model),
        intersection.log_likelihood_ratio(asked, model),
    )


def test_randomized_response_bounds_what_a_request_tells():
    model = intersection.RequestModel(0.9, 80 / 2028, is_permanent=True)
    asked, not_asked = intersection.log_likelihood_ratio(
        np.array([[True, False]]), model
    )
    # Over both answers: the second, not the positive one, may tell more.
    assert asked == pytest.approx(math.log(0.9 * 2028 / 80))
    assert -not_asked == pytest.approx(math.log((1 - 80 / 2028) / 0.1))


def test_what_is_never_asked_for_is_ruled_out():
    ratio = intersection.log_likelihood_ratio(
        requests(1, 2), intersection.fresh(N, P, M)
    )
    assert ratio[:P] == pytest.approx([2 * math.log((N - P) / M)] * P)
    assert set(ratio[P:]) <= {-math.inf, ratio[0]}


@pytest.mark.parametrize("t", [1, 2, 5])
def test_of_unions_what_is_in_all_is_taken_for_positive(t):
    """A client that holds the first classes, among others with any of the classes."""
    n, p, m, k = 60, 5, 6, 4
    rng = np.random.default_rng(t)
    model = intersection.among_others(
        intersection.fresh(n, p, m), 1 - (1 - (p + m) / n) ** (k - 1)
    )
    for trial in range(100):
        unions = requests(1000 * t + trial, t, n, p, m)
        for union in unions:
            for _ in range(k - 1):
                union[rng.choice(n, p + m, replace=False)] = True
        kept = unions.all(0)
        assert kept[:p].all()
        # The likelihood ratio takes what is in all unions, and nothing else, for P_k.
        ratio = intersection.log_likelihood_ratio(unions, model)
        np.testing.assert_array_equal(kept, ratio > 0)
    assert model.positive == 1
