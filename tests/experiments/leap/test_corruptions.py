"""What LEAP's programs do to images and labels, beside a count of it."""

import numpy as np
import pytest
import scipy.stats

from experiments.leap import corruptions
from tff_fedss.datasets.central import labelled_images
from tff_fedss.errors import InvalidInputError


def test_label_noise_makes_a_share_of_the_labels_wrong():
    data = ten_digits()
    assert not data.marked
    noisy = corruptions.with_label_noise(data, 0.4, seed=1)
    is_wrong = noisy.train_labels != data.train_labels
    np.testing.assert_array_equal(noisy.marked["mislabelled"], is_wrong)
    assert is_wrong.sum() == round(0.4 * len(data.train_labels))
    # To all other classes alike, within what so few draws allow.
    many = [corruptions.with_label_noise(data, 0.9, seed=s) for s in range(60)]
    moves = np.concatenate(
        [(m.train_labels - data.train_labels)[m.marked["mislabelled"]] for m in many]
    )
    counts = np.bincount(moves % data.num_classes, minlength=data.num_classes)
    assert counts[0] == 0 and scipy.stats.chisquare(counts[1:]).pvalue > 1e-4
    np.testing.assert_array_equal(noisy.test_labels, data.test_labels)
    np.testing.assert_array_equal(
        noisy.train_labels, corruptions.with_label_noise(data, 0.4, seed=1).train_labels
    )
    assert "40% of the training labels are wrong" in noisy.summary()
    assert noisy.fingerprint() != data.fingerprint()


def ten_digits():
    """Images of noise, no two alike."""
    generator = np.random.default_rng(0)
    train_labels, test_labels = (generator.integers(0, 10, n) for n in (400, 50))
    return labelled_images.LabelledImages(
        "digits",
        tuple("0123456789"),
        generator.integers(0, 256, (400, 6, 5, 1)).astype(np.uint8),
        train_labels.astype(np.int32),
        generator.integers(0, 256, (50, 6, 5, 1)).astype(np.uint8),
        test_labels.astype(np.int32),
    )


def test_merged_classes_have_a_long_tail():
    data = ten_digits()
    tail = corruptions.with_subclasses(data, 2, 16.0, seed=1)
    assert tail.class_names == ("0+2+4+6+8", "1+3+5+7+9")
    # Each image is still itself: the digit that it shows is the label that it had.
    digits = {image.tobytes(): label for image, label in zip(*train(data))}
    subclasses = np.array([digits[image.tobytes()] for image in tail.train_images])
    np.testing.assert_array_equal(tail.train_labels, subclasses % 2)
    np.testing.assert_array_equal(tail.test_labels, data.test_labels % 2)
    most = np.bincount(data.train_labels).min()
    expected = [round(most * 16 ** -(rank / 4)) for rank in range(5)]
    sizes = np.bincount(subclasses, minlength=10)
    assert sizes[::2].tolist() == sizes[1::2].tolist() == expected
    np.testing.assert_array_equal(tail.marked["rare"], subclasses >= 6)
    np.testing.assert_array_equal(tail.test_is_rare, data.test_labels >= 6)
    assert "10 subclasses, the largest 16 times the smallest" in tail.summary()
    other = corruptions.with_subclasses(data, 2, 16.0, seed=2)
    assert other.fingerprint() != tail.fingerprint()
    # Where n is no multiple, the classes have 4, 3 and 3 subclasses.
    three = corruptions.with_subclasses(data, 3, 4.0, seed=1)
    assert three.class_names == ("0+3+6+9", "1+4+7", "2+5+8")
    counts = np.bincount(three.train_labels).tolist()
    shares = ([1, 4 ** (-1 / 3), 4 ** (-2 / 3), 1 / 4], [1, 1 / 2, 1 / 4])
    assert counts[0] == sum(round(most * share) for share in shares[0])
    assert counts[1] == counts[2] == sum(round(most * share) for share in shares[1])
    with pytest.raises(InvalidInputError, match=r"merge_classes=6 must be in 2\.\.5"):
        corruptions.with_subclasses(data, 6, 1.0, seed=0)


def train(data):
    return data.train_images, data.train_labels.tolist()


def test_near_duplicates_take_the_place_of_others():
    data = ten_digits()
    many = corruptions.with_near_duplicates(data, 0.8, seed=1)
    is_copied = many.marked["copied"]
    count = len(data.train_labels)
    assert len(many.train_labels) == count and is_copied.sum() == round(0.8 * count)
    for ours, theirs in zip(train(many), train(data)):
        np.testing.assert_array_equal(
            np.array(ours)[~is_copied], np.array(theirs)[~is_copied]
        )
    # Each copy is one of the others, moved by at most a pixel, with at most 8 of noise.
    others, labels = many.train_images[~is_copied], many.train_labels[~is_copied]
    padded = np.pad(others.astype(int), ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    moved = np.stack(
        [
            padded[:, y : y + others.shape[1], x : x + others.shape[2]]
            for y in range(3)
            for x in range(3)
        ],
        1,
    )
    sources = []
    for image, label in zip(many.train_images[is_copied], many.train_labels[is_copied]):
        distance = np.abs(moved - image).max((2, 3, 4)).min(1)
        (source,) = np.flatnonzero(distance <= 8)
        assert labels[source] == label
        sources.append(source)
    assert set(np.unique(sources, return_counts=True)[1]) == {20}
    assert (many.train_images[is_copied] != others[sources]).any((1, 2, 3)).all()
    with pytest.raises(InvalidInputError, match="near_duplicates=0.99 leaves"):
        corruptions.with_near_duplicates(data, 0.99, seed=1)
