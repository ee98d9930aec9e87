"""Photographs of identities, such as faces: a folder for each identity.

The layout of LFW, CASIA-WebFace, VGGFace2 and others, once unpacked:
`<data_dir>/<identity>/<image>.jpg` (or .jpeg, .png). Faces should be aligned and
cropped already; images are resized to squares.
"""

import concurrent.futures
import io
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from PIL import Image

from tff_fedss.datasets import identities, image_files
from tff_fedss.errors import InvalidInputError

_SUFFIXES = (".jpg", ".jpeg", ".png")
# Decides which identities are held out.
_PHILOX_STREAM = int.from_bytes(b"facesplt", "big")


def load(
    data_dir: str | os.PathLike, *, image_size: int = 112, test_share: float = 0.1
) -> identities.Identities:
    """Lists the images; they are read when asked for.

    Identities with two images or more are held out for the test, so that it is one of
    unseen identities. Which ones follows from the sorted names alone.

    Args:
        data_dir: The folder of identities. Files beside them are ignored, and so is
            what is neither .jpg, .jpeg nor .png in them.
        image_size: Height and width that images are brought to, in pixels.
        test_share: The share of all identities to hold out, but at least two.

    Returns:
        The data: uint8[image_size, image_size, 3]. The identities of the training are
        0..n-1, those of the test n and on, each in the order of their names.

    Raises:
        InvalidInputError: If there is no such folder, or too few identities. An image
            that cannot be read is named when it is asked for.
    """
    source = f"--data_dir={os.fspath(data_dir)}"
    root = pathlib.Path(data_dir)
    if not root.is_dir():
        raise InvalidInputError(f"{source} is not a folder.")
    by_name = {
        folder.name: files
        for folder in sorted(path for path in root.iterdir() if path.is_dir())
        if (files := _images(folder))
    }
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
    held_out = {several[i] for i in rng.permutation(len(several))[:num_test]}
    train = [name for name in names if name not in held_out]
    return _FolderIdentities(
        source,
        [by_name[name] for name in train],
        [by_name[name] for name in names if name in held_out],
        image_size,
    )


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
    ):
        self.num_classes = len(train)
        self.example_shape = (image_size, image_size, 3)
        self._source = source
        self._files, self._labels = _flat(train, 0)
        self._test_files, self.test_labels = _flat(test, len(train))
        self.summary = (
            f"{source.removeprefix('--data_dir=')}: n={len(train):,} identities with "
            f"{len(self._files):,} images for training, {len(test):,} others with "
            f"{len(self._test_files):,} for the test"
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

    def _read(self, files: Sequence[pathlib.Path]) -> np.ndarray:
        return np.stack(list(self._pool.map(self._decode, files)))

    def _decode(self, file: pathlib.Path) -> np.ndarray:
        size = self.example_shape[:2]
        try:
            encoded = file.read_bytes()
            image_files.check(encoded)
            image = Image.open(io.BytesIO(encoded)).convert("RGB")
            return np.asarray(image.resize(size, Image.Resampling.BILINEAR))
        except OSError as error:
            raise InvalidInputError(
                f"{self._source}: {file} cannot be read: {error}."
            ) from error
        except ValueError as error:
            raise InvalidInputError(f"{self._source}: {file} {error}.") from error


def _images(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)


def _flat(
    folders: Sequence[Sequence[pathlib.Path]], first: int
) -> tuple[list[pathlib.Path], np.ndarray]:
    """All files, and the number of the folder of each, counted from `first`."""
    labels = np.repeat(np.arange(len(folders)) + first, list(map(len, folders)))
    return [file for files in folders for file in files], labels.astype(np.int64)
