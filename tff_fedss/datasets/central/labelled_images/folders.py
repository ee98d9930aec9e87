"""Labelled images in a folder for each class, or in an archive of such folders."""

import pathlib
import re
from collections.abc import Iterator

import numpy as np
import tqdm

from tff_fedss import files
from tff_fedss.datasets import archives, image_files
from tff_fedss.datasets.central.labelled_images.images import (
    EXPECTED,
    LabelledImages,
    as_array,
    check_num_classes,
    fitted,
)
from tff_fedss.errors import InvalidInputError

# The folder `images` is Tiny-ImageNet's. Hidden files are not used.
_IMAGE = re.compile(
    r"(?P<root>(?:[^/]+/)*?)(?P<part>train|test|val)/"
    r"(?P<class_name>[^/.][^/]*)/(?:images/)?(?P<file>[^/.][^/]*\.(?:jpe?g|png))",
    re.IGNORECASE,
)
_CLASS_FOLDER = re.compile(
    r"(?:[^/]+/)*?(?P<part>train|test|val)/(?P<class_name>[^/.][^/]*)/", re.IGNORECASE
)


def load(
    name: str, path: pathlib.Path, flag: str, channels: int, image_size: int | None
) -> LabelledImages:
    """Reads train/CLASS/IMAGE and test/CLASS/IMAGE.

    Args:
        name: What to call the data set.
        path: A folder, an archive, or a folder with one archive.
        flag: What a message is to begin with.
        channels: 1 or 3.
        image_size: See `loading.load`.

    Raises:
        InvalidInputError: If images are not there, damaged, or not alike in size.
    """
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
                f"{flag}: found no {part} image; expected {EXPECTED}."
            )
    class_names = sorted({class_name for class_name, _, _ in parts["train"]})
    used = {(part, image[0]) for part, images in parts.items() for image in images}
    for key in sorted(folders.keys() - used):
        raise InvalidInputError(
            f"{flag}: the class folder {folders[key]} holds no image; expected "
            f"{EXPECTED}."
        )
    check_num_classes(len(class_names), flag)
    train, test = (_stacked(parts[p], class_names, flag) for p in ("train", "test"))
    if train[0].shape[1:] != test[0].shape[1:]:
        raise InvalidInputError(
            f"{flag}: training images are of shape {train[0].shape[1:]}, test images "
            f"of {test[0].shape[1:]}."
        )
    return LabelledImages(name, tuple(class_names), *train, *test)


def _part(found: re.Match) -> str:
    return "train" if found["part"].lower() == "train" else "test"


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
    return not name.startswith(archives.FOREIGN) and pattern.fullmatch(name) is not None


def _files(path: pathlib.Path, flag: str) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of every image, b"" for a class folder."""
    if not path.is_dir():
        if not archives.is_archive(path):
            raise InvalidInputError(
                f"{flag}: found the file {path.name}; expected {EXPECTED}."
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
