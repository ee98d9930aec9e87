"""Uniform sampling of negative classes without replacement (FedSS, section 3.3)."""

import numbers

import tensorflow as tf

# Philox gives the same stream on every device; the default may differ by device.
_RNG = "philox"


def sample_without_replacement(
    num_samples: int | tf.Tensor, population: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Draws distinct integers of [0, population), every subset equally likely.

    Time and memory are O(num_samples) for any population: a client that draws 80 of a
    million classes never holds a list of a million. The first `num_samples` distinct
    values of an independent uniform stream are exactly a sample without replacement.
    For more than half of the population, with many repeats, a shuffle of all costs no
    more.

    Args:
        num_samples: m, the number of draws.
        population: int32[], the size of the population.
        seed: int32[2], the key of the stateless generator: same key, same sample.

    Returns:
        int32[num_samples], distinct, in random order.

    Raises:
        tf.errors.InvalidArgumentError: If `num_samples` exceeds `population`.
    """
    if isinstance(num_samples, numbers.Integral):
        num_samples = int(num_samples)  # TensorFlow takes NumPy's for int64.
    population = tf.convert_to_tensor(population, tf.int32)
    seed = tf.convert_to_tensor(seed, tf.int32)
    with tf.control_dependencies(
        [
            tf.debugging.assert_less_equal(
                num_samples,
                population,
                message="more negatives (m) than classes to draw them from (n - |P_k|)",
            )
        ]
    ):
        population = tf.identity(population)

    def shuffle_all() -> tf.Tensor:
        everyone = tf.range(population)
        shuffled = tf.random.experimental.stateless_shuffle(everyone, seed, alg=_RNG)
        return shuffled[:num_samples]

    def reject_repeats() -> tf.Tensor:
        # m is at most half of the population, so 2 m draws nearly always have m
        # distinct values; the loop covers the other cases.
        def too_few(distinct, _):
            return tf.size(distinct) < num_samples

        def draw_more(distinct, attempt):
            # TensorFlow reduces the raw bits modulo `population`. With 64 bits the
            # resulting bias is below 2**-32 for every int32 population; with 32 bits it
            # would be visible.
            fresh = tf.random.stateless_uniform(
                [2 * num_samples + 8],
                tf.random.experimental.stateless_fold_in(seed, attempt, alg=_RNG),
                maxval=tf.cast(population, tf.int64),
                dtype=tf.int64,
                alg=_RNG,
            )
            # tf.unique keeps the order of first occurrence.
            drawn = tf.concat([distinct, tf.cast(fresh, tf.int32)], 0)
            return tf.unique(drawn).y, attempt + 1

        distinct, _ = tf.while_loop(
            too_few,
            draw_more,
            (tf.zeros([0], tf.int32), tf.constant(0, tf.int32)),
            shape_invariants=(tf.TensorShape([None]), tf.TensorShape([])),
        )
        return distinct[:num_samples]

    is_known = isinstance(num_samples, int)
    if is_known and num_samples == 0:
        return tf.zeros([0], tf.int32)
    sample = tf.cond(2 * num_samples > population, shuffle_all, reject_repeats)
    return tf.ensure_shape(sample, [num_samples if is_known else None])
