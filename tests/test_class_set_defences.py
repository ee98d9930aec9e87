"""Class sets that hide: their chances, their permanence, and rounds with them."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from examples import fedss_numpy
from tests.algorithms.toy import (
    BATCH_SIZE,
    ETA,
    MAX_POSITIVES,
    NUM_CLASSES,
    dense_features,
    make_cohort,
    weights_of,
)
from tff_fedss import algorithms, class_set_defences, class_sets
from tff_fedss.algorithms import client_update

OPTIONS = {
    "memoised": {},
    "randomized_response": {"epsilon": 1.5},
    "pool": {"pool_size": 6},
}
LABELS = tf.constant([2, 7, 7, 11])


def builder(name, n=13, m=4, max_positives=5):
    return class_set_defences.builder(name, n, m, max_positives, **OPTIONS[name])


def drawer(maker):
    """(round, client) -> the class set, compiled once."""

    @tf.function
    def draw(r, k):
        return maker.build(LABELS, tf.stack([r, 1]), tf.stack([k, 2]))

    return lambda r, k: tf.nest.map_structure(
        lambda t: t.numpy(), draw(tf.constant(r), tf.constant(k))
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_each_round_asks_for_the_same(name):
    draw = drawer(builder(name))
    asked = [draw(r, k=5) for r in range(6)]
    for s in asked:
        assert list(s.keys) == sorted(s.keys)
        np.testing.assert_array_equal(s.keys, asked[0].keys)
        np.testing.assert_array_equal(s.is_asked, asked[0].is_asked)
        assert set(s.keys[s.is_positive]) <= {2, 7, 11}
        assert not (s.is_member & ~s.is_asked).any()
    assert any(tuple(draw(0, k).keys) != tuple(asked[0].keys) for k in range(6, 9))
    trained = {tuple(s.keys[s.is_member]) for s in asked}
    assert (len(trained) > 1) == (name == "pool")


def test_a_pool_is_asked_for_and_a_part_of_it_trained():
    draw = drawer(builder("pool"))
    counts = np.zeros(13)
    for r in range(2000):
        s = draw(r, 7)
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
    draw, counts, num = drawer(maker), np.zeros(13), 3000
    pairs = 0
    for k in range(num):
        s = draw(0, k)
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


def argument(client):
    data = tf.data.Dataset.from_tensor_slices(
        {"image": client["image"], "label": client["label"]}
    )
    return collections.OrderedDict(
        data=data, seed=client["seed"], permanent_seed=client["permanent_seed"]
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_rounds_equal_the_numpy_twin(name):
    maker = builder(name)
    process = algorithms.build_fedss(
        dense_features,
        NUM_CLASSES,
        algorithms.ClassSets(builder=maker),
        algorithms.ClientTraining(tff.learning.optimizers.build_sgdm(ETA), BATCH_SIZE),
    )
    state = process.initialize()
    theta = [np.array(p, np.float64) for p in weights_of(state)]
    velocity = [np.zeros_like(p) for p in theta]
    for r in range(2):
        cohort = make_cohort(seed=r)
        for k, client in enumerate(cohort):
            client["permanent_seed"] = np.array([k, 9], np.int32)
        state, metrics = process.next(state, [argument(c) for c in cohort])
        twins = [twins_client(c, maker) for c in cohort]
        if name == "randomized_response":
            # The twin's correction is that of fresh negatives: here it is log(1 / q).
            twins = [t | {"log_correction": -np.log(maker.q)} for t in twins]
        theta, velocity, (loss, accuracy) = fedss_numpy.one_round(
            "fedss", theta, velocity, twins, eta=ETA, batch_size=BATCH_SIZE
        )
        for ours, twins_own in zip(weights_of(state), theta, strict=True):
            np.testing.assert_allclose(ours, twins_own, rtol=1e-4, atol=1e-6)
        assert metrics["loss"] == pytest.approx(loss, rel=1e-4)
        assert metrics["accuracy"] == pytest.approx(accuracy)
        assert metrics["num_examples"] == sum(len(t["labels"]) for t in twins)
    if name == "randomized_response":  # Or nothing was left out.
        assert metrics["num_examples"] < 22
    if name == "pool":
        assert metrics["classes_per_client"] == pytest.approx((5 + 2 + 3) / 3 + 6)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("mixed", {}, "must be one of"),
        ("pool", {"pool_size": 3}, "pool_size=3 must be at least 4 and at most 8"),
        ("randomized_response", {"epsilon": 0.0}, "must be positive"),
    ],
)
def test_what_does_not_fit_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        class_set_defences.builder(name, NUM_CLASSES, 4, MAX_POSITIVES, **options)


def test_fresh_is_the_papers():
    maker = class_set_defences.builder("fresh", NUM_CLASSES, 4, MAX_POSITIVES)
    assert type(maker) is class_sets.SampledClasses
