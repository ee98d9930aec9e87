"""Omniglot: every layout of its files, every way in which they can be wrong."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from scipy import ndimage
from scipy.sparse import csgraph

from tests.arrays import stack
from tests.datasets.images import own_images
from tests.refusals import refused
from tff_fedss.datasets import omniglot

# A miniature drawing has 5x5 pixels which spell out its number in binary, so that a
# test can tell from an image alone which drawing it is.
_SIDE = 5
_BITS = 2 ** np.arange(_SIDE * _SIDE)


def _number(character, drawer):
    return (character - 1) * 20 + drawer - 1


def _ink(number):
    return ((number & _BITS) > 0).reshape(_SIDE, _SIDE)


def _png(number):
    return own_images.encoded(Image.fromarray(~_ink(number)))


def _path(character, drawer):
    # 30 alphabets of background characters, then 20 of evaluation characters.
    if character <= 964:
        alphabet = (character - 1) * 30 // 964
    else:
        alphabet = 30 + (character - 965) * 20 // 659
    return f"Alphabet_{alphabet:02}/character01/{character:04}_{drawer:02}.png"


def _numbers(images):
    assert set(np.unique(images)) <= {0, 255}
    return (images.reshape(len(images), -1) > 0) @ _BITS


@pytest.fixture(scope="module")
def two_drawers():
    """The files of two of the twenty drawers: path below the root -> content."""
    keys = itertools.product(range(1, 1624), (1, 2))
    return {_path(*key): _png(_number(*key)) for key in keys}


@pytest.fixture
def miniature(two_drawers, monkeypatch):
    """Makes Omniglot a tenth of its size: what two of its twenty drawers drew."""
    monkeypatch.setattr(omniglot, "NUM_DRAWERS", 2)
    monkeypatch.setattr(omniglot, "NUM_DRAWINGS", 2 * 1623)
    return two_drawers


def _assert_all_drawings(drawings):
    keys = list(itertools.product(range(1, 1624), (1, 2)))
    characters, drawers = np.array(keys).T
    np.testing.assert_array_equal(_numbers(drawings.images), _number(*np.array(keys).T))
    np.testing.assert_array_equal(drawings.characters, characters)
    np.testing.assert_array_equal(drawings.drawers, drawers)
    alphabets = [_path(*key).split("/")[0] for key in keys]
    np.testing.assert_array_equal(drawings.alphabets, alphabets)


def _train(dataset):
    """The images and the labels of all clients."""
    clients = [dataset.train.client_arrays(k) for k in dataset.train.client_ids]
    return [np.concatenate(parts) for parts in zip(*clients)]


# Layouts.


def test_reads_an_archive_by_its_folder_and_by_its_own_path(miniature, tmp_path):
    ignored = {
        ".DS_Store": b"1",
        "resize_images.py": b"2",
        "Alphabet_03/character01/Thumbs.db": b"3",
        "__MACOSX/Alphabet_03/character01/._0101_01.png": b"4",
    }
    files = {f"resized/{k}": v for k, v in {**ignored, **miniature}.items()}
    path = own_images.write(tmp_path / "omniglot_resized.tar.gz", files)
    _assert_all_drawings(omniglot.read_drawings(tmp_path, _SIDE))
    _assert_all_drawings(omniglot.read_drawings(str(path), _SIDE))


def test_the_original_zips_from_a_folder_or_tfds(miniature, tmp_path, monkeypatch):
    parts = {name: {} for name in omniglot._ZIPS}
    for path, content in miniature.items():
        name = omniglot._ZIPS[int(path[-11:-7]) > 964]
        parts[name][f"{name.removesuffix('.zip')}/{path}"] = content
    zips = [own_images.write(tmp_path / name, parts[name]) for name in parts]
    subset = {f"images_background_small1/{_path(5, 2)}": miniature[_path(5, 2)]}
    own_images.write(tmp_path / "images_background_small1.zip", subset)
    (tmp_path / "LICENSE").write_text("MIT")
    (tmp_path / f"._{omniglot._ZIPS[0]}").write_bytes(b"of macOS")
    _assert_all_drawings(omniglot.read_drawings(tmp_path, _SIDE))

    def download(self, urls):
        assert [url.rpartition("/")[2] for url in urls] == list(omniglot._ZIPS)
        return zips

    monkeypatch.setattr(tfds.download.DownloadManager, "download", download)
    _assert_all_drawings(omniglot.read_drawings(None, _SIDE))


def test_reads_a_folder_of_drawings_and_no_archive_beside_them(miniature, tmp_path):
    own_images.write(tmp_path / "python" / "images", miniature)
    (tmp_path / "old.zip").write_bytes(b"not read, as there are drawings")
    _assert_all_drawings(omniglot.read_drawings(tmp_path, _SIDE))


def test_an_empty_data_dir_is_not_the_current_folder():
    with refused("`data_dir` must name a folder"):
        omniglot.read_drawings("", _SIDE)


def test_larger_drawings_are_averaged_over_areas(monkeypatch):
    monkeypatch.setattr(omniglot, "NUM_CHARACTERS", 1)
    monkeypatch.setattr(omniglot, "NUM_DRAWERS", 1)
    pixels = np.full([4, 4], 255, np.uint8)
    pixels[0, 0] = pixels[2:, 2:] = 0
    drawing = ("x", "A", 1, 1, Image.fromarray(pixels))
    (image,) = omniglot.collect([drawing], "test", 2).images
    np.testing.assert_allclose(image[..., 0], [[255 / 4, 0], [0, 255]], atol=1)
    with refused("x is 4x4 pixels; expected a square of image_size=5"):
        omniglot.collect([drawing], "test", 5)
    other = ("y", *drawing[1:4], Image.new("L", (4, 4)))
    with refused("x and y are one drawing but differ"):
        omniglot.collect([drawing, other], "test", 2)


# Partitions.


@pytest.fixture(scope="module")
def all_drawings():
    """The full number of miniature drawings, as if they had been read."""
    keys = np.array([*itertools.product(range(1, 1624), range(1, 21))], np.int32)
    characters, drawers = keys.T
    ink = (_number(characters, drawers)[:, None] & _BITS) > 0
    return omniglot.Drawings(
        255 * ink.reshape(-1, _SIDE, _SIDE, 1).astype(np.uint8),
        characters,
        drawers,
        np.array([_path(*key).split("/")[0] for key in keys]),
    )


@pytest.fixture
def load(all_drawings, monkeypatch):
    """`omniglot.load`, without reading the files again."""
    monkeypatch.setattr(omniglot, "read_drawings", lambda *_: all_drawings)
    return functools.partial(omniglot.load, "already read", image_size=_SIDE)


@pytest.mark.parametrize("partition", omniglot.PARTITIONS)
def test_every_training_drawing_is_in_exactly_one_client(load, partition):
    dataset = load(partition=partition)
    numbers = []
    for client in dataset.train.client_ids:
        images, labels = dataset.train.client_arrays(client)
        numbers.append(_numbers(images))
        np.testing.assert_array_equal(labels, numbers[-1] // 20 - 964)
        np.testing.assert_array_equal(dataset.positives(client), np.unique(labels))
        assert dataset.positives(client).dtype == np.int32
    sizes = [len(dataset.positives(k)) for k in dataset.train.client_ids]
    assert dataset.max_positives == max(sizes)
    expected = [_number(c, d) for c in range(965, 1624) for d in range(1, 17)]
    np.testing.assert_array_equal(np.sort(np.concatenate(numbers)), expected)


def test_mixed_partition_is_deterministic_in_its_seed(load):
    mixed, again, other = (load(seed=seed).fingerprint() for seed in (0, 0, 1))
    assert mixed == again
    assert mixed["classes of clients"] != other["classes of clients"]


def test_drawer_clients_are_one_person_each(load):
    dataset = load(partition="drawer")
    assert dataset.num_clients == 20 * 16
    for client in dataset.train.client_ids:
        images, labels = dataset.train.client_arrays(client)
        numbers = _numbers(images)
        assert set(numbers % 20 + 1) == {int(client[-2:])}
        alphabets = {_path(n // 20 + 1, 1).split("/")[0] for n in numbers}
        assert client.startswith(alphabets.pop()) and not alphabets
        assert len(np.unique(labels)) == len(labels)
        assert (np.diff(labels) < 0).any()  # In random order.


def test_test_drawers_are_held_out(load):
    dataset = load(test_drawers=(3, 20))
    images, labels = stack(dataset.test.data)
    numbers = _numbers(images)
    assert set(numbers % 20 + 1) == {3, 20}
    np.testing.assert_array_equal(labels, numbers // 20 - 964)
    assert dataset.test.num_examples == len(numbers) == 659 * 2
    assert not {3, 20} & set(_numbers(_train(dataset)[0]) % 20 + 1)


def test_all_characters_are_identities_and_hands_are_held_out(load):
    data = omniglot.load_identities("unread", image_size=_SIDE, test_drawers=(3, 20))
    assert data.num_classes == 1623 and not data.test_is_unseen
    num_train = 1623 * 18
    images, labels = data.batch(0, num_train, seed=0)
    tests = data.test_examples(0, 10**5)
    for numbers, characters in (
        (_numbers(images), labels),
        (_numbers(tests), data.test_labels),
    ):
        np.testing.assert_array_equal(numbers // 20, characters)
    drawers = set(_numbers(images) % 20 + 1)
    assert drawers == set(range(1, 20)) - {3}
    assert set(_numbers(tests) % 20 + 1) == {3, 20} and len(tests) == 1623 * 2

    data = omniglot.load_identities(
        "unread", image_size=_SIDE, test_drawers=(3,), unused_drawers=(4, 20)
    )
    images, _ = data.batch(0, 1623 * 17, seed=0)
    assert set(_numbers(images) % 20 + 1) == set(range(1, 20)) - {3, 4}
    assert set(_numbers(data.test_examples(0, 10**5)) % 20 + 1) == {3}
    for drawers in ((3,), ()):
        with refused(r"test_drawers=.* and unused_drawers=\(3,\), without a common"):
            omniglot.load_identities("x", test_drawers=drawers, unused_drawers=(3,))


def test_all_characters_may_be_the_classes(load):
    dataset = load(characters="all")
    assert dataset.num_classes == 1623 and not dataset.test_is_unseen
    images, labels = _train(dataset)
    numbers = _numbers(images)
    np.testing.assert_array_equal(labels, numbers // 20)
    expected = [_number(c, d) for c in range(1, 1624) for d in range(1, 17)]
    np.testing.assert_array_equal(np.sort(numbers), expected)
    images, labels = stack(dataset.test.data)
    np.testing.assert_array_equal(labels, _numbers(images) // 20)
    assert set(_numbers(images) % 20 + 1) == {17, 18, 19, 20}
    assert dataset.test.num_examples == len(labels) == 1623 * 4
    # No character is left.
    assert dataset.public.num_classes == 1000
    assert dataset.public.data.element_spec == dataset.test.data.element_spec


@pytest.mark.parametrize(
    "partition, num_clients, max_classes",
    [("mixed", 192, 21), ("drawer", 600, 33), ("chunks", 193, 5)],
)
def test_retrieval_is_of_other_characters(load, partition, num_clients, max_classes):
    dataset = load(partition=partition, retrieval=True)
    assert (dataset.num_clients, dataset.max_positives) == (num_clients, max_classes)
    assert dataset.num_classes == 964 and dataset.test_is_unseen
    test = dataset.test.data.batch(10**5).get_single_element()
    for images, labels, characters in (
        (*_train(dataset), range(964)),
        (test["image"].numpy(), test["label"], range(964, 1623)),
    ):
        numbers = _numbers(images)
        np.testing.assert_array_equal(labels, numbers // 20)
        expected = [20 * c + d for c in characters for d in range(20)]
        np.testing.assert_array_equal(np.sort(numbers), expected)


def _untwisted(images, labels):
    """The numbers of the drawings when each is turned back by its label's turns."""
    back = [np.rot90(image, -(label % 4)) for image, label in zip(images, labels)]
    return _numbers(np.stack(back))


def test_each_turn_of_a_character_is_a_class(load):
    dataset = load(rotations=True)
    assert dataset.num_classes == 659 * 4 and dataset.num_clients == 396
    images, labels = _train(dataset)
    numbers = _untwisted(images, labels)
    np.testing.assert_array_equal(labels // 4, numbers // 20 - 964)
    expected = [4 * _number(c, d) for c in range(965, 1624) for d in range(1, 17)]
    expected = np.add.outer(expected, range(4)).ravel()
    np.testing.assert_array_equal(np.sort(4 * numbers + labels % 4), expected)
    for held_out, first, count in (
        (dataset.test, 964, 659 * 4 * 4),
        (dataset.public, 0, 964 * 20 * 4),
    ):
        assert held_out.num_examples == int(held_out.data.cardinality()) == count
        images, labels = stack(held_out.data.shard(11, 0))  # All takes 30 s.
        numbers = _untwisted(images, labels)
        np.testing.assert_array_equal(labels // 4, numbers // 20 - first)
    assert dataset.public.num_classes == 964 * 4


# Bad input: one clear line, and nothing written.


def _error(data_dir):
    root = data_dir if data_dir.is_dir() else data_dir.parent
    before = sorted(root.rglob("*"))
    with refused(f"^data_dir={data_dir}") as error:
        omniglot.load(data_dir, image_size=_SIDE, test_drawers=(2,))
    assert sorted(root.rglob("*")) == before
    return str(error.value)


def test_damaged_png_is_named(tmp_path):
    own_images.write(tmp_path, {_path(2, 1): _png(1)[:-20]})
    assert f"{_path(2, 1)} is cut off or damaged" in _error(tmp_path)


def test_one_drawing_missing(miniature, tmp_path):
    files = {**miniature}
    del files[_path(1200, 2)]
    own_images.write(tmp_path / "omniglot.zip", files)
    message = _error(tmp_path)
    assert "found 3,245 <Alphabet>/characterNN/XXXX_YY.png" in message
    assert "1200_02.png" in message


@pytest.mark.parametrize(
    "arguments",
    [
        {"test_drawers": (0, 5)},
        {"test_drawers": tuple(range(1, 21))},
        {"drawings_per_class": 0},
    ],
)
def test_arguments_out_of_range_before_any_file_is_read(tmp_path, arguments):
    (name,) = arguments
    with refused(f"^{name}="):
        omniglot.load(tmp_path / "no", **arguments)


# The real drawings.


@pytest.fixture(scope="module")
def real(test_data):
    return {
        name: omniglot.load(test_data / name) for name in ("omniglot28", "omniglot105")
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["omniglot28", "omniglot105"])
def test_real_omniglot(real, name):
    dataset = real[name]
    assert dataset.num_classes == 659 and dataset.public.num_classes == 964
    assert dataset.image_shape == (28, 28, 1)
    train_images, train_labels = _train(dataset)
    np.testing.assert_array_equal(np.bincount(train_labels), np.full(659, 16))
    test_images, test_labels = stack(dataset.test.data)
    np.testing.assert_array_equal(np.bincount(test_labels), np.full(659, 4))
    public_images, public_labels = stack(dataset.public.data)
    np.testing.assert_array_equal(np.bincount(public_labels), np.full(964, 20))
    images = [test_images, public_images, train_images]
    assert sum(map(len, images)) == 32_460
    # Ink is bright, and little.
    ink = np.concatenate(images).mean(axis=(1, 2, 3)) / 255
    assert ink.min() > 0.001 and ink.max() < 0.5 and 0.05 < ink.mean() < 0.2


@pytest.mark.slow
def test_turns_that_a_nearest_neighbour_confuses(test_data):
    """data/README.md says how many: 158 pairs of turns, of 62 of 659 characters."""
    drawings = omniglot.turned(
        omniglot.read_drawings(test_data / "omniglot28", image_size=28)
    )
    pixels = drawings.images[..., 0].astype(np.float32)
    pixels = ndimage.gaussian_filter(pixels, (0, 1.5, 1.5)).reshape(len(pixels), -1)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    # A turn, a character, a drawer, a pixel.
    pixels = pixels.reshape(4, 1623, 20, -1)[:, 964:]
    confused = []
    for character in range(659):
        for pair in itertools.combinations(range(4), 2):
            train, test = np.split(pixels[pair, character], [16], axis=1)
            nearest = np.einsum("tip,ujp->tiuj", test, train).reshape(8, 32).argmax(1)
            num_right = (nearest // 16 == np.repeat([0, 1], 4)).sum()
            if num_right <= 4:
                confused.append((character, *pair))
    assert len(confused) == 158
    assert len({character for character, *_ in confused}) == 62
    # Of turns that are one class by these pairs, one in each group can be right.
    classes = 659 * 4
    graph = np.zeros([classes, classes], bool)
    for character, *pair in confused:
        one, other = (4 * character + turn for turn in pair)
        graph[one, other] = True
    num_groups, _ = csgraph.connected_components(graph, directed=False)
    assert f"{num_groups / classes:.3f}" == "0.949"
