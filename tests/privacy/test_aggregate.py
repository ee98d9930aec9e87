import numpy as np
import tensorflow as tf

from tff_fedss.algorithms import build_sparse_sgdm, tree_covariance
from tff_fedss.privacy import aggregate, success


def test_momentum_hides_no_round():
    rng = np.random.default_rng(0)
    deltas = rng.normal(size=(6, 5, 3)).astype(np.float32)
    optimizer = build_sparse_sgdm(0.7, 0.9)
    spec = tf.TensorSpec([5, 3], tf.float32)
    state, models = optimizer.initialize(spec), [tf.zeros([5, 3])]
    for delta in deltas:
        state, model = optimizer.next(state, models[-1], -tf.constant(delta))
        models.append(model)
    models.insert(0, models[0])
    for t, delta in enumerate(deltas):
        found = aggregate.undo_momentum(
            *models[t : t + 3], learning_rate=0.7, momentum=0.9
        )
        np.testing.assert_allclose(found, delta, atol=2e-5)


def test_lone_rows_are_as_many_as_the_closed_form_says():
    n, size, cohort = 200, 12, 10
    shares = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        asked = np.stack([rng.permutation(n) < size for _ in range(cohort)])
        counts = asked.sum(0)
        shares.append((counts[asked[0]] == 1).mean())
    assert (
        abs(np.mean(shares) - aggregate.lone_share(n, size, cohort))
        < 4 * np.std(shares) / len(shares) ** 0.5
    )


def pooled(seed, rounds=60, clients=20, cohort=6, n=80, held=5, noise=1.0):
    """Scores of the sums' rows: high where a client of the cohort holds the class."""
    rng = np.random.default_rng(seed)
    truth = np.stack([rng.permutation(n) < held for _ in range(clients)])
    cohorts = np.stack([rng.permutation(clients) < cohort for _ in range(rounds)])
    held_by_any = cohorts.astype(float) @ truth > 0
    return truth, cohorts, held_by_any + noise * rng.normal(size=(rounds, n))


def aucs_of(traced, truth):
    return [success.auc(s, t) for s, t in zip(traced, truth)]


def assert_at_chance(aucs):
    assert abs(np.mean(aucs) - 0.5) < 4 * np.std(aucs) / len(aucs) ** 0.5


def test_clients_are_traced_through_sums():
    truth, cohorts, scores = pooled(0, rounds=150, noise=0.5)
    traced = aggregate.traced(scores, cohorts)
    assert traced.shape == (20, 80)
    assert min(aucs_of(traced, truth)) > 0.9
    # Members are distinguished from non-members: others' classes are chance.
    assert_at_chance(aucs_of(traced, np.roll(truth, 1, 0)))


def test_tracing_noise_is_at_chance():
    aucs = []
    for seed in range(30):
        truth, cohorts, _ = pooled(seed)
        noise = np.random.default_rng(seed + 500).normal(size=(60, 80))
        traced = aggregate.traced(noise, cohorts)
        aucs += aucs_of(traced, truth)
    assert_at_chance(aucs)


def test_the_noise_of_a_tree_hides_less_from_who_knows_it():
    covariance = tree_covariance(200, 200)
    of_traced, of_known, of_others = [], [], []
    for seed in range(3):
        truth, cohorts, scores = pooled(seed, rounds=200, noise=0.1)
        rng = np.random.default_rng(seed + 100)
        factor = np.linalg.cholesky(covariance + 1e-9 * np.eye(200))
        scores = scores + 10 * factor @ rng.normal(size=scores.shape)
        known = aggregate.traced_through_noise(scores, cohorts, covariance)
        of_traced += aucs_of(aggregate.traced(scores, cohorts), truth)
        of_known += aucs_of(known, truth)
        of_others += aucs_of(known, np.roll(truth, 1, 0))
    assert np.mean(of_known) > np.mean(of_traced) + 0.05
    assert_at_chance(of_others)


def test_without_noise_what_is_known_of_it_does_no_harm():
    truth, cohorts, scores = pooled(0, rounds=150, noise=0.5)
    for covariance in (np.eye(150), tree_covariance(150, 40)):
        traced = aggregate.traced_through_noise(scores, cohorts, covariance)
        assert min(aucs_of(traced, truth)) > 0.9


def test_one_sum_traces_nobody():
    _, cohorts, scores = pooled(0, rounds=1)
    traced = aggregate.traced_through_noise(scores, cohorts, np.eye(1))
    assert traced.shape == (20, 80) and not traced.any()


def test_the_regression_is_the_ridge_of_its_normal_equations():
    _, cohorts, scores = pooled(1, rounds=30)
    x = cohorts - cohorts.mean(0)
    expected = np.linalg.solve(
        x.T @ x + 0.5 * np.eye(20), x.T @ (scores - scores.mean(0))
    )
    np.testing.assert_allclose(
        aggregate.traced(scores, cohorts, ridge=0.5), expected, atol=1e-9
    )
