import numpy as np
import pytest
import tensorflow as tf

from tff_fedss.datasets.central.augmentation import AUGMENTATIONS, Augmentation

SEED = (3, 4)


def images(count=40, side=7):
    generator = np.random.default_rng(0)
    return generator.integers(1, 256, (count, side, side, 3)).astype(np.uint8)


def moved(image, down, right):
    result = np.zeros_like(image)
    side = len(image)
    for y in range(side):
        for x in range(side):
            if 0 <= y - down < side and 0 <= x - right < side:
                result[y, x] = image[y - down, x - right]
    return result


def test_nothing_is_changed_by_none():
    result = AUGMENTATIONS["none"](images(), SEED)
    assert result.dtype == tf.float32
    np.testing.assert_array_equal(result, images())


def test_flips_and_moves_are_exact_and_all_of_them_occur():
    augmentation = Augmentation(horizontal_flip=True, vertical_flip=True, shift=1)
    seen = set()
    before = images(300)
    after = augmentation(before, SEED).numpy()
    for image, result in zip(before, after):
        matches = [
            (flip_y, flip_x, down, right)
            for flip_y in (1, -1)
            for flip_x in (1, -1)
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
            if np.allclose(
                result, moved(image[::flip_y, ::flip_x], down, right), atol=1e-3
            )
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) == 36


def test_a_flip_alone_moves_nothing():
    before = images(60, side=8)
    after = Augmentation(horizontal_flip=True)(before, SEED).numpy()
    is_same = np.isclose(after, before, atol=1e-3).all((1, 2, 3))
    is_mirrored = np.isclose(after, before[:, :, ::-1], atol=1e-3).all((1, 2, 3))
    assert (is_same ^ is_mirrored).all()
    assert 15 < is_same.sum() < 45


def test_rotations_keep_the_middle_and_stay_below_their_limit():
    # A bright pixel at distance 10 right of the middle goes round by at most 15
    # degrees.
    bright = np.zeros([200, 31, 31, 1], np.uint8)
    bright[:, 15, 25] = bright[:, 15, 15] = 255
    result = Augmentation(rotation=15.0)(bright, SEED).numpy()[..., 0]
    np.testing.assert_allclose(result[:, 15, 15], 255, atol=1e-2)
    right = result[:, :, 20:]
    rows = (right * np.arange(31)[:, np.newaxis]).sum((1, 2)) / right.sum((1, 2))
    degrees = np.degrees(np.arcsin((rows - 15) / 10))
    assert np.abs(degrees).max() < 16 and degrees.min() < -12 and degrees.max() > 12


@pytest.mark.parametrize("name", ["flip_crop", "flips_crop_rotation"])
def test_changes_follow_from_the_seed(name):
    augmentation = AUGMENTATIONS[name]
    first, again = (augmentation(images(), SEED) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first != augmentation(images(), (3, 5))).numpy().any((1, 2, 3)).mean() > 0.9
