"""Random changes of images and two views, against NumPy, SciPy, colorsys and Pillow."""

import colorsys
import itertools

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from scipy import ndimage

from tests.arrays import assert_same
from tff_fedss.datasets.central import augmentation

LABELS = np.arange(11)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, size=[11, 12, 14, 3], dtype=np.uint8)


def first(batches, count):
    return [tuple(part.numpy() for part in batch) for batch in batches.take(count)]


def test_what_was_left_off_goes_on_as_if_it_had_not_been(images):
    views = augmentation.TwoViews(8, blur=True)
    whole = first(views.batches(images, LABELS, 4, seed=3), 6)  # Three epochs.
    rest = first(views.batches(images, LABELS, 4, seed=3, num_done=3), 3)
    assert_same(itertools.chain(*whole[3:]), itertools.chain(*rest))
    assert whole[0][0].shape == (4, 8, 8, 3) and whole[0][0].dtype == np.uint8


def test_seeds_epochs_and_views_differ(images):
    views = augmentation.TwoViews(8, blur=False)
    four = images[:4], LABELS[:4]
    (query, key, _), (second, *_) = first(views.batches(*four, 4, seed=0), 2)
    ((other, *_),) = first(views.batches(*four, 4, seed=1), 1)
    for a, b in ((query, key), (query, second), (query, other)):
        # In no order are these the same views.
        assert not np.array_equal(np.sort(a, 0), np.sort(b, 0))


def test_an_epoch_takes_each_image_once_for_both_views(monkeypatch):
    # Images of one colour each can be distinguished after a crop.
    monkeypatch.setattr(augmentation, "distort", lambda images, draws, *, blur: images)
    levels = np.arange(10, dtype=np.uint8) * 25
    images = np.broadcast_to(levels[:, None, None, None], [10, 8, 8, 3]).copy()
    views = augmentation.TwoViews(8, blur=False)
    seen = []
    batches = views.batches(images, np.arange(10), 3, seed=0)
    for query, key, labels in first(batches, 6):
        np.testing.assert_array_equal(query[:, 0, 0, 0], levels[labels])
        np.testing.assert_array_equal(query, key)
        assert (query == query[:, :1, :1, :1]).all()
        seen += list(query[:, 0, 0, 0])
    one, two = seen[:9], seen[9:]
    for epoch in (one, two):
        assert len(set(epoch)) == 9 and set(epoch) <= set(levels)
    assert one != two


def test_crops_have_the_areas_and_ratios_that_were_asked_for():
    data = tf.data.Dataset.range(3000).map(
        lambda seed: augmentation.random_box(80, 90, [tf.cast(seed, tf.int32), 0])
    )
    boxes = np.stack(list(data.as_numpy_iterator()))
    top, left, height, width = boxes.T
    assert (boxes >= 0).all()
    assert (top + height <= 80).all() and (left + width <= 90).all()
    area = height * width / (80 * 90)
    ratio = width / height
    assert 0.19 < area.min() < 0.22 and 0.95 < area.max() <= 1
    assert 0.73 < ratio.min() < 0.77 and 1.30 < ratio.max() < 1.37
    # All ratios are as likely on a logarithmic scale while they fit.
    small = area < 0.6
    assert abs(np.log(ratio[small]).mean()) < 0.02
    for start, room in ((top, 80 - height), (left, 90 - width)):
        share = start[room > 5] / room[room > 5]
        assert abs(share.mean() - 0.5) < 0.03
        assert share.min() == 0 and share.max() == 1


def test_a_crop_is_resized_as_pillow_does(images):
    views = augmentation.TwoViews(5, blur=False)
    for seed in range(5):
        top, left, height, width = augmentation.random_box(12, 14, [seed, 1]).numpy()
        box = (left, top, left + width, top + height)
        part = Image.fromarray(images[0]).crop(box)
        expected = np.asarray(part.resize((5, 5), Image.Resampling.BILINEAR))
        ours = 255 * views.crop(images[0], tf.constant([seed, 1])).numpy()
        np.testing.assert_allclose(ours, expected, atol=1.01)


def column(values):
    return tf.constant(values, tf.float32)[:, None, None, None]


def gray(pixel):
    return pixel @ np.array([0.299, 0.587, 0.114])


def jittered(image, brightness, contrast, saturation, hue):
    """One image, pixel by pixel, in float64."""
    image = np.clip(np.float64(image) * brightness, 0, 1)
    mean = gray(image).mean()
    image = np.clip(mean + contrast * (image - mean), 0, 1)
    level = gray(image)[..., np.newaxis]
    image = np.clip(level + saturation * (image - level), 0, 1)
    result = np.empty_like(image)
    for place in np.ndindex(image.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*image[place])
        result[place] = colorsys.hsv_to_rgb((h + hue) % 1.0, s, v)
    return result


def test_colour_jitter_is_that_of_a_pixel_at_a_time(images):
    stack = images[:4].astype(np.float32) / 255
    parameters = np.array(
        [[1, 1, 1, 0], [1.4, 0.6, 1.4, 0.1], [0.6, 1.4, 0.6, -0.1], [0.8, 1.1, 1.2, 0]]
    )
    ours = augmentation.jitter(stack, *map(column, parameters.T))
    for image, row, found in zip(stack, parameters, ours, strict=True):
        np.testing.assert_allclose(found, jittered(image, *row), atol=2e-5)
    np.testing.assert_allclose(ours[0], stack[0], atol=1e-5)


def test_each_image_is_blurred_by_its_own_sigma(images):
    stack = images[:3].astype(np.float32) / 255
    sigmas = [0.1, 0.9, 2.0]
    ours = augmentation.gaussian_blur(stack, column(sigmas))
    for image, sigma, found in zip(stack, sigmas, ours, strict=True):
        expected = ndimage.gaussian_filter(
            np.float64(image), (sigma, sigma, 0), mode="mirror", truncate=6 / sigma
        )
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_draw_decides_each_part_alone(images):
    stack = np.repeat(images[:1].astype(np.float32) / 255, 5, 0)
    # At its share jitter, grayscale, blur and flip are off; below, a row turns one on.
    draws = np.tile(np.float32([0.8, 0, 0.25, 0.75, 1, 0.2, 0.5, 0.5, 0.5]), [5, 1])
    draws[1, 8] = 0.49  # flip
    draws[2, 5] = 0.19  # grayscale
    draws[3, 6] = 0.49  # blur
    draws[4, 0] = 0.79  # jitter
    same, flipped, grey, blurred, other = augmentation.distort(stack, draws, blur=True)
    np.testing.assert_array_equal(same, stack[0])
    np.testing.assert_array_equal(flipped, stack[0, :, ::-1])
    np.testing.assert_allclose(grey[..., 0], gray(stack[0]), atol=1e-6)
    np.testing.assert_array_equal(grey[..., 0], grey[..., 2])
    sigma = 0.1 + 0.5 * 1.9
    np.testing.assert_allclose(
        blurred, augmentation.gaussian_blur(stack[:1], column([sigma]))[0], atol=1e-6
    )
    factors = map(column, ([0.6], [0.8], [1.2], [0.1]))
    expected = augmentation.jitter(stack[:1], *factors)[0]
    np.testing.assert_allclose(other, expected, atol=1e-5)
    sharp = augmentation.distort(stack, draws, blur=False)
    np.testing.assert_array_equal(sharp[3], stack[0])


SEED = (3, 4)


def batch(count=40, side=7):
    generator = np.random.default_rng(0)
    return generator.integers(1, 256, (count, side, side, 3)).astype(np.uint8)


def test_flips_and_moves_are_exact_and_all_of_them_occur():
    change = augmentation.Augmentation(True, True, shift=1)
    seen = set()
    before = batch(300)
    after = change(before, SEED).numpy()
    for image, result in zip(before, after):
        matches = [
            (flip_y, flip_x, down, right)
            for flip_y in (1, -1)
            for flip_x in (1, -1)
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
            if np.allclose(
                result,
                ndimage.shift(image[::flip_y, ::flip_x], (down, right, 0), order=0),
                atol=1e-3,
            )
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) == 36


def test_rotations_keep_the_middle_and_stay_below_their_limit():
    # A bright pixel at distance 10 right of the middle goes round by at most 15
    # degrees.
    bright = np.zeros([200, 31, 31, 1], np.uint8)
    bright[:, 15, 25] = bright[:, 15, 15] = 255
    result = augmentation.Augmentation(rotation=15.0)(bright, SEED).numpy()[..., 0]
    np.testing.assert_allclose(result[:, 15, 15], 255, atol=1e-2)
    right = result[:, :, 20:]
    rows = (right * np.arange(31)[:, np.newaxis]).sum((1, 2)) / right.sum((1, 2))
    degrees = np.degrees(np.arcsin((rows - 15) / 10))
    assert np.abs(degrees).max() < 16 and degrees.min() < -12 and degrees.max() > 12


@pytest.mark.parametrize("name", ["flip_crop", "flips_crop_rotation"])
def test_changes_follow_from_the_seed(name):
    change = augmentation.AUGMENTATIONS[name]
    first, again = (change(batch(), SEED) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first != change(batch(), (3, 5))).numpy().any((1, 2, 3)).mean() > 0.9
