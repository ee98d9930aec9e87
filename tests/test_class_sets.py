"""Class sets, and those that hide: their chances, permanence, and rounds with them."""

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms import toy
from tests.arrays import draws
from tff_fedss import class_set_defences, class_sets, samplers
from tff_fedss.algorithms import client_update

SEED = tf.constant([3, 4], tf.int32)


def build(labels, n=12, m=4, max_positives=5, seed=SEED, **kwargs):
    builder = class_sets.SampledClasses(n, m, max_positives, **kwargs)
    return tf.nest.map_structure(
        lambda t: t.numpy(), builder.build(tf.constant(labels, tf.int32), seed)
    )


def test_the_set_holds_the_positives_and_m_others():
    for seed in range(50):
        s = build([7, 2, 2, 7, 11], seed=tf.constant([seed, 0], tf.int32))
        members = s.keys[s.is_member]
        assert list(s.keys[s.is_positive]) == [2, 7, 11]
        assert len(members) == 3 + 4 == len(set(members))
        assert list(members) == sorted(members)
        assert members.min() >= 0 and members.max() < 12


def test_padding_repeats_a_member_and_is_masked():
    s = build([7, 2])
    assert s.keys.shape == (9,)
    assert s.is_member.sum() == 6
    assert set(s.keys[~s.is_member]) <= set(s.keys[s.is_member])
    assert not s.is_positive[~s.is_member].any()


def test_negatives_are_uniform_over_the_other_classes():
    counts = np.zeros(12)
    builder = class_sets.SampledClasses(12, 4, 2)
    for s in draws(
        3000, lambda k: builder.build(tf.constant([0, 5]), tf.stack([k, 1]))
    ):
        counts[s.keys[s.is_member]] += 1
    assert counts[0] == counts[5] == 3000
    others = np.delete(counts, [0, 5])
    # Inclusion probability m / (n - |P_k|) = 0.4; five standard deviations.
    assert np.abs(others - 1200).max() < 5 * np.sqrt(3000 * 0.4 * 0.6)


def test_the_inclusion_correction_is_the_inverse_inclusion_probability():
    s = build([7, 2, 11])
    np.testing.assert_array_equal(s.log_correction[s.is_positive], 0.0)
    negatives = s.is_member & ~s.is_positive
    np.testing.assert_allclose(
        s.log_correction[negatives], np.log((12 - 3) / 4), rtol=1e-6
    )
    assert not build([7, 2, 11], logit_correction="none").log_correction.any()
    assert build([7, 2, 11], m=1).log_correction.max() == pytest.approx(np.log(9))


def partition_sums(builder, num_draws=4000):
    """The partition sum over S_k for many draws of N_k, and the one over [n]."""
    n = builder.num_classes
    logits = np.random.default_rng(0).normal(0, 1.5, n).astype(np.float32)

    def draw(seed):
        s = builder.build(tf.constant([3, 9, 9, 20]), tf.stack([seed, 1]))
        terms = tf.exp(tf.gather(logits, s.keys) + s.log_correction)
        return tf.reduce_sum(tf.where(s.is_member, terms, 0.0))

    return np.array(draws(num_draws, draw)), np.exp(logits.astype(np.float64)).sum()


@pytest.mark.parametrize(
    "builder",
    [
        class_sets.SampledClasses(50, 6, 4, "inclusion"),
        class_sets.PopularClasses(50, 12, 4),
        class_sets.PopularClasses(50, 12, 4, np.linspace(1, 9, 50)),
    ],
    ids=["uniform", "log-uniform", "given"],
)
def test_corrections_make_the_partition_sum_unbiased(builder):
    # By the central limit theorem the mean of right sums is farther than 5 standard
    # errors off in one of 1.7 million sets of seeds; these seeds are fixed.
    sums, full = partition_sums(builder)
    standard_error = sums.std() / np.sqrt(len(sums))
    assert standard_error < 0.02 * full
    assert abs(sums.mean() - full) < 5 * standard_error


def test_popular_classes_come_as_often_as_they_should():
    builder = class_sets.PopularClasses(8, 1, 2)
    labels = tf.constant([0, 5, 5])
    sets = draws(2000, lambda seed: builder.build(labels, tf.stack([seed, 0])))
    negatives = [int(s.keys[s.is_member & ~s.is_positive][0]) for s in sets]
    weights = np.log1p(1 / np.arange(1, 9))
    weights[[0, 5]] = 0  # Those of the client.
    expected = 2000 * weights / weights.sum()
    counts = np.bincount(negatives, minlength=8)
    assert counts[0] == counts[5] == 0
    # 5 standard deviations of a binomial.
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 1e-9).all()
    # One draw of q: its weight is 1 / q.
    (correction,) = sets[0].log_correction[sets[0].is_member & ~sets[0].is_positive]
    assert np.exp(correction) == pytest.approx(2000 / expected[negatives[0]], 1e-5)


def test_popular_classes_of_a_client_that_has_all():
    s = class_sets.PopularClasses(3, 3, 3).build(tf.constant([2, 0, 1]), SEED)
    np.testing.assert_array_equal(s.keys, [0, 1, 2])
    assert s.is_positive.numpy().all() and not s.log_correction.numpy().any()


def test_a_set_has_room_for_all_its_classes():
    positives, others = tf.constant([1, 2]), tf.constant([5, 6, 7])
    with pytest.raises(tf.errors.InvalidArgumentError, match="more classes than size"):
        class_sets.assemble(4, positives, others, None)


@pytest.mark.parametrize(
    "keys, labels", [([1, 4, 4], [4, 2]), ([4, 1, 1], [1]), ([1, 4], [5]), ([1], [-1])]
)
def test_labels_stand_among_keys_that_ascend(keys, labels):
    flags = tf.ones([len(keys)], tf.bool)
    class_set = class_sets.ClassSet(keys, flags, flags, flags, tf.zeros([len(keys)]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels not among"):
        class_sets.positions(class_set, tf.constant(labels))


@pytest.mark.parametrize(
    "name, options",
    [(None, {}), ("pool", {"size": 6}), ("randomized_response", {"epsilon": 1})],
)
def test_numbers_may_be_numpys(name, options):
    def build(n, m, max_positives, options):
        if name is None:
            builder = class_sets.SampledClasses(n, m, max_positives)
        else:
            builder = class_set_defences.builder(name, n, m, max_positives, **options)
        return builder.build(tf.constant([7, 2]), SEED, permanent_seed=SEED)

    n, m, max_positives = np.int64(12), np.int32(4), np.int64(5)
    numpys = {key: np.int64(value) for key, value in options.items()}
    toy.same_bytes(build(n, m, max_positives, numpys), build(12, 4, 5, options))
    everything = class_sets.AllClasses(n).build(tf.constant([3]), SEED)
    np.testing.assert_array_equal(everything.keys, range(12))
    sample = samplers.sample_without_replacement(m, tf.constant(12), SEED)
    assert len(set(sample.numpy())) == 4


def test_a_client_without_data_has_a_set_too():
    s = build([])
    assert s.is_member.sum() == 4 and not s.is_positive.any()
    assert build([], m=0, max_positives=3).is_member.sum() == 0


@pytest.mark.parametrize("m", [8, 10, 12])
def test_a_client_with_fewer_other_classes_takes_them_all(m):
    s = build([7, 2, 11], m=m)
    assert s.keys.shape == (12,)
    num_negatives = min(m, 9)
    assert s.is_member.sum() == 3 + num_negatives
    negatives = s.is_member & ~s.is_positive
    np.testing.assert_allclose(
        s.log_correction[negatives], np.log(9 / num_negatives), rtol=1e-6, atol=1e-7
    )
    everything = build(range(12), m=m, max_positives=12)
    assert everything.is_positive.all() and not everything.log_correction.any()


def test_all_classes_is_everything():
    builder = class_sets.AllClasses(5)
    s = builder.build(tf.constant([3, 1, 3]), SEED)
    assert builder.is_everything and builder.size == 5
    assert list(s.keys.numpy()) == [0, 1, 2, 3, 4]
    assert list(s.is_positive.numpy()) == [False, True, False, True, False]
    assert s.is_member.numpy().all() and not s.log_correction.numpy().any()


OPTIONS = {
    "memoised": {},
    "randomized_response": {"epsilon": 1.5},
    "pool": {"size": 6},
}
LABELS = tf.constant([2, 7, 7, 11])


def builder(name, n=13, m=4, max_positives=5):
    return class_set_defences.builder(name, n, m, max_positives, **OPTIONS[name])


def of_rounds(maker, count, k):
    """The class sets of a client in some rounds."""
    return draws(
        count, lambda r: maker.build(LABELS, tf.stack([r, 1]), tf.constant([k, 2]))
    )


def of_clients(maker, count):
    """The class sets of some clients in a round."""
    return draws(
        count, lambda k: maker.build(LABELS, tf.constant([0, 1]), tf.stack([k, 2]))
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_each_round_asks_for_the_same(name):
    maker = builder(name)
    asked = of_rounds(maker, 6, k=5)
    for s in asked:
        assert list(s.keys) == sorted(s.keys)
        np.testing.assert_array_equal(s.keys, asked[0].keys)
        np.testing.assert_array_equal(s.is_asked, asked[0].is_asked)
        assert set(s.keys[s.is_positive]) <= {2, 7, 11}
        assert not (s.is_member & ~s.is_asked).any()
    others = of_clients(maker, 9)[6:]
    assert any(tuple(other.keys) != tuple(asked[0].keys) for other in others)
    trained = {tuple(s.keys[s.is_member]) for s in asked}
    assert (len(trained) > 1) == (name == "pool")


def test_a_pool_is_asked_for_and_a_part_of_it_trained():
    counts = np.zeros(13)
    for s in of_rounds(builder("pool"), 2000, k=7):
        assert s.is_asked.sum() == 3 + 6 and s.is_member.sum() == 3 + 4
        assert set(s.keys[s.is_positive]) == {2, 7, 11}
        counts[s.keys[s.is_member]] += 1
        np.testing.assert_allclose(
            s.log_correction[s.is_member & ~s.is_positive], np.log(10 / 4), rtol=1e-6
        )
    decoys = sorted(set(s.keys[s.is_asked]) - {2, 7, 11})
    # Each of the six trains with chance 4 / 6; five standard deviations.
    assert np.abs(counts[decoys] - 2000 * 4 / 6).max() < 5 * np.sqrt(2000 * 2 / 9)


def test_randomized_response_has_its_chances():
    maker = builder("randomized_response")
    assert maker.q == pytest.approx(4 / 13)
    likelihood = maker.p * (1 - maker.q) / (maker.q * (1 - maker.p))
    assert np.log(likelihood) == pytest.approx(1.5)
    counts, num = np.zeros(13), 3000
    pairs = 0
    for s in of_clients(maker, num):
        members = s.keys[s.is_member]
        assert len(set(members)) == len(members)
        counts[members] += 1
        pairs += {3, 4} <= set(members)
    chance = np.full(13, maker.q)
    chance[[2, 7, 11]] = maker.p
    sd = np.sqrt(num * chance * (1 - chance))
    assert (np.abs(counts - num * chance) < 5 * sd).all()
    # Two classes independently, as coins of their own would have it.
    assert abs(pairs - num * maker.q**2) < 5 * np.sqrt(num * maker.q**2)
    most = class_set_defences.RandomizedResponse(30_000, 29_999, 5, epsilon=800.0)
    assert most.p == 1


def twins_client(client, maker):
    """The client for the NumPy twin: what trains of it, and its negatives."""
    s = maker.build(
        tf.constant(client["label"]),
        client_update.negatives_seed(client["seed"]),
        client_update.negatives_seed(client["permanent_seed"]),
    )
    members = s.keys.numpy()[s.is_member.numpy()]
    kept = np.isin(client["label"], members)
    is_negative = (s.is_member & ~s.is_positive).numpy()
    return {
        "x": client["image"][kept].reshape(kept.sum(), -1) / 255.0,
        "labels": client["label"][kept],
        "negatives": s.keys.numpy()[is_negative],
        "orders": [client_update.example_order(kept.sum(), client["seed"], 0).numpy()],
    }


def with_permanent_seed(k, client):
    return {**client, "permanent_seed": np.array([k, 9], np.int32)}


@pytest.mark.parametrize("name", OPTIONS)
def test_rounds_equal_the_numpy_twin(name):
    maker = builder(name)

    def clients_of(cohort):
        seeds = [with_permanent_seed(k, {}) for k in range(len(cohort))]
        return [c | seed for c, seed in zip(toy.to_tff(cohort), seeds, strict=True)]

    def twins_of(cohort):
        twins = [
            twins_client(with_permanent_seed(k, client), maker)
            for k, client in enumerate(cohort)
        ]
        if name == "randomized_response":
            # The twin's correction is that of fresh negatives: here it is log(1 / q).
            twins = [t | {"log_correction": -np.log(maker.q)} for t in twins]
        return twins

    _, metrics = toy.rounds_like_the_twin(
        toy.build(builder=maker),
        "fedss",
        num_rounds=2,
        clients_of=clients_of,
        twins_of=twins_of,
    )
    if name == "randomized_response":  # Or nothing was left out.
        assert metrics["num_examples"] < 22
    if name == "pool":
        assert metrics["classes_per_client"] == pytest.approx((5 + 2 + 3) / 3 + 6)
