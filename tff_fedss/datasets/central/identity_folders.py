"""Photographs of identities, such as faces: a folder for each identity.

The layout of LFW, CASIA-WebFace, VGGFace2 and others, once unpacked:
`<data_dir>/<identity>/<image>.jpg` (or .jpeg, .png). Faces should be aligned and
cropped already; images are resized to squares.
"""

import concurrent.futures
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from PIL import Image

from tff_fedss import files
from tff_fedss.datasets import fingerprint, image_files
from tff_fedss.datasets.central import identities
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.errors import InvalidInputError, RunStoppedError

_MAX_NAMES = 5  # in a message
_SUFFIXES = (".jpg", ".jpeg", ".png")
# Decides which identities are held out.
_PHILOX_STREAM = int.from_bytes(b"facesplt", "big")


def load(
    data_dir: str | os.PathLike, *, image_size: int = 112, test_share: float = 0.1
) -> identities.Identities:
    """Lists and checks the images; they are read again when asked for.

    Identities with two images or more are held out for the test, so that it is one of
    unseen identities. Which ones follows from the sorted names alone.

    Args:
        data_dir: The folder of identities. Files beside them are ignored, and so is
            what is neither .jpg, .jpeg nor .png in them, or hidden (a dot in front). An
            identity without images is left out, and the summary names it.
        image_size: Height and width that images are brought to, in pixels.
        test_share: The share of all identities to hold out, but at least two.

    Returns:
        The data: uint8[image_size, image_size, 3]. The identities of the training are
        0..n-1, those of the test n and on, each in the order of their names.

    Raises:
        InvalidInputError: If there is no such folder, there are too few identities, or
            an image cannot be read or decoded. All images are decoded once to see that.
    """
    source = f"data_dir={os.fspath(data_dir)}"
    root = pathlib.Path(data_dir)
    if not root.is_dir():
        raise InvalidInputError(f"{source} is not a folder.")
    found = {}
    for entry in root.iterdir():
        if entry.is_dir() and not entry.name.startswith("."):
            found[entry.name] = _images(entry)
        elif not entry.exists():
            raise InvalidInputError(f"{source}: {entry} is a link that leads nowhere.")
    by_name = {name: images for name, images in found.items() if images}
    names = sorted(by_name)
    several = [name for name in names if len(by_name[name]) > 1]
    num_test = max(2, round(test_share * len(names)))
    if len(several) < num_test or len(names) < num_test + 2:
        raise InvalidInputError(
            f"{source} has {len(names)} folders with images "
            f"({', '.join(_SUFFIXES)}), {len(several)} of them with two or more; "
            f"expected <identity>/<image>, with at least {num_test} identities of two "
            "images for the test and two more for the training."
        )
    rng = np.random.Generator(np.random.Philox(_PHILOX_STREAM))
    _check([image for name in names for image in by_name[name]], source)
    held_out = {several[i] for i in rng.permutation(len(several))[:num_test]}
    train = [name for name in names if name not in held_out]
    return _FolderIdentities(
        source,
        [by_name[name] for name in train],
        [by_name[name] for name in names if name in held_out],
        image_size,
        _note(sorted(found.keys() - by_name.keys())),
    )


def _note(without: list[str]) -> str:
    """Names the identities that have no images; nothing if there are none."""
    if not without:
        return ""
    shown = ", ".join(map(repr, without[:_MAX_NAMES]))
    more = len(without) - _MAX_NAMES
    return f"; left out, as without images: {shown}" + (
        f" and {more:,} more" if more > 0 else ""
    )


def _check(images: Sequence[pathlib.Path], source: str) -> None:
    """Checks that every image decodes, several at a time.

    Raises:
        InvalidInputError: If one does not; of several, the first by name.
    """

    def problem(image: pathlib.Path) -> str | None:
        try:
            image_files.check(files.read(image))
        except OSError as error:
            return f"{source}: {image} cannot be read: {error.strerror or error}."
        except ValueError as error:
            return f"{source}: {image} {error}."
        return None

    image_files.check_all(images, problem, "faces")


class _FolderIdentities(identities.Identities):
    """Images that are decoded when asked for."""

    name = "faces"
    test_is_unseen = True

    def __init__(
        self,
        source: str,
        train: Sequence[Sequence[pathlib.Path]],
        test: Sequence[Sequence[pathlib.Path]],
        image_size: int,
        note: str,
    ):
        self.num_classes = len(train)
        self.example_shape = (image_size, image_size, 3)
        self._source = source
        self._files, self._labels = _flat(train, 0)
        self._test_files, self.test_labels = _flat(test, len(train))
        self.summary = (
            f"{source.removeprefix('data_dir=')}: n={len(train):,} identities with "
            f"{len(self._files):,} images for training, {len(test):,} others with "
            f"{len(self._test_files):,} for the test{note}"
        )
        self._pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())

    def batch(self, number: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """See the base class."""
        chosen = identities.epoch_positions(number, size, len(self._files), seed)
        images = self._read([self._files[i] for i in chosen])
        return images, self._labels[chosen].astype(np.int32)

    def test_examples(self, first: int, end: int) -> np.ndarray:
        """See the base class."""
        return self._read(self._test_files[first:end])

    def _contents(self) -> Fingerprint:
        return {
            "names of identities": fingerprint.of_text(
                file.parent.name for file in (*self._files, *self._test_files)
            ),
            "images per identity": fingerprint.of_numbers(np.bincount(self._labels)),
            **fingerprint.of_files(self._files, "training images"),
            **fingerprint.of_files(self._test_files, "test images"),
        }

    def _read(self, images: Sequence[pathlib.Path]) -> np.ndarray:
        return np.stack(list(self._pool.map(self._decode, images)))

    def _decode(self, file: pathlib.Path) -> np.ndarray:
        size = self.example_shape[:2]
        try:
            image = image_files.load(files.read(file)).convert("RGB")
            return np.asarray(image.resize(size, Image.Resampling.BILINEAR))
        # By any of many exceptions; it has been checked, but that was hours ago.
        except Exception as error:
            raise RunStoppedError(
                f"{self._source}: {file} can no longer be read: "
                f"{files.one_line(error)}. Put it back as it was, then give the same "
                "command again."
            ) from error


def _images(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")
    )


def _flat(
    folders: Sequence[Sequence[pathlib.Path]], first: int
) -> tuple[list[pathlib.Path], np.ndarray]:
    """All files, and the number of the folder of each, counted from `first`."""
    labels = np.repeat(np.arange(len(folders)) + first, list(map(len, folders)))
    return [file for images in folders for file in images], labels.astype(np.int64)
