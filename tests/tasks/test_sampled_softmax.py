import functools
import itertools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.arrays import assert_same
from tff_fedss import losses, metrics, models, runtime, tasks
from tff_fedss.datasets.central import extreme, identities, penn_treebank
from tff_fedss.errors import InvalidInputError


def classifier(rows):
    bounds = runtime.balanced_bounds(len(rows), 2)
    matrix = models.ShardedMatrix(["/CPU:0"] * 2, bounds, rows.shape[1])
    matrix.write(0, rows)
    return matrix


@pytest.fixture(scope="module")
def task():
    """Points near one of six corners; the identities of the tests are the same."""
    return verification(np.repeat(np.arange(6), 5))


def verification(labels):
    corners = np.eye(6, 8, dtype=np.float32)
    noise = np.random.default_rng(0).normal(scale=0.05, size=(len(labels), 8))
    examples = (corners[labels] + noise).astype(np.float32)
    data = identities.ArrayIdentities("corners", (examples, labels), (examples, labels))
    return tasks.IdentityVerification(
        data,
        functools.partial(models.mlp, (8,), 4),
        logit_scale=30.0,
        batch_size=7,
        seed=0,
    )


def weights(task, w):
    """An encoder that keeps the first four coordinates, and W."""
    hidden, first_bias, dense, bias = (
        np.zeros(v.shape, np.float32) for v in task.encoder().trainable_variables
    )
    np.fill_diagonal(hidden, 1.0)
    np.fill_diagonal(dense[:4], 1.0)
    return tff.learning.models.ModelWeights(
        trainable=[hidden, first_bias, dense, bias, classifier(w)], non_trainable=[]
    )


def test_the_features_of_the_tests_are_measured(task):
    results = task.evaluate(weights(task, np.eye(6, 4, dtype=np.float32)))
    assert set(results) == {"tar_at_far", "pair_accuracy", "map_at_r", "top1"}
    examples, labels = task.dataset.test_examples(0, 30), task.dataset.test_labels
    features = np.maximum(examples, 0)[:, :4]
    pairs = metrics.draw_pairs(labels, 6000, 0)
    cosines = metrics.pair_cosines(features, pairs)
    for name, expected in (
        ("tar_at_far", metrics.tar_at_far(cosines, pairs.is_same, 1e-3)),
        ("pair_accuracy", metrics.fold_accuracies(cosines, pairs.is_same).mean()),
        ("map_at_r", metrics.map_at_r(features, labels, 4)),
    ):
        assert results[name] == pytest.approx(expected, abs=1e-3)
    # Corners 0 to 3 have features and rows of their own; 4 and 5 have rows of zeros,
    # which are never the nearest.
    assert results["top1"] == pytest.approx(4 / 6)
    assert results["pair_accuracy"] > 0.8


def test_features_that_are_not_finite_end_a_run_as_diverged(task):
    huge = weights(task, np.eye(6, 4, dtype=np.float32))
    huge.trainable[2][:4] = np.inf
    assert np.isnan(task.evaluate(huge)[task.metric])


def test_an_image_without_another_of_its_identity_is_no_query():
    task = verification(np.array([0, 0, 1, 1, 2, 3]))
    results = task.evaluate(weights(task, np.eye(4, dtype=np.float32)))
    assert results["map_at_r"] == 1


def test_half_of_the_training_images_are_mirrored():
    images = np.random.default_rng(0).integers(256, size=(40, 4, 6, 3), dtype=np.uint8)
    labels = np.arange(40) // 4
    data = identities.ArrayIdentities("noise", (images, labels), (images, labels))

    def batches_of(flip):
        return tasks.IdentityVerification(
            data,
            functools.partial(models.mlp, (4 * 6 * 3,), 4),
            logit_scale=30.0,
            batch_size=40,
            seed=0,
            flip=flip,
        ).batches(0)

    mirrored = 0
    plain, flipped, again = batches_of(False), batches_of(True), batches_of(True)
    for _ in range(5):
        (a, labels), (b, same), (c, _) = next(plain), next(flipped), next(again)
        np.testing.assert_array_equal(labels, same)
        np.testing.assert_array_equal(b, c)
        is_mirrored = (b == a[:, :, ::-1]).all((1, 2, 3))
        np.testing.assert_array_equal((b == a).all((1, 2, 3)), ~is_mirrored)
        mirrored += is_mirrored.sum()
    assert 70 < mirrored < 130  # Of 200: 4 standard deviations.


def test_mini_batches_resume_where_they_were(task):
    batches = task.batches(0)
    first = [next(batches) for _ in range(5)]
    again = task.batches(3)
    for batch in first[3:]:
        assert_same(batch, next(again))
    assert len(first[0][1]) == 7 and task.num_classes == 6 and task.embedding_dim == 4


OPTIONS = {"embedding_dim": 2, "logit_scale": 1.0, "batch_size": 4, "seed": 0}


def test_a_text_is_read_in_parts_and_its_perplexity_is_that_of_long_ones():
    text = np.random.default_rng(0).integers(9, size=300).astype(np.int32)
    task = tasks.LanguageModel(
        penn_treebank.PennTreebank(text[:31], text, text, words=list("abcdefghi")),
        num_steps=3,
        num_units=4,
        validation_words=243,
        **OPTIONS | {"logit_scale": 5.0},
    )
    batches = list(itertools.islice(task.batches(0), 4))
    starts = 7 * np.arange(4)[:, np.newaxis] + np.arange(3)  # 30 // 4 words a part.
    for i, (inputs, labels) in enumerate(batches):
        np.testing.assert_array_equal(inputs["tokens"], text[starts + 3 * (i % 2)])
        np.testing.assert_array_equal(labels, text[starts + 3 * (i % 2) + 1].ravel())
        assert inputs["keep"] == i % 2
    np.testing.assert_array_equal(next(task.batches(3))[1], batches[3][1])

    encoder = task.encoder()
    for variable in encoder.trainable_variables:
        variable.assign(5 * variable)  # Or the state would hardly matter.
    w = np.random.default_rng(1).normal(size=(9, 2)).astype(np.float32)
    inputs = {"tokens": text[:240].reshape(4, 60), "keep": 1.0}
    features, _ = encoder(inputs, encoder.initial_carry, training=False)
    loss = losses.softmax_loss(models.cosine_logits(features, w, 5.0), text[1:241])
    values = [variable.numpy() for variable in encoder.trainable_variables]
    measured = task.evaluate(tff.learning.models.ModelWeights([*values, w], []))
    assert measured == {"perplexity": pytest.approx(np.exp(np.mean(loss)), rel=1e-5)}


def test_a_row_is_in_each_epoch_once_with_one_of_its_labels():
    labels = [[2, 0], [], [1], [3, 1, 0]]
    rows = extreme.SparseRows(
        np.arange(4, dtype=np.int32),
        np.ones(4, np.float32),
        np.arange(5),
        np.concatenate(labels).astype(np.int32),
        np.cumsum([0, *map(len, labels)]),
    )
    task = tasks.ExtremeClassification(
        extreme.ExtremeDataset(rows, rows, 4, 4),
        mask_positives=True,
        **OPTIONS | {"batch_size": 2},
    )
    batches = list(itertools.islice(task.batches(0), 40))
    seen = set()
    for epoch in zip(batches[::2], batches[1::2], strict=True):
        ids = np.concatenate([inputs["ids"] for inputs, _, _ in epoch])
        assert sorted(ids) == [0, 2, 3]
        for inputs, targets, others in epoch:
            for row, target, own in zip(inputs["ids"], targets, others, strict=True):
                assert sorted([target, *own[own >= 0]]) == sorted(labels[row])
                seen.add((row, target))
    assert len(seen) == 6
    assert_same(next(task.batches(39))[1:], batches[39][1:])


@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_text_that_is_too_short(part):
    long, short = (np.zeros(count, np.int32) for count in (200, 20))
    texts = {"train": long, "valid": long, "test": long, part: short}
    name = {"train": "training", "valid": "validation"}[part]
    with pytest.raises(InvalidInputError, match=f"than the 20 words of the {name}"):
        tasks.LanguageModel(
            penn_treebank.PennTreebank(**texts, words=["a"]),
            num_steps=5,
            num_units=2,
            **OPTIONS,
        )


@pytest.mark.parametrize("part", ["training", "test"])
def test_rows_without_labels(part):
    def rows(num_labels):
        return extreme.SparseRows(
            np.zeros(1, np.int32),
            np.ones(1, np.float32),
            np.array([0, 1]),
            np.zeros(num_labels, np.int32),
            np.array([0, num_labels]),
        )

    data = extreme.ExtremeDataset(
        rows(int(part == "test")), rows(int(part != "test")), 2, 2
    )
    with pytest.raises(InvalidInputError, match=f"no {part} row has a label"):
        tasks.ExtremeClassification(data, **OPTIONS)
