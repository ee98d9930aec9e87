"""Plain labelled images, for methods without clients (LEAP, contrastive learning).

A data set is a training and a test part, decoded and in memory. It is read from files
as they lie (a folder for each class, or MNIST's IDX files), or comes from TFDS by name.
"""

import dataclasses
import gzip
import math
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator

import numpy as np
import tqdm
from PIL import Image, ImageOps

from tff_fedss import files
from tff_fedss.datasets import archives, fingerprint, image_files
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class Source:
    """What a data set is called at TFDS, and what its images are.

    Attributes:
        tfds_name: At TFDS, with its configuration.
        train: The TFDS split to train on.
        test: The TFDS split to test on.
        num_classes: n.
        channels: 1 or 3; files are converted to it.
        image_size: Height and width in pixels; None: they differ from image to image.
    """

    tfds_name: str
    train: str = "train"
    test: str = "test"
    num_classes: int = 10
    channels: int = 3
    image_size: int | None = 32


# By the name that a user gives them.
SOURCES = {
    "mnist": Source("mnist", channels=1, image_size=28),
    "fashion_mnist": Source("fashion_mnist", channels=1, image_size=28),
    "cifar10": Source("cifar10"),
    "cifar100": Source("cifar100", num_classes=100),
    # The training and the extra set together, as LEAP (4.5) has it.
    "svhn_cropped": Source("svhn_cropped", train="train+extra"),
    "imagenette": Source("imagenette/320px-v2", test="validation", image_size=None),
    "tiny_imagenet": Source("tiny_imagenet", num_classes=200, image_size=64),
}
# Not at TFDS.
_FILES_ONLY = frozenset({"tiny_imagenet"})

_IDX = {
    part: (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    for part, prefix in (("train", "train"), ("test", "t10k"))
}
_EXPECTED = (
    "train/CLASS/IMAGE and test/CLASS/IMAGE (JPEG or PNG; val stands for test too), in "
    f"a folder or an archive ({', '.join(archives.SUFFIXES)}), or MNIST's "
    "train-images-idx3-ubyte[.gz], ..."
)
# The folder `images` is Tiny-ImageNet's. Hidden files are not used.
_IMAGE = re.compile(
    r"(?P<root>(?:[^/]+/)*?)(?P<part>train|test|val)/"
    r"(?P<class_name>[^/.][^/]*)/(?:images/)?(?P<file>[^/.][^/]*\.(?:jpe?g|png))",
    re.IGNORECASE,
)
_CLASS_FOLDER = re.compile(
    r"(?:[^/]+/)*?(?P<part>train|test|val)/(?P<class_name>[^/.][^/]*)/", re.IGNORECASE
)
_FOREIGN = "__MACOSX/"
_IDX_DATASETS = ("mnist", "fashion_mnist")
# Without a test part, so many images of the training part stand for one test image.
_HELD_OUT_OF = 5


@dataclasses.dataclass(frozen=True)
class LabelledImages:
    """A training and a test part.

    Attributes:
        name: What to call the data set.
        class_names: n names; a label is a position here.
        train_images: uint8[N, height, width, channels].
        train_labels: int32[N].
        test_images: uint8[test images, height, width, channels].
        test_labels: int32[test images].
        note: What is special about it, for the summary; may be empty.
    """

    name: str
    class_names: tuple[str, ...]
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    note: str = ""

    @property
    def num_classes(self) -> int:
        """N."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.train_images.shape[1:]

    def summary(self) -> str:
        """The data in one line."""
        height, width, channels = self.image_shape
        text = (
            f"{self.name}: n={self.num_classes:,} classes, "
            f"{len(self.train_labels):,} training and {len(self.test_labels):,} test "
            f"images, {height}x{width}x{channels}"
        )
        return f"{text}; {self.note}" if self.note else text

    def fingerprint(self) -> Fingerprint:
        """By what a run knows these data again; see `fingerprint`."""
        sizes = np.bincount(self.train_labels, minlength=self.num_classes)
        return {
            "data set": self.name,
            "classes": self.num_classes,
            "names of classes": fingerprint.of_text(self.class_names),
            "image shape": fingerprint.shape_text(self.image_shape),
            "training images": len(self.train_labels),
            "test images": len(self.test_labels),
            "images per class": fingerprint.of_numbers(sizes),
            "labels of training images": fingerprint.of_arrays([self.train_labels]),
            "labels of test images": fingerprint.of_arrays([self.test_labels]),
            "contents of training images": fingerprint.of_arrays([self.train_images]),
            "contents of test images": fingerprint.of_arrays([self.test_images]),
        }

    def subset(self, num_train: int, seed: int = 0) -> "LabelledImages":
        """Keeps as many training images of each class as of any other, if there are.

        Args:
            num_train: How many to keep in all.
            seed: Of the choice.

        Returns:
            The data set with these training images, in their order. The test is whole.

        Raises:
            InvalidInputError: If there are not so many, or fewer than one per class.
        """
        if not self.num_classes <= num_train <= len(self.train_labels):
            raise InvalidInputError(
                f"num_train={num_train} must be in {self.num_classes}.."
                f"{len(self.train_labels)}, the training images of {self.name}."
            )
        generator = np.random.Generator(np.random.Philox(key=[seed, num_train]))
        order = generator.permutation(len(self.train_labels))
        # The first images of all classes, then the second ones, and so on.
        by_class = order[np.argsort(self.train_labels[order], kind="stable")]
        sizes = np.bincount(self.train_labels, minlength=self.num_classes)
        place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept = np.sort(by_class[np.argsort(place, kind="stable")[:num_train]])
        return dataclasses.replace(
            self,
            train_images=self.train_images[kept],
            train_labels=self.train_labels[kept],
        )


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    *,
    image_size: int | None = None,
) -> LabelledImages:
    """Loads a data set.

    Args:
        name: A key of `SOURCES`.
        data_dir: A folder or an archive with train/CLASS/IMAGE and test/CLASS/IMAGE, a
            folder with one such archive, or a folder with MNIST's IDX files. If it has
            IDX files of one part only, every fifth image becomes the test.
            Tiny-ImageNet is read as it is published, see `tiny_imagenet.load`; its
            test is the validation set. None: TFDS, which downloads what is not on the
            disk.
        image_size: Height and width in pixels that images are brought to, their longer
            side cut to a square first. None: they stay as they are, and must be alike.

    Returns:
        The data set. The classes of folders are numbered in the order of their names.

    Raises:
        InvalidInputError: If the data are not there, damaged, or not alike in size.
    """
    if name not in SOURCES:
        raise InvalidInputError(
            f"dataset={name!r} must be one of {', '.join(SOURCES)}."
        )
    source = SOURCES[name]
    if image_size is None and source.image_size is None:
        raise InvalidInputError(f"the images of {name} differ in size: give a size.")
    if data_dir is None:
        if name in _FILES_ONLY:
            raise InvalidInputError(f"dataset={name} needs `data_dir`.")
        # TFDS takes seconds to import.
        from tff_fedss.datasets import labelled_images_tfds

        return labelled_images_tfds.load(name, source, image_size)
    if name == "tiny_imagenet":
        return _load_tiny_imagenet(name, data_dir, image_size)
    path, flag = pathlib.Path(data_dir), f"data_dir={os.fspath(data_dir)}"
    if not path.exists():
        raise InvalidInputError(f"{flag} does not exist; expected {_EXPECTED}.")
    if path.is_dir() and any(path.glob("*-idx[13]-ubyte*")):
        if name not in _IDX_DATASETS:
            raise InvalidInputError(
                f"{flag} has files of {' or '.join(_IDX_DATASETS)}; expected {name}."
            )
        return _load_idx(name, path, flag, source, image_size)
    return _load_folders(name, path, flag, source.channels, image_size)


def fitted(image: Image.Image, image_size: int | None) -> Image.Image:
    """Cuts a square from the middle of an image and resizes it, if a size is given."""
    if image_size is None or image.size == (image_size, image_size):
        return image
    return ImageOps.fit(image, (image_size, image_size), Image.Resampling.BILINEAR)


def as_array(image: Image.Image, channels: int) -> np.ndarray:
    """uint8[height, width, channels] of an image."""
    array = np.asarray(image.convert("L" if channels == 1 else "RGB"), np.uint8)
    return array.reshape(*array.shape[:2], channels)


def _load_tiny_imagenet(
    name: str, data_dir: str | os.PathLike, image_size: int | None
) -> LabelledImages:
    # It imports TFF, which takes seconds.
    from tff_fedss.datasets import tiny_imagenet

    files = tiny_imagenet.Files(data_dir)
    parts = []
    for contents, labels in (files.train(), files.test()):
        # `Files` has checked that they can be decoded.
        whole = map(image_files.decode, contents)
        arrays = [as_array(fitted(image, image_size), 3) for image in whole]
        parts += [np.stack(arrays), labels]
    return LabelledImages(name, tuple(files.wnids), *parts)


# --- A folder for each class ------------------------------------------------------


def _load_folders(
    name: str, path: pathlib.Path, flag: str, channels: int, image_size: int | None
) -> LabelledImages:
    parts: dict[str, list[tuple[str, str, np.ndarray]]] = {"train": [], "test": []}
    roots, folders = set(), {}
    contents = tqdm.tqdm(
        _files(path, flag), desc=f"Reading {name}", unit=" files", delay=2, disable=None
    )
    for file_name, content in contents:
        if file_name.endswith("/"):
            of_class = _CLASS_FOLDER.fullmatch(file_name)
            folders[_part(of_class), of_class["class_name"]] = file_name
            continue
        found = _IMAGE.fullmatch(file_name)
        roots.add(found["root"])
        if len(roots) > 1:
            first, second = sorted(roots)
            raise InvalidInputError(
                f"{flag}: found images in {first or './'} and in {second}; expected "
                "one copy of the data set."
            )
        part = _part(found)
        try:
            image = image_files.decode(content)
        except ValueError as error:
            raise InvalidInputError(f"{flag}: {file_name} {error}.") from error
        array = as_array(fitted(image, image_size), channels)
        parts[part].append((found["class_name"], file_name, array))
    for part, images in parts.items():
        if not images:
            raise InvalidInputError(
                f"{flag}: found no {part} image; expected {_EXPECTED}."
            )
    class_names = sorted({class_name for class_name, _, _ in parts["train"]})
    used = {(part, image[0]) for part, images in parts.items() for image in images}
    for key in sorted(folders.keys() - used):
        raise InvalidInputError(
            f"{flag}: the class folder {folders[key]} holds no image; expected "
            f"{_EXPECTED}."
        )
    _check_num_classes(len(class_names), flag)
    train, test = (_stacked(parts[p], class_names, flag) for p in ("train", "test"))
    if train[0].shape[1:] != test[0].shape[1:]:
        raise InvalidInputError(
            f"{flag}: training images are of shape {train[0].shape[1:]}, test images "
            f"of {test[0].shape[1:]}."
        )
    return LabelledImages(name, tuple(class_names), *train, *test)


def _part(found: re.Match) -> str:
    return "train" if found["part"].lower() == "train" else "test"


def _check_num_classes(num_classes: int, flag: str) -> None:
    if num_classes < 2:
        raise InvalidInputError(
            f"{flag}: all training images are of one class; expected two or more."
        )


def _stacked(
    images: list[tuple[str, str, np.ndarray]], class_names: list[str], flag: str
) -> tuple[np.ndarray, np.ndarray]:
    """The images of a part and their labels, by the name of the file."""
    label_of = {class_name: label for label, class_name in enumerate(class_names)}
    images.sort(key=lambda image: image[1])
    shape = images[0][2].shape
    for class_name, file_name, array in images:
        if array.shape != shape:
            raise InvalidInputError(
                f"{flag}: {file_name} is {array.shape[0]}x{array.shape[1]} pixels, "
                f"{images[0][1]} {shape[0]}x{shape[1]}; expected images of one size."
            )
        if class_name not in label_of:
            raise InvalidInputError(
                f"{flag}: {file_name} is of the class {class_name!r}, of which there "
                "is no training image."
            )
    labels = [label_of[class_name] for class_name, _, _ in images]
    return np.stack([array for _, _, array in images]), np.array(labels, np.int32)


def _is_used(name: str) -> bool:
    pattern = _CLASS_FOLDER if name.endswith("/") else _IMAGE
    return not name.startswith(_FOREIGN) and pattern.fullmatch(name) is not None


def _files(path: pathlib.Path, flag: str) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of every image, b"" for a class folder."""
    if not path.is_dir():
        if not archives.is_archive(path):
            raise InvalidInputError(
                f"{flag}: found the file {path.name}; expected {_EXPECTED}."
            )
        yield from archives.members(path, flag, _is_used)
        return
    if not (path / "train").is_dir():
        found = [file for file in sorted(path.iterdir()) if archives.is_archive(file)]
        if len(found) == 1:
            yield from archives.members(found[0], flag, _is_used)
            return
    try:
        for name in archives.names_below(path):
            if name.endswith("/") and _IMAGE.fullmatch(name[:-1]):
                raise InvalidInputError(
                    f"{flag}: {name} is a folder; expected an image."
                )
            if _is_used(name):
                is_folder = name.endswith("/")
                yield name, b"" if is_folder else files.read(path / name)
    except OSError as error:
        raise InvalidInputError(
            f"{flag}: {error.filename} cannot be read: {error.strerror or error}."
        ) from error


# --- MNIST's own files ------------------------------------------------------------


def _load_idx(
    name: str, path: pathlib.Path, flag: str, source: Source, image_size: int | None
) -> LabelledImages:
    parts, note = {}, ""
    for part, names in _IDX.items():
        found = [_one_of(path, file_name) for file_name in names]
        if not any(found):
            continue
        for file_name, file in zip(names, found, strict=True):
            if file is None:
                raise InvalidInputError(f"{flag}: {file_name}[.gz] is missing.")
        images, labels = (
            _read_idx(file, flag, dimensions)
            for file, dimensions in zip(found, (3, 1), strict=True)
        )
        if len(images) != len(labels) or len(images) < 2:
            raise InvalidInputError(
                f"{flag}: {names[0]} has {len(images):,} images, {names[1]} "
                f"{len(labels):,} labels; expected as many, and two or more."
            )
        if labels.max() >= source.num_classes:
            place = int(np.argmax(labels >= source.num_classes))
            raise InvalidInputError(
                f"{flag}: {found[1].name} has the label {labels[place]} at offset "
                f"{_idx_header_bytes(1) + place:,}; {name} has the labels 0 to "
                f"{source.num_classes - 1}."
            )
        converted = _converted(images, source.channels, image_size)
        parts[part] = converted, labels.astype(np.int32)
    if not parts:
        raise InvalidInputError(f"{flag}: expected {_EXPECTED}.")
    if len(parts) == 1:
        ((part, (images, labels)),) = parts.items()
        is_test = np.arange(len(labels)) % _HELD_OUT_OF == 0
        parts = {
            "train": (images[~is_test], labels[~is_test]),
            "test": (images[is_test], labels[is_test]),
        }
        note = (
            f"of the {part} files alone: every {_HELD_OUT_OF}th image is a test image"
        )
    shapes = {part: images.shape[1:] for part, (images, _) in parts.items()}
    if shapes["train"] != shapes["test"] or not all(shapes["train"]):
        raise InvalidInputError(
            f"{flag}: training images are of shape {shapes['train']}, test images of "
            f"{shapes['test']}."
        )
    num_classes = 1 + max(int(labels.max()) for _, labels in parts.values())
    missing = np.setdiff1d(np.arange(num_classes), parts["train"][1])
    if len(missing):
        raise InvalidInputError(
            f"{flag}: no training image has the label {missing[0]}; expected some of "
            f"each of 0 to {num_classes - 1}."
        )
    _check_num_classes(num_classes, flag)
    return LabelledImages(
        name,
        tuple(map(str, range(num_classes))),
        *parts["train"],
        *parts["test"],
        note=note,
    )


def _one_of(path: pathlib.Path, file_name: str) -> pathlib.Path | None:
    candidates = (path / file_name, path / f"{file_name}.gz")
    return next((file for file in candidates if os.path.lexists(file)), None)


def _read_idx(file: pathlib.Path, flag: str, dimensions: int) -> np.ndarray:
    """Reads uint8 values: two zeros, the type 8, the dimensions, big-endian sizes."""
    try:
        content = files.read(file)
        if file.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or files.one_line(error)
        raise InvalidInputError(
            f"{flag}: {file.name} is unreadable or damaged: {reason}."
        ) from error
    start = _idx_header_bytes(dimensions)
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < start:
        raise InvalidInputError(
            f"{flag}: {file.name} is no IDX file of bytes in {dimensions} dimensions."
        )
    # Python's own numbers: the product of what a damaged header says may be any.
    shape = np.frombuffer(content[4:start], ">u4").tolist()
    if len(content) != start + math.prod(shape):
        raise InvalidInputError(
            f"{flag}: {file.name} has {len(content):,} bytes; its header says "
            f"{start + math.prod(shape):,}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _idx_header_bytes(dimensions: int) -> int:
    return 4 + 4 * dimensions


def _converted(
    images: Iterable[np.ndarray], channels: int, image_size: int | None
) -> np.ndarray:
    return np.stack(
        [as_array(fitted(Image.fromarray(i), image_size), channels) for i in images]
    )
