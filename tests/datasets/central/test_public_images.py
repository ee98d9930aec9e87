import numpy as np
import pytest

from tff_fedss.datasets.central import public_images
from tff_fedss.errors import InvalidInputError


def source(name, num_classes, per_class, shape=(2, 2, 3), offset=0):
    """Images whose pixels are the number of their class, plus an offset."""
    labels = np.tile(np.arange(num_classes, dtype=np.int32), per_class)
    images = np.broadcast_to(
        (labels + offset)[:, None, None, None], (len(labels), *shape)
    )
    return public_images.Source(name, images.astype(np.uint8), labels, num_classes)


def test_sources_follow_each_other_and_no_class_is_lost():
    data = public_images.put_together([source("a", 3, 4), source("b", 2, 5, offset=9)])
    assert data.num_classes == 5
    assert len(data.probe_labels) == 0
    pixels = data.train_images[:, 0, 0, 0]
    expected = {0: 0, 1: 1, 2: 2, 3: 9, 4: 10}
    assert [expected[label] for label in data.train_labels] == list(pixels)
    assert data.train_labels.dtype == np.int32
    assert "a (3 classes, 12 images) and b (2 classes, 10 images)" in data.summary()


def test_what_the_probe_has_is_not_trained():
    sources = [source("a", 10, 4), source("b", 2, 5, offset=100)]
    data = public_images.put_together(sources, num_probe_classes=3, seed=1)
    trained = set(data.train_images[:, 0, 0, 0])
    probed = set(data.probe_images[:, 0, 0, 0])
    assert len(probed) == 3 and probed < set(range(10))
    assert trained == set(range(10)) - probed | {100, 101}
    assert sorted(set(data.probe_labels)) == [0, 1, 2]
    assert (
        sorted(set(data.train_labels))
        == list(range(9))
        == list(range(data.num_classes))
    )
    again = public_images.put_together(sources, num_probe_classes=3, seed=1)
    assert again.fingerprint() == data.fingerprint()
    other = public_images.put_together(sources, num_probe_classes=3, seed=2)
    assert set(other.probe_images[:, 0, 0, 0]) != probed


def test_what_does_not_go_together_is_refused():
    with pytest.raises(
        InvalidInputError, match="num_probe_classes=2 must be at least 0"
    ):
        public_images.put_together([source("a", 3, 4)], num_probe_classes=2)
