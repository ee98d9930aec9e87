import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import class_sets

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
    draw = tf.function(
        lambda seed: class_sets.SampledClasses(12, 4, 2).build(
            tf.constant([0, 5]), tf.stack([seed, 1])
        )
    )
    for seed in range(3000):
        s = draw(tf.constant(seed))
        counts[s.keys.numpy()[s.is_member.numpy()]] += 1
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


def test_all_negatives_need_no_correction():
    s = build([1, 2, 3], m=9, max_positives=3)
    assert list(s.keys) == list(range(12))
    np.testing.assert_array_equal(s.log_correction, 0.0)


def partition_sums(logit_correction, num_draws=4000, n=50, m=6):
    """The partition sum over S_k for many draws of N_k, and the one over [n]."""
    logits = np.random.default_rng(0).normal(0, 1.5, n).astype(np.float32)
    builder = class_sets.SampledClasses(n, m, 4, logit_correction)

    @tf.function
    def draw(seed):
        s = builder.build(tf.constant([3, 9, 9, 20]), tf.stack([seed, 1]))
        terms = tf.exp(tf.gather(logits, s.keys) + s.log_correction)
        return tf.reduce_sum(tf.where(s.is_member, terms, 0.0))

    sums = np.array([draw(tf.constant(seed)) for seed in range(num_draws)])
    return sums, np.exp(logits.astype(np.float64)).sum()


def test_the_inclusion_correction_makes_the_partition_sum_unbiased():
    # By the central limit theorem the mean of right sums is farther than 5 standard
    # errors off in one of 1.7 million sets of seeds; these seeds are fixed.
    sums, full = partition_sums("inclusion")
    standard_error = sums.std() / np.sqrt(len(sums))
    assert standard_error < 0.02 * full
    assert abs(sums.mean() - full) < 5 * standard_error


def test_without_correction_the_partition_sum_is_biased():
    sums, full = partition_sums("none")
    standard_error = sums.std() / np.sqrt(len(sums))
    assert sums.mean() < full - 50 * standard_error


def test_without_negatives_the_set_is_the_positives():
    s = build([4, 9], m=0, max_positives=2)
    assert list(s.keys) == [4, 9]
    assert s.is_positive.all()
    np.testing.assert_array_equal(s.log_correction, 0.0)


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


def test_positions_point_at_the_labels():
    labels = tf.constant([7, 2, 2, 11])
    s = class_sets.SampledClasses(12, 4, 5).build(labels, SEED)
    np.testing.assert_array_equal(
        tf.gather(s.keys, class_sets.positions(s, labels)), labels
    )


def test_all_classes_is_everything():
    builder = class_sets.AllClasses(5)
    s = builder.build(tf.constant([3, 1, 3]), SEED)
    assert builder.is_everything and builder.size == 5
    assert list(s.keys.numpy()) == [0, 1, 2, 3, 4]
    assert list(s.is_positive.numpy()) == [False, True, False, True, False]
    assert s.is_member.numpy().all() and not s.log_correction.numpy().any()


@pytest.mark.parametrize(
    "labels, message",
    [
        ([0, 1, 2, 3, 4, 5], "max_positives"),
        ([12], "not below num_classes"),
        ([-1], "negative"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        build(labels)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (dict(n=0), "num_classes"),
        (dict(m=13), "num_negatives=13 .* at most 12"),
        (dict(m=-1), "num_negatives=-1"),
        (dict(max_positives=13), "max_positives"),
        (dict(logit_correction="full"), "'full'"),
    ],
)
def test_arguments_out_of_range_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build([1], **kwargs)
