"""Labelled images: every layout, and every way in which it can be wrong."""

import gzip
import io

import numpy as np
import pytest
import scipy.stats
import tensorflow_datasets as tfds
from PIL import Image

from tests import labelled_blobs
from tests.datasets import archive_files
from tff_fedss import memory
from tff_fedss.datasets.central import labelled_images
from tff_fedss.errors import InvalidInputError

_SIDE = 8
_CLASSES = ("cat", "dog")


def png(value, size=(_SIDE, _SIDE), mode="RGB"):
    content = io.BytesIO()
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(
        content, "PNG"
    )
    return content.getvalue()


def files(root="", test="test"):
    """Six training and two test images; the first channel is the number of each."""
    contents = {f"{root}README.md": b"text", f"{root}train/cat/.hidden.png": b""}
    for i in range(6):
        contents[f"{root}train/{_CLASSES[i % 2]}/{i}.png"] = png(i)
    for i in range(2):
        contents[f"{root}{test}/{_CLASSES[i]}/{i}.png"] = png(10 + i)
    return contents


def check(data):
    assert data.class_names == _CLASSES and data.num_classes == 2
    assert data.image_shape == (_SIDE, _SIDE, 3)
    assert data.train_images[:, 0, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_images[:, 0, 0, 0].tolist() == [10, 11]
    assert data.test_labels.tolist() == [0, 1]
    assert (data.train_images[..., 2] == 255).all()
    assert data.train_images.dtype == np.uint8
    assert data.train_labels.dtype == data.test_labels.dtype == np.int32


def test_a_folder_for_each_class(tmp_path):
    archive_files.write_folder(tmp_path, files())
    data = labelled_images.load("cifar10", tmp_path)
    check(data)
    assert "n=2 classes, 6 training and 2 test images, 8x8x3" in data.summary()


def test_tiny_imagenet_as_it_is_published(tmp_path):
    root = "tiny-imagenet-200/"
    contents = {f"{root}wnids.txt": b"n2\nn1\n"}
    for i in range(6):
        wnid = f"n{i % 2 + 1}"
        contents[f"{root}train/{wnid}/images/{wnid}_{i}.JPEG"] = png(i)
    for i in range(2):
        contents[f"{root}val/images/val_{i}.JPEG"] = png(10 + i)
    lines = b"val_1.JPEG\tn2\t0\t0\t1\t1\nval_0.JPEG\tn1\t0\t0\t1\t1\n"
    contents[f"{root}val/val_annotations.txt"] = lines
    archive_files.write_folder(tmp_path, contents)
    data = labelled_images.load("tiny_imagenet", tmp_path)
    assert data.class_names == ("n1", "n2")
    assert data.train_images[:, 0, 0, 0].tolist() == [0, 2, 4, 1, 3, 5]
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_images[:, 0, 0, 0].tolist() == [10, 11]
    assert data.test_labels.tolist() == [0, 1]
    smaller = labelled_images.load("tiny_imagenet", tmp_path, image_size=4)
    assert smaller.image_shape == (4, 4, 3)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
@pytest.mark.parametrize("names_folder", [True, False])
def test_an_archive(tmp_path, name, names_folder):
    write = archive_files.write_zip if name.endswith("zip") else archive_files.write_tar
    write(tmp_path / name, files("deep/down/", "val"))
    check(
        labelled_images.load("cifar10", tmp_path if names_folder else tmp_path / name)
    )


def test_images_are_resized_and_made_grey(tmp_path):
    archive_files.write_folder(tmp_path, {**files(), "train/cat/9.png": png(9, (9, 7))})
    data = labelled_images.load("mnist", tmp_path, image_size=4)
    assert data.train_images.shape == (7, 4, 4, 1)


@pytest.mark.parametrize(
    "changed, message",
    [
        (
            {"train/cat/0.png": png(0, (4, 4))},
            "8x8 pixels, train/cat/0.png 4x4.*image_size",
        ),
        ({"train/cat/0.png": b"\x89PNG\r\n\x1a\n"}, "train/cat/0.png is no whole JPEG"),
        ({"train/cat/0.png": b"text"}, "train/cat/0.png is no whole JPEG, PNG"),
        ({"test/cow/1.png": png(1)}, "class 'cow', of which there is no training"),
        ({"again/train/cat/1.png": png(1)}, "found the folder again beside test and"),
    ],
)
def test_bad_images_are_named(tmp_path, changed, message):
    archive_files.write_folder(tmp_path, {**files(), **changed})
    with pytest.raises(InvalidInputError, match=f"data_dir={tmp_path}.*{message}"):
        labelled_images.load("cifar10", tmp_path)


def test_a_part_that_is_missing_is_named(tmp_path):
    images = {name: c for name, c in files().items() if name.startswith("test")}
    archive_files.write_folder(tmp_path, images)
    with pytest.raises(InvalidInputError, match="found no folder train with test or"):
        labelled_images.load("cifar10", tmp_path)


def test_bad_arguments_are_named(tmp_path):
    for arguments, message in (
        (("cifar",), "'cifar' must be one of mnist, "),
        (("cifar10", tmp_path / "no"), "does not exist; expected train/CLASS"),
        (("imagenette", tmp_path), "differ in size"),
        (("tiny_imagenet",), "dataset=tiny_imagenet needs `data_dir`"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            labelled_images.load(*arguments)
    (tmp_path / "x.txt").write_text("text")
    with pytest.raises(InvalidInputError, match=r"found the file x\.txt"):
        labelled_images.load("cifar10", tmp_path / "x.txt")


def idx_files(prefix, num_images, first=0):
    images = np.zeros([num_images, 5, 4], np.uint8)
    images[:, 1, 2] = np.arange(first, first + num_images)
    return {
        f"{prefix}-images-idx3-ubyte": labelled_blobs.idx(images),
        f"{prefix}-labels-idx1-ubyte": labelled_blobs.idx(
            np.arange(num_images).astype(np.uint8) % 3
        ),
    }


def test_idx_files_compressed_or_not(tmp_path):
    train = {f"{k}.gz": gzip.compress(v) for k, v in idx_files("train", 6).items()}
    archive_files.write_folder(tmp_path, {**train, **idx_files("t10k", 3, 50)})
    data = labelled_images.load("mnist", tmp_path)
    assert data.train_images.shape == (6, 5, 4, 1)
    assert data.train_images[:, 1, 2, 0].tolist() == list(range(6))
    assert data.test_images[:, 1, 2, 0].tolist() == [50, 51, 52]
    assert data.train_labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_of_one_part_every_fifth_image_is_held_out(tmp_path):
    archive_files.write_folder(tmp_path, idx_files("t10k", 12))
    data = labelled_images.load("mnist", tmp_path)
    assert data.test_images[:, 1, 2, 0].tolist() == [0, 5, 10]
    assert data.train_images[:, 1, 2, 0].tolist() == [1, 2, 3, 4, 6, 7, 8, 9, 11]
    assert "every 5th image is a test image" in data.summary()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c[:-1], "has 255 bytes; its header says 256"),
        (lambda c: b"\0" + c, "is no IDX file of bytes in 3 dimensions"),
        (lambda c: b"", "is no IDX file"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, change, message):
    contents = idx_files("t10k", 12)
    name = "t10k-images-idx3-ubyte"
    contents[name] = change(contents[name])
    archive_files.write_folder(tmp_path, contents)
    with pytest.raises(InvalidInputError, match=f"{name} {message}"):
        labelled_images.load("mnist", tmp_path)


def test_a_subset_is_balanced_and_repeatable(tmp_path):
    archive_files.write_folder(tmp_path, idx_files("t10k", 50))
    data = labelled_images.load("mnist", tmp_path)
    subset = data.subset(10, seed=3)
    assert sorted(np.bincount(subset.train_labels)) == [3, 3, 4]
    # The images still have their labels.
    assert (subset.train_images[:, 1, 2, 0] % 3 == subset.train_labels).all()
    assert len(np.unique(subset.train_images[:, 1, 2, 0])) == 10
    np.testing.assert_array_equal(
        subset.train_images, data.subset(10, seed=3).train_images
    )
    assert (subset.train_images != data.subset(10, seed=4).train_images).any()
    with pytest.raises(InvalidInputError, match=r"num_train=2 must be in 3\.\.40"):
        data.subset(2)


def test_label_noise_makes_a_share_of_the_labels_wrong(tmp_path):
    archive_files.write_folder(tmp_path, idx_files("t10k", 50))
    data = labelled_images.load("mnist", tmp_path)
    assert not data.marked
    noisy = data.with_label_noise(0.4, seed=1)
    is_wrong = noisy.train_labels != data.train_labels
    np.testing.assert_array_equal(noisy.marked["mislabelled"], is_wrong)
    assert is_wrong.sum() == round(0.4 * len(data.train_labels))
    # To all other classes alike, within what so few draws allow.
    many = [data.with_label_noise(0.9, seed=s) for s in range(60)]
    moves = np.concatenate(
        [(m.train_labels - data.train_labels)[m.marked["mislabelled"]] for m in many]
    )
    counts = np.bincount(moves % data.num_classes, minlength=data.num_classes)
    assert counts[0] == 0 and scipy.stats.chisquare(counts[1:]).pvalue > 1e-4
    np.testing.assert_array_equal(noisy.test_labels, data.test_labels)
    np.testing.assert_array_equal(
        noisy.train_labels, data.with_label_noise(0.4, seed=1).train_labels
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
    tail = data.with_subclasses(2, 16.0, seed=1)
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
    other = data.with_subclasses(2, 16.0, seed=2)
    assert other.fingerprint() != tail.fingerprint()
    # Where n is no multiple, the classes have 4, 3 and 3 subclasses.
    three = data.with_subclasses(3, 4.0, seed=1)
    assert three.class_names == ("0+3+6+9", "1+4+7", "2+5+8")
    counts = np.bincount(three.train_labels).tolist()
    shares = ([1, 4 ** (-1 / 3), 4 ** (-2 / 3), 1 / 4], [1, 1 / 2, 1 / 4])
    assert counts[0] == sum(round(most * share) for share in shares[0])
    assert counts[1] == counts[2] == sum(round(most * share) for share in shares[1])
    with pytest.raises(InvalidInputError, match=r"merge_classes=6 must be in 2\.\.5"):
        data.with_subclasses(6, 1.0, seed=0)


def train(data):
    return data.train_images, data.train_labels.tolist()


def test_near_duplicates_take_the_place_of_others():
    data = ten_digits()
    many = data.with_near_duplicates(0.8, seed=1)
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
        data.with_near_duplicates(0.99, seed=1)


def test_what_memory_cannot_hold_is_refused(tmp_path, monkeypatch):
    archive_files.write_folder(tmp_path / "folders", files())
    archive_files.write_folder(tmp_path / "idx", idx_files("t10k", 50))
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    for name, folder in (("cifar10", "folders"), ("mnist", "idx")):
        with pytest.raises(InvalidInputError, match=r"not enough memory.*images \("):
            labelled_images.load(name, tmp_path / folder, image_size=64)
    with (
        tfds.testing.mock_data(num_examples=7),
        pytest.raises(InvalidInputError, match="not enough memory"),
    ):
        labelled_images.load("cifar10")


def test_tfds_by_name():
    with tfds.testing.mock_data(num_examples=7):
        data = labelled_images.load("svhn_cropped", image_size=16)
    assert data.image_shape == (16, 16, 3) and data.num_classes == 10
    assert data.train_images.dtype == np.uint8 and len(data.train_labels) == 7


def test_what_tfds_cannot_get_is_named(monkeypatch):
    def refuse(*args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(
        tfds.core.DatasetBuilder, "download_and_prepare", refuse, raising=True
    )
    with pytest.raises(
        InvalidInputError, match="^dataset=cifar100 is not on this disk.*no route"
    ):
        labelled_images.load("cifar100")


@pytest.mark.slow
def test_the_real_cifar10(test_data):
    data = labelled_images.load("cifar10", test_data / "cifar10-jpg")
    assert data.image_shape == (32, 32, 3)
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    assert data.class_names[0] == "airplane"


def test_the_real_mnist(test_data):
    data = labelled_images.load("mnist", test_data / "mnist-t10k")
    assert data.train_images.shape == (8000, 28, 28, 1)
    assert len(data.test_labels) == 2000
