import collections

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tff_fedss.datasets.federated.preprocessing import Preprocessing


@pytest.fixture(scope="module")
def photographs():
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 256, (height, width, 3), np.uint8)
        for height, width in ((40, 60), (64, 64), (90, 31))
    ]


@pytest.fixture(scope="module")
def stored(photographs):
    return tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(
            image=[tf.io.encode_png(image).numpy() for image in photographs],
            label=np.arange(3, dtype=np.int32),
        )
    )


def resized(image, size):
    return np.asarray(
        Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)
    ).astype(int)


def test_the_centre_is_evaluated(photographs, stored):
    data = Preprocessing(image_size=28, resize_size=33).evaluation(stored)
    assert data.element_spec["image"] == tf.TensorSpec([28, 28, 3], tf.uint8)
    assert data.cardinality() == 3
    for i, example in enumerate(data.as_numpy_iterator()):
        assert example["label"] == i
        # Pillow's resampling antialiases too, and rounds once more in between.
        expected = resized(photographs[i], 33)[2:30, 2:30]
        np.testing.assert_allclose(example["image"].astype(int), expected, atol=1)


def test_training_takes_windows_that_the_seed_decides(photographs, stored):
    preprocessing = Preprocessing(image_size=14)
    assert preprocessing.resize_size == 16  # 256/224 of it.

    def windows(seed, data=stored):
        """The (top, left) of each example's crop."""
        found = []
        for i, example in enumerate(
            preprocessing.training(data, np.array(seed, np.int32)).as_numpy_iterator()
        ):
            whole = resized(photographs[example["label"]], 16)
            errors_at = {
                (top, left): np.abs(
                    whole[top : top + 14, left : left + 14] - example["image"]
                ).max()
                for top in range(3)
                for left in range(3)
            }
            best = min(errors_at, key=errors_at.get)
            assert errors_at[best] <= 1, (i, errors_at)
            found.append(best)
        return found

    assert windows([1, 2]) == windows([1, 2])
    seen = [windows([seed, 0]) for seed in range(40)]
    assert {w for each in seen for w in each} == {
        (top, left) for top in range(3) for left in range(3)
    }
    # Examples of one client are cut independently of each other.
    assert len({tuple(each) for each in seen}) > 30


def test_all_clients_share_one_traced_function(stored):
    """TensorFlow keeps every function that a graph has read a data set by."""
    traced = []

    def read(image):
        traced.append(image)
        return tf.io.decode_image(image, channels=3, expand_animations=False)

    preprocessing = Preprocessing(8, 10, read=read)
    seeds = [np.array([0, k], np.int32) for k in range(3)]
    crops = [
        np.stack([e["image"] for e in preprocessing.training(data, seed)])
        for seed in seeds
        for data in (stored, stored.skip(1))
    ]
    assert len(traced) == 1
    assert not np.array_equal(crops[0], crops[2])
