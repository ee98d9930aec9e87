"""Numbers that tests draw, and how they compare them."""

import numpy as np
import scipy.stats
import tensorflow as tf


def rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def draws(count, draw):
    """What a function gives for the int32 seeds 0, 1, ..., in one graph."""
    spec = tf.nest.map_structure(tf.type_spec_from_value, draw(tf.constant(0)))

    @tf.function
    def stacked():
        return tf.map_fn(draw, tf.range(count), fn_output_signature=spec)

    return list(tf.data.Dataset.from_tensor_slices(stacked()).as_numpy_iterator())


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def stack(dataset):
    """The images and the labels of a `tf.data.Dataset`."""
    examples = list(dataset.as_numpy_iterator())
    return (
        np.stack([e["image"] for e in examples]),
        np.array([e["label"] for e in examples]),
    )


def assert_same(ours, theirs):
    """The arrays of two sequences are equal."""
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_close(ours, theirs, rtol=1e-7, atol=0.0):
    """The arrays of two sequences are almost equal."""
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def assert_drawn_from(q, counts):
    """Chi-square: draws have these probabilities. Rare classes are counted as one."""
    expected = q * counts.sum()
    is_rare = expected < 5
    counts = np.append(counts[~is_rare], counts[is_rare].sum())
    expected = np.append(expected[~is_rare], expected[is_rare].sum())
    if expected[-1] < 5:
        counts[-2], expected[-2] = counts[-2:].sum(), expected[-2:].sum()
        counts, expected = counts[:-1], expected[:-1]
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-4
