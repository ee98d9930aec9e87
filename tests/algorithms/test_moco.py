"""MoCo, step by step, against a NumPy twin of its queue, momentum and clusters."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.arrays import assert_close, assert_same, unit
from tff_fedss import algorithms, losses, models

SIZE, DIM, QUEUE, BATCH, T, M = 4, 5, 10, 4, 0.3, 0.8
DECAY, RATE = 1e-3, 0.5
UNKNOWN = np.full(BATCH, -1, np.int32)  # Labels.


def backbone():
    """A linear network: its key and query embeddings are easy to follow."""
    images = tf.keras.Input([SIZE, SIZE, 3])
    x = tf.keras.layers.Rescaling(1 / 255)(tf.keras.layers.Flatten()(images))
    initializer = tf.keras.initializers.GlorotUniform(0)
    features = tf.keras.layers.Dense(6, kernel_initializer=initializer)(x)
    return tf.keras.Model(images, features)


def split_backbone():
    """A linear network with the statistics of two halves of a batch."""
    linear = backbone()
    x = models.SplitBatchNormalization(2)(linear.output)
    return tf.keras.Model(linear.input, x)


def build(
    form="plain",
    gamma=0.0,
    backbone_fn=backbone,
    rate=RATE,
    queue_size=QUEUE,
    shuffle_keys=False,
    clusters="k_means",
):
    return algorithms.MoCo(
        backbone_fn,
        tf.keras.optimizers.SGD(rate, momentum=0.9),
        queue_size=queue_size,
        embedding_dim=DIM,
        temperature=T,
        key_momentum=M,
        weight_decay=DECAY,
        gamma=gamma,
        form=form,
        num_clusters=3,
        shuffle_keys=shuffle_keys,
        clusters=clusters,
        seed=1,
    )


def views(step):
    rng = np.random.default_rng(step)
    shape = [2, BATCH, SIZE, SIZE, 3]
    return rng.integers(0, 256, size=shape, dtype=np.uint8)


def weights_of(moco):
    return [*moco.encoder.get_weights(), *moco.key_encoder.get_weights()]


def embed(weights, images):
    """The linear backbone and the head, in float64."""
    kernel, bias, kernel_1, bias_1, kernel_2, bias_2 = map(np.float64, weights)
    x = images.reshape(len(images), -1) / 255.0
    hidden = np.maximum((x @ kernel + bias) @ kernel_1 + bias_1, 0)
    return unit(hidden @ kernel_2 + bias_2)


def encoded(moco, query_views, key_views):
    """q, k and the queue before the first step, in float64."""
    weights = moco.encoder.get_weights()
    views = (query_views, key_views)
    return *(embed(weights, v) for v in views), np.float64(moco.queue)


def clustered_losses(form, gamma, queries, keys, queue, same):
    """Eq. 1, 5 and 6: the losses of examples; `same`, their clusters in the queue."""
    a = np.exp((queries * keys).sum(1) / T)
    e = np.exp(queries @ queue.T / T)
    top = a + (e * same).sum(1) * (form == "clustered")
    p = top / (top + (e * np.logical_not(same)).sum(1))
    return -((1 - p) ** gamma) * np.log(p)


def test_the_encoders_start_alike_and_the_queue_as_directions():
    moco = build()
    assert_same(moco.encoder.get_weights(), moco.key_encoder.get_weights())
    np.testing.assert_allclose(np.linalg.norm(moco.queue, axis=1), 1.0, rtol=1e-6)
    assert np.abs(np.mean(moco.queue @ tf.transpose(moco.queue))) < 0.3


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_queue_momentum_and_loss_follow_a_numpy_twin_step_by_step(gamma):
    moco = build(gamma=gamma)
    queue, pointer = moco.queue.numpy().astype(np.float64), 0
    key_weights = [np.float64(w) for w in moco.key_encoder.get_weights()]
    for step in range(6):  # The queue is passed twice, and not in whole batches.
        query_views, key_views = views(step)
        query_weights = [np.float64(w) for w in moco.encoder.get_weights()]
        key_weights = [
            M * key + (1 - M) * query
            for key, query in zip(key_weights, query_weights, strict=True)
        ]
        queries = embed(query_weights, query_views)
        keys = embed(key_weights, key_views)
        expected = clustered_losses("plain", gamma, queries, keys, queue, False)

        step_sums = moco.update(query_views, key_views, UNKNOWN)

        np.testing.assert_allclose(step_sums["loss"], expected.sum(), rtol=1e-4)
        is_right = (queries * keys).sum(1) > (queries @ queue.T).max(1)
        assert step_sums["accuracy"] == is_right.sum()
        assert set(step_sums) == {"loss", "accuracy", "num_examples"}
        for key in keys:
            queue[pointer] = key
            pointer = (pointer + 1) % QUEUE
        assert moco.pointer.numpy() == pointer
        np.testing.assert_allclose(moco.queue, queue, atol=1e-5)
        assert_close(moco.key_encoder.get_weights(), key_weights, atol=1e-5)


def test_shuffled_keys_come_back_in_order_and_had_other_company():
    def queue_of(shuffle_keys, backbone_fn):
        moco = build(backbone_fn=backbone_fn, shuffle_keys=shuffle_keys)
        loss = moco.update(*views(0), UNKNOWN)["loss"]
        return loss, moco.queue.numpy()

    # A network that sees one image at a time does not notice.
    plain, shuffled = queue_of(False, backbone), queue_of(True, backbone)
    assert shuffled[0] == pytest.approx(plain[0], rel=1e-5)
    np.testing.assert_allclose(shuffled[1], plain[1], atol=1e-6)
    plain, shuffled = (queue_of(shuffle, split_backbone) for shuffle in (False, True))
    assert np.abs(shuffled[1][:BATCH] - plain[1][:BATCH]).max() > 1e-2
    # Some order of the images has such halves: each key is that of its own image.
    moco = build(backbone_fn=split_backbone)
    _, key_views = views(0)
    for order in itertools.permutations(range(BATCH)):
        keys = unit(moco.key_encoder(key_views[[*order]], training=True).numpy())
        keys = keys[np.argsort(order)]
        if np.abs(keys - shuffled[1][:BATCH]).max() < 1e-4:
            break
    else:
        raise AssertionError("no order gives these keys")


def test_a_step_is_sgd_with_momentum_and_decay_on_the_query_encoder_alone():
    moco = build()
    velocity = [np.zeros(v.shape) for v in moco.encoder.trainable_variables]
    for step in range(3):
        query_views, key_views = views(step)
        before = moco.encoder.get_weights()
        queue = moco.queue.numpy()
        key_weights = [
            M * key + (1 - M) * query
            for key, query in zip(moco.key_encoder.get_weights(), before, strict=True)
        ]
        keys = tf.constant(embed(key_weights, key_views), tf.float32)
        with tf.GradientTape() as tape:
            out = moco.encoder(tf.cast(query_views, tf.float32), training=True)
            queries = tf.math.l2_normalize(out, 1)
            together = tf.concat(
                [
                    tf.reduce_sum(queries * keys, 1, keepdims=True),
                    tf.matmul(queries, queue, transpose_b=True),
                ],
                1,
            )
            loss = tf.reduce_mean(
                losses.softmax_loss(together / T, np.zeros(BATCH, np.int32))
            )
        gradient = tape.gradient(loss, moco.encoder.trainable_variables)
        moco.update(query_views, key_views, UNKNOWN)
        for i, (g, start) in enumerate(zip(gradient, before, strict=True)):
            velocity[i] = 0.9 * velocity[i] - RATE * (g.numpy() + DECAY * start)
            np.testing.assert_allclose(
                moco.encoder.get_weights()[i], start + velocity[i], atol=1e-5
            )


def three_directions(moco, rng):
    """Fills the queue with keys around three directions; returns which is where."""
    centers = unit(np.eye(3, DIM) + 0.01)
    group = np.arange(QUEUE) % 3
    noise = 0.02 * rng.standard_normal([QUEUE, DIM])
    moco.queue.assign(unit(centers[group] + noise).astype(np.float32))
    return group


def test_clusters_of_the_queue_are_found_again_and_the_same_ones():
    moco, again = build("filtered"), build("filtered")
    group = three_directions(moco, np.random.default_rng(0))
    again.queue.assign(moco.queue)
    for model in (moco, again):
        model.fit_clusters(epoch=7)
    np.testing.assert_array_equal(moco.centers, again.centers)
    distance = np.linalg.norm(
        moco.queue.numpy()[:, np.newaxis] - moco.centers.numpy(), axis=2
    )
    found = distance.argmin(1)
    same = found[:, np.newaxis] == found
    np.testing.assert_array_equal(same, group[:, np.newaxis] == group)


@pytest.mark.parametrize("form", ["clustered", "filtered"])
@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_a_query_is_in_the_cluster_of_its_key(form, gamma):
    moco = build(form, gamma)
    three_directions(moco, np.random.default_rng(0))
    moco.fit_clusters(epoch=1)
    query_views, key_views = views(0)
    queries, keys, queue = encoded(moco, query_views, key_views)
    centers = np.float64(moco.centers)

    def nearest(rows):
        return ((rows[:, np.newaxis] - centers) ** 2).sum(2).argmin(1)

    same = nearest(keys)[:, np.newaxis] == nearest(queue)
    expected = clustered_losses(form, gamma, queries, keys, queue, same).sum()
    measured = moco.measure(*views(0), UNKNOWN)

    other = build_like(moco, form, gamma)
    other.queue_labels.assign(np.arange(QUEUE) % 2)
    labels = np.array([0, 1, 1, -1], np.int32)
    found = other.update(query_views, key_views, labels)
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-4)
    np.testing.assert_allclose(found["cluster_share"], same.mean(1).sum(), rtol=1e-6)
    # The labels decide nothing; of the queries that have one, they tell the purity.
    assert found["labelled"] == same[:3].sum()
    right = labels[:3, np.newaxis] == np.arange(QUEUE) % 2
    assert found["right"] == (same[:3] & right).sum()
    metrics = other.round_metrics(found)
    assert metrics["cluster_share"] == pytest.approx(same.mean(), rel=1e-6)
    assert metrics["cluster_purity"] == found["right"] / found["labelled"]
    if gamma == 0:
        np.testing.assert_allclose(measured[form].sum(), expected, rtol=1e-4)


@pytest.mark.parametrize("form", ["clustered", "filtered"])
def test_an_oracle_s_clusters_are_the_classes(form):
    moco = build(form, clusters="labels")
    queue_labels = np.array([0, 1, 2, -1, 0, 1, 2, -1, 0, 1], np.int32)
    moco.queue_labels.assign(queue_labels)
    centers = moco.centers.numpy()
    moco.fit_clusters(1)
    np.testing.assert_array_equal(moco.centers, centers)
    query_views, key_views = views(0)
    labels = np.array([1, 0, -1, 3], np.int32)  # Of the last two nothing is known.
    same = (labels[:, np.newaxis] == queue_labels) & (labels >= 0)[:, np.newaxis]
    given = encoded(moco, query_views, key_views)
    expected = clustered_losses(form, 0.0, *given, same)
    found = moco.update(query_views, key_views, labels)
    np.testing.assert_allclose(found["loss"], expected.sum(), rtol=1e-4)
    assert found["right"] == found["labelled"] == same.sum()
    np.testing.assert_array_equal(moco.queue_labels[:BATCH], labels)
    np.testing.assert_array_equal(moco.queue_labels[BATCH:], queue_labels[BATCH:])


def build_like(moco, form, gamma):
    """Another one, as `moco` was before `measure` moved its queue on."""
    other = build(form, gamma)
    three_directions(other, np.random.default_rng(0))
    other.centers.assign(moco.centers)
    return other


def test_measuring_moves_the_queue_and_no_weight():
    moco, trained = build(rate=0.0), build(rate=0.0)
    before = weights_of(moco)
    measured = moco.measure(*views(0), UNKNOWN)
    loss = trained.update(*views(0), UNKNOWN)["loss"]
    np.testing.assert_allclose(measured["plain"].sum(), loss, rtol=1e-5)
    # m w + (1 - m) w is w up to rounding.
    np.testing.assert_allclose(moco.queue, trained.queue, atol=1e-6)
    assert moco.pointer.numpy() == BATCH
    assert_same(before, weights_of(moco))


def with_batch_norm():
    model = backbone()
    x = tf.keras.layers.BatchNormalization()(model.output)
    return tf.keras.Model(model.input, x)


def test_it_resumes_from_a_state_bit_for_bit():
    moco = build("filtered", 1.0, with_batch_norm)
    moco.fit_clusters(1)
    for step in range(4):
        moco.update(*views(step), UNKNOWN)
    again = build("filtered", 1.0, with_batch_norm)
    again.set_state(moco.state)
    for model in (moco, again):
        model.fit_clusters(2)
    for step in range(3):
        assert moco.update(*views(step), UNKNOWN) == again.update(*views(step), UNKNOWN)
    assert_same(moco.state, again.state)


def test_another_training_starts_from_encoders_and_queue():
    moco = build(backbone_fn=with_batch_norm)
    for step in range(3):  # 12 keys: the oldest of 10 is at place 2.
        moco.update(*views(step), np.arange(4 * step, 4 * step + 4, dtype=np.int32))
    other = build(backbone_fn=with_batch_norm)
    other.start_from(moco.arrays())
    assert_same(weights_of(other), weights_of(moco))
    np.testing.assert_array_equal(other.queue, np.roll(moco.queue, -2, 0))
    np.testing.assert_array_equal(other.queue_labels, np.arange(2, 12))
    assert other.pointer.numpy() == 0

    small = build(backbone_fn=with_batch_norm, queue_size=4)
    small.start_from(moco.arrays())
    np.testing.assert_array_equal(small.queue, np.roll(moco.queue, -2, 0)[-4:])
    large = build(backbone_fn=with_batch_norm, queue_size=13)
    random = large.queue.numpy()
    large.start_from(moco.arrays())
    np.testing.assert_array_equal(large.queue[:10], np.roll(moco.queue, -2, 0))
    np.testing.assert_array_equal(large.queue[10:], random[10:])
    assert large.pointer.numpy() == 10
