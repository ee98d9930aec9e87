import functools
import re

import numpy as np
import pytest
import tensorflow_federated as tff
from PIL import Image

from tests.refusals import refused
from tff_fedss import metrics, models, runtime, tasks
from tff_fedss.datasets.central import identities
from tff_fedss.datasets.central.lfw_pairs import LfwPairs

PEOPLE = {"Ann_A": 3, "Bob": 2, "Cy": 2}
LINES = [
    "2\t2",
    "Ann_A\t1\t3",
    "Bob\t1\t2",
    "Ann_A\t2\tBob\t1",
    "Bob\t2\tCy\t1",
    "Cy\t1\t2",
    "Ann_A\t1\t2",
    "Cy\t2\tAnn_A\t1",
    "Cy\t1\tBob\t1",
]


@pytest.fixture
def folder(tmp_path):
    """Images of one gray each, by which a person is known."""
    for p, (name, count) in enumerate(PEOPLE.items()):
        (tmp_path / name).mkdir()
        for i in range(1, count + 1):
            gray = np.full((20, 20), 80 * p + 5 * i, np.uint8)
            Image.fromarray(gray).save(tmp_path / name / f"{name}_{i:04d}.png")
    (tmp_path / "pairs.txt").write_text("\n".join(LINES) + "\n")
    return tmp_path


def test_the_list_is_read_and_the_images_are_those_it_names(folder):
    pairs = LfwPairs(folder / "pairs.txt", folder, image_size=16)
    assert pairs.num_folds == 2 and pairs.num_images == 7
    np.testing.assert_array_equal(pairs.is_same, [1, 1, 0, 0, 1, 1, 0, 0])
    images = pairs.images(0, 7)
    assert images.shape == (7, 16, 16, 3) and images.dtype == np.uint8
    grays = images[:, 0, 0, 0]
    first, second = grays[pairs.first], grays[pairs.second]
    # Ann 1, Bob 1, Ann 2, Bob 2, Cy 1, Ann 1, Cy 2, Cy 1
    np.testing.assert_array_equal(first, [5, 85, 10, 90, 165, 5, 170, 165])
    np.testing.assert_array_equal(second, [15, 90, 85, 165, 170, 10, 5, 85])
    same = LfwPairs(folder / "pairs.txt", folder, image_size=16)
    assert pairs.fingerprint() == same.fingerprint()


def test_images_are_read_as_those_of_the_data_are(folder):
    path = folder / "Ann_A/Ann_A_0001.png"
    pairs = LfwPairs(folder / "pairs.txt", folder, image_size=16)
    Image.fromarray(np.full((20, 20), 40_000, np.uint16)).save(path)
    assert (pairs.images(0, 1) == 40_000 >> 8).all()
    noise = np.random.default_rng(0).integers(256, size=(300, 300, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    content = path.read_bytes()
    path.write_bytes(content[:60_000] + content[60_000:].replace(b"IDAT", b"\1\2\3\4"))
    with refused("Ann_A_0001.png is cut off or damaged"):
        pairs.images(0, 1)


def test_the_folds_are_measured_beside_the_data_s_own_pairs(folder):
    pairs = LfwPairs(folder / "pairs.txt", folder, image_size=16)
    images = np.random.default_rng(0).integers(
        256, size=(12, 16, 16, 3), dtype=np.uint8
    )
    labels = np.repeat(np.arange(4), 3)
    data = identities.ArrayIdentities("noise", (images, labels), (images, labels))
    task = tasks.IdentityVerification(
        data,
        functools.partial(models.small_cnn, (16, 16, 3), 4),
        logit_scale=30.0,
        batch_size=4,
        seed=0,
        lfw=pairs,
    )
    encoder = task.encoder()
    w = models.ShardedMatrix(["/CPU:0"], runtime.balanced_bounds(4, 1), 4)
    w.write(0, np.eye(4, dtype=np.float32))
    values = [v.numpy() for v in encoder.trainable_variables]
    results = task.evaluate(
        tff.learning.models.ModelWeights(trainable=[*values, w], non_trainable=[])
    )
    features = encoder(pairs.images(0, 7), (), training=False)[0].numpy()
    cosines = metrics.pair_cosines(
        features, metrics.Pairs(pairs.first, pairs.second, pairs.is_same)
    )
    folds = metrics.fold_accuracies(cosines, pairs.is_same, 2)
    assert results["lfw_accuracy"] == pytest.approx(folds.mean())
    assert results["lfw_std"] == pytest.approx(folds.std(ddof=1))
    assert set(pairs.fingerprint()) < set(task.fingerprint())


def fourth(line):
    return lambda lines: [*lines[:3], line, *lines[4:]]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda lines: lines[:-1], "and 7 pairs; expected"),
        (fourth("Ann_A\t2\tBob"), "between, found 'Ann_A 2 Bob'"),
        (fourth("Bob\t2\tBob\t1"), "pairs.txt:4: expected NAME"),
        (fourth("Dee\t2\tBob\t1"), "Dee_0002 (.jpg"),
        (
            lambda lines: ["2\t2", "", "Ann_A\t\t1", *lines[2:]],
            "pairs.txt:3: expected NAME",
        ),
        (lambda lines: ["1\t4", *lines[1:]], "number of folds, 2 or more"),
        (lambda lines: ["0\t4"], "number of folds, 2 or more"),
        (lambda lines: [lines[0], *[lines[1]] * 8], "8 of 8 pairs are of one person"),
    ],
)
def test_a_list_that_is_wrong_is_refused(folder, change, message):
    (folder / "pairs.txt").write_text("\n".join(change(LINES)))
    with refused(re.escape(message)):
        LfwPairs(folder / "pairs.txt", folder, image_size=16)
