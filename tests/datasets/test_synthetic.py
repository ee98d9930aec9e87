"""The glyphs: deterministic, lazy, non-IID, complete, and disjoint from the test."""

import hashlib
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from tests.arrays import stack
from tff_fedss.datasets import bijection, glyph_drawing, synthetic

_SMALL = {
    "num_classes": 60,
    "mean_classes_per_client": 10,
    "num_public_classes": 7,
    "public_examples_per_class": 3,
}


def digest(dataset, backwards=False):
    """Hashes everything in a data set, visiting its clients in either order."""
    ids = dataset.train.client_ids
    parts = {k: _arrays_of(dataset, k) for k in (ids[::-1] if backwards else ids)}
    held_out = (dataset.test.data, dataset.public.data)
    visited = [*(parts[k] for k in ids), *map(stack, held_out)]
    sha = hashlib.sha256()
    for images, labels in visited:
        sha.update(images.tobytes() + labels.tobytes())
    return sha.hexdigest()


def _arrays_of(dataset, client_id):
    return stack(dataset.train.create_tf_dataset_for_client(client_id))


@pytest.fixture(scope="module")
def small():
    return synthetic.glyphs(**_SMALL, seed=5)


def test_same_bytes_in_another_process(small, server):
    other = server.run("tests.datasets.test_synthetic")  # See the end of this file.
    assert other.code == 0, other.errors
    assert other.output.strip() == digest(small)


def test_same_bytes_in_another_order_without_a_cache(small, monkeypatch):
    monkeypatch.setattr(synthetic, "_CACHE_BYTES", 0)
    again = synthetic.glyphs(**_SMALL, seed=5)
    assert digest(again, backwards=True) == digest(small)


def test_they_are_the_glyphs_of_published_runs(small):
    parts = [_arrays_of(small, k) for k in small.train.client_ids]
    parts += [stack(small.test.data), stack(small.public.data)]
    labels = np.concatenate([labels for _, labels in parts])
    assert hashlib.sha256(labels.tobytes()).hexdigest()[:16] == "8197980ac7136f5f"
    # The last bit of a curve differs between processors.
    means = [images.mean() for images, _ in parts[-3:]]
    np.testing.assert_allclose(means, [28.021, 25.314, 31.072], rtol=1e-3)


def test_another_seed_is_another_data_set(small):
    other = synthetic.glyphs(**_SMALL, seed=6)
    client = small.train.client_ids[0]
    assert set(small.positives(client)) != set(other.positives(client))
    assert stack(small.test.data)[0].tobytes() != stack(other.test.data)[0].tobytes()
    assert (
        stack(small.public.data)[0].tobytes() != stack(other.public.data)[0].tobytes()
    )


def test_positives_are_the_labels_of_the_images_for_every_client(small):
    sizes = []
    for client in small.train.client_ids:
        _, labels = _arrays_of(small, client)
        positives = small.positives(client)
        assert positives.dtype == np.int32
        np.testing.assert_array_equal(positives, np.unique(labels))
        sizes.append(len(positives))
    assert max(sizes) == small.max_positives


@pytest.mark.parametrize("num_classes", [2, 3, 17, 39, 500, 1001])
def test_every_class_is_covered_for_any_number_of_classes(num_classes):
    dataset = synthetic.glyphs(num_classes=num_classes, clients_per_class=3)
    held = [dataset.positives(k) for k in dataset.train.client_ids]
    assert min(map(len, held)) >= 1
    np.testing.assert_array_equal(
        np.bincount(np.concatenate(held)), np.full(num_classes, 3)
    )


def test_clients_differ_in_classes_and_in_sizes():
    dataset = synthetic.glyphs()
    num_positives = [len(dataset.positives(k)) for k in dataset.train.client_ids]
    assert np.mean(num_positives) == pytest.approx(20, abs=0.5)
    assert 10 <= min(num_positives) <= 15 and 25 <= max(num_positives) <= 31
    labels = [dataset.train.client_arrays(k)[1] for k in dataset.train.client_ids[:20]]
    per_class = np.concatenate([np.unique(y, return_counts=True)[1] for y in labels])
    assert set(per_class) == {3, 4, 5, 6, 7}
    # Not IID: two clients share few classes.
    shared = np.intersect1d(
        dataset.positives("client_00"), dataset.positives("client_25")
    )
    assert len(shared) < 8
    # Not sorted by class, or a batch would see one class after another.
    assert (np.diff(labels[0]) < 0).sum() > 20


def test_a_hand_marks_all_images_of_its_client():
    """Between clients, pens differ by more than between two halves of a client."""
    dataset = synthetic.glyphs()
    darkness = []
    for client in dataset.train.client_ids[:40]:
        images, _ = dataset.train.client_arrays(client)
        half = len(images) // 2
        darkness.append([images[:half].mean(), images[half:].mean()])
    first, second = np.array(darkness).T
    assert np.corrcoef(first, second)[0, 1] > 0.8


def test_test_and_public_hands_belong_to_no_client(monkeypatch):
    drawn = []
    draw = glyph_drawing.draw_hands

    def spy(rngs):
        hands = draw(rngs)
        drawn[-1].extend(hands.pens)
        return hands

    monkeypatch.setattr(glyph_drawing, "draw_hands", spy)
    dataset = synthetic.glyphs(**_SMALL, seed=5)
    images = []
    for part in (
        dataset.train.create_tf_dataset_from_all_clients(),
        dataset.test.data,
        dataset.public.data,
    ):
        drawn.append([])
        images.append(stack(part)[0])
    assert [len(hands) for hands in drawn] == [24, 20, 3]
    assert len(set().union(*drawn)) == 24 + 20 + 3
    different = {image.tobytes() for image in np.concatenate(images)}
    assert len(different) == sum(map(len, images))


def test_test_split_samples_classes_when_there_are_too_many():
    dataset = synthetic.glyphs(num_classes=5000, max_test_examples=202)
    _, labels = stack(dataset.test.data)
    classes, counts = np.unique(labels, return_counts=True)
    assert dataset.test.num_examples == len(labels) == 200
    assert set(counts) == {4}
    assert classes.max() > 4000, "a sample of all classes, not the first of them"


def test_public_classes_are_the_ones_after_the_last(small):
    images, labels = stack(small.public.data)
    np.testing.assert_array_equal(labels, np.repeat(np.arange(7), 3))
    assert small.public.num_examples == 21 and small.public.num_classes == 7
    # The same glyphs, as classes 60..66 of a data set that has them: a public image is
    # nearer to the mean of its own class there than to the mean of any other.
    more = synthetic.glyphs(**{**_SMALL, "num_classes": 67}, seed=5)
    arrays = [more.train.client_arrays(k) for k in more.train.client_ids]
    train_images = np.concatenate([a for a, _ in arrays]).astype(np.float32)
    train_labels = np.concatenate([b for _, b in arrays])
    means = np.stack([train_images[train_labels == 60 + c].mean(0) for c in range(7)])
    distance = ((images[:, None].astype(np.float32) - means) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == labels).mean() > 0.6


def test_a_million_classes_are_not_materialised(monkeypatch):
    drawn = []
    draw = glyph_drawing.draw_glyphs
    monkeypatch.setattr(
        glyph_drawing, "draw_glyphs", lambda rngs: drawn.append(len(rngs)) or draw(rngs)
    )
    tracemalloc.start()
    dataset = synthetic.glyphs(num_classes=1_000_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert dataset.num_clients == 200_000
    assert not drawn
    assert peak < 100e6
    images, labels = dataset.train.client_arrays(dataset.train.client_ids[123_456])
    assert len(drawn) == 1 and drawn[0] == len(np.unique(labels))
    assert images.shape[1:] == (28, 28, 1) and labels.max() > 100_000


@pytest.mark.parametrize("image_size", [16, 64])
def test_image_size_scales_the_drawing(small, image_size):
    dataset = synthetic.glyphs(**_SMALL, seed=5, image_size=image_size)
    client = small.train.client_ids[3]
    reference, labels = small.train.client_arrays(client)
    images, same_labels = dataset.train.client_arrays(client)
    np.testing.assert_array_equal(labels, same_labels)
    assert images.shape[1:] == dataset.image_shape == (image_size, image_size, 1)
    resized = tf.image.resize(images, [28, 28], "area").numpy()
    pairs = zip(resized, reference)
    correlations = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in pairs]
    assert min(correlations) > 0.7


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 1000, 4097, 65536])
def test_bijection_is_one(n):
    permute = bijection.Bijection(n, np.random.default_rng(n))
    image = permute(np.arange(n))
    np.testing.assert_array_equal(np.sort(image), np.arange(n))
    if n >= 1000:
        fixed = (image == np.arange(n)).sum()
        assert fixed < 10
        other = bijection.Bijection(n, np.random.default_rng(n + 1))(np.arange(n))
        assert (image == other).sum() < 10
        # Neighbours are torn apart: on average a third of n lies between them.
        assert np.abs(np.diff(image)).mean() == pytest.approx(n / 3, rel=0.1)


if __name__ == "__main__":
    print(digest(synthetic.glyphs(**_SMALL, seed=5)))
