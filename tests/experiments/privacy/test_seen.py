"""What the attacks are made on is what the process does."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.privacy import attacks, seen
from tests.algorithms import toy
from tests.refusals import refused
from tff_fedss import class_set_defences, class_sets, tasks, training
from tff_fedss.privacy import aggregate

M = 4


@pytest.fixture(scope="module")
def run():
    process = toy.build("fedss", M, with_positives=True)
    return training.FederatedRun("fedss", process, toy.task(), cohort_size=3, seed=5)


def request_fn():
    return seen.request_fn(
        class_sets.SampledClasses(toy.NUM_CLASSES, M, toy.MAX_POSITIVES), 5
    )


def test_updates_and_requests_are_those_of_the_process(run):
    dataset, request = run.task.dataset, request_fn()
    models = [[np.asarray(w) for w in run.weights.trainable]] * 2
    num_asked = num_moved = 0
    for round_num in range(1, 4):
        ids = training.cohort(5, round_num, dataset.train.client_ids, 3)
        update_of = seen.update_fn(run, run.process, 1.0)
        found = [update_of(client) for client in run.clients(round_num)]
        for client_id, update in zip(ids, found):
            asked, trained = request(dataset.positives(client_id), client_id, round_num)
            np.testing.assert_array_equal(asked, trained)
            assert asked.sum() == len(dataset.positives(client_id)) + M
            moved = update[-1].any(1)
            assert not moved[~asked].any()
            num_asked += asked.sum()
            num_moved += moved.sum()
        run.run_round()
        models.append([np.asarray(w) for w in run.weights.trainable])
        weights = np.array([dataset.num_examples(k) for k in ids], np.float64)
        weights /= weights.sum()
        for i, now in enumerate(zip(*models[-3:])):
            # Line 12: the mean; and momentum hides nothing of it.
            mean = sum(w * update[i] for w, update in zip(weights, found))
            np.testing.assert_allclose(aggregate.undo_momentum(*now), mean, atol=2e-6)
    # In three dimensions some rows have no say in the softmax, to float32.
    assert 0.75 * num_asked < num_moved


def test_a_client_without_labels_asks_for_negatives_alone():
    assert request_fn()([], "somebody", 1).asked.sum() == M


def test_a_pool_is_asked_for_whole_and_trained_in_part():
    pool = class_set_defences.builder(
        "pool", toy.NUM_CLASSES, M, toy.MAX_POSITIVES, size=7
    )
    request = seen.request_fn(pool, 5)
    first, second = (request([1, 2], "somebody", r) for r in (1, 2))
    np.testing.assert_array_equal(first.asked, second.asked)
    assert first.asked.sum() == 2 + 7 and first.trained.sum() == 2 + M
    assert not (first.trained & ~first.asked).any()
    # So that an intersection of what trains does what one of the requests cannot.
    assert (first.trained & second.trained).sum() < first.trained.sum()


def test_public_images_give_the_inputs_of_the_last_layer(run):
    weights = run.weights
    seen_model = seen.model_fn(run.task, most=5)(weights)
    assert len(seen_model.labels) == 5
    *_, kernel, bias, _ = map(np.asarray, weights.trainable)
    model = toy.dense_features()
    for variable, value in zip(model.trainable_variables, weights.trainable):
        variable.assign(value)
    images = next(iter(run.task.dataset.test_examples().batch(5)))["image"]
    np.testing.assert_allclose(
        seen_model.inputs @ kernel + bias,
        model(tf.cast(images, tf.float32)),
        rtol=1e-5,
        atol=1e-5,
    )


def test_a_phi_without_a_last_dense_layer_is_refused(run):
    images = tf.keras.Input(run.task.dataset.image_shape)
    phi = tf.keras.Model(images, tf.keras.layers.Flatten()(images), name="flat")
    task = tasks.Classification(run.task.dataset, lambda: phi)
    with refused("--embedding_dim=.*flat has no dense layer at its end"):
        seen.model_fn(task, most=5)


@pytest.mark.parametrize("drops_rows", [False, True])
def test_rows_below_a_threshold_do_not_clear_a_client(drops_rows):
    """A class that is missing from one of a client's sums may have been dropped."""
    rng = np.random.default_rng(0)
    positives = rng.random((20, 60)) < 0.1
    positives[:, 0] |= ~positives.any(1)
    attack = attacks.Aggregate(0, positives, 0, drops_rows)
    for _ in range(150):
        cohort = rng.permutation(20) < 6
        counts = positives[cohort].sum(0)
        present = counts >= 2
        scores, none = np.where(present, counts, 0.0), np.zeros(60)
        attack.sums.append(attacks.Sum(cohort, present, scores, none, none))
    attack.trace([150])
    own = {r["attack"]: r for r in attack.summary() if not r["control"]}
    traced = own["traced, no request"]["precision_at"]
    if drops_rows:
        assert traced > 0.6
        assert "in all its sums, no request" not in own
    else:
        assert traced < 0.4
