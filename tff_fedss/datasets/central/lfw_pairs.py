"""Pairs of images by a list: the protocol of Labeled Faces in the Wild (LFW).

`pairs.txt` of Huang et al. (2007), view 2: a line with the number of folds and of pairs
of either kind in a fold, then fold by fold

    NAME  1  4             images 1 and 4 of one person
    NAME  1  OTHER  2      image 1 of one person and image 2 of another

with tabs between. Image 4 of NAME is NAME/NAME_0004 with an ending, below a folder.
"""

import os
import pathlib
import re

import numpy as np
from PIL import Image

from tff_fedss import files
from tff_fedss.datasets import fingerprint
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.errors import InvalidInputError

_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
_NUMBER = re.compile(r"[0-9]{1,6}", re.ASCII)


class LfwPairs:
    """A list of pairs, and their images, which are read when asked for.

    Attributes:
        first: int64[pairs], in the order of the list, indices of images.
        second: int64[pairs], likewise.
        is_same: bool[pairs], whether both are of one person.
        num_folds: Consecutive parts of the list, each with as many pairs.
        num_images: How many different images there are.
    """

    def __init__(
        self, pairs_file: str | os.PathLike, folder: str | os.PathLike, image_size: int
    ):
        """Reads the list, and finds the images.

        Args:
            pairs_file: `pairs.txt`.
            folder: Holds a folder for each person.
            image_size: Height and width that images are brought to, in pixels.

        Raises:
            InvalidInputError: If the list is not as above, or an image is not there.
        """
        self._size = image_size
        self._label = str(pairs_file)
        try:
            text = files.read(pairs_file).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{pairs_file} cannot be read: {error}.") from error
        lines = text.splitlines()
        self.num_folds, per_kind = _header(pairs_file, lines[0] if lines else "")
        expected = 2 * self.num_folds * per_kind
        rows = [line.split("\t") for line in lines[1:] if line.strip()]
        if len(rows) != expected:
            raise InvalidInputError(
                f"{pairs_file} has {len(rows):,} pairs; expected {expected:,}: "
                f"{self.num_folds} folds of {per_kind} pairs of one person and as many "
                "of two."
            )
        self._paths: list[pathlib.Path] = []
        self._place_of: dict[tuple[str, str], int] = {}
        first, second, is_same = [], [], []
        for number, row in enumerate(rows, 2):
            named = _images(row)
            if named is None:
                raise InvalidInputError(
                    f"{pairs_file}:{number}: {' '.join(row)!r} is no pair; expected "
                    "NAME, a number and a number, or NAME, a number, NAME and a "
                    "number, with tabs between."
                )
            a, b = (self._place(pathlib.Path(folder), *image) for image in named)
            first.append(a)
            second.append(b)
            is_same.append(len(row) == 3)
        self.first, self.second = np.array(first), np.array(second)
        self.is_same = np.array(is_same)

    @property
    def num_images(self) -> int:
        """See the class."""
        return len(self._paths)

    def images(self, first: int, end: int) -> np.ndarray:
        """Reads images first..end-1, uint8[images, image_size, image_size, 3].

        Raises:
            InvalidInputError: If one cannot be read.
        """
        return np.stack([self._read(path) for path in self._paths[first:end]])

    def fingerprint(self) -> Fingerprint:
        """Returns a fingerprint of the data (see `fingerprint`)."""
        return fingerprint.of(
            {
                "pairs": len(self.first),
                "list of pairs": [self.first, self.second, self.is_same],
                "images of pairs": [
                    f"{path.name} {path.stat().st_size}" for path in self._paths
                ],
            }
        )

    def _place(self, folder: pathlib.Path, name: str, number: str) -> int:
        key = name, number
        if key not in self._place_of:
            stem = folder / name / f"{name}_{int(number):04d}"
            found = [
                p for e in _ENDINGS if (p := stem.with_name(stem.name + e)).exists()
            ]
            if not found:
                raise InvalidInputError(
                    f"{self._label} names image {int(number)} of {name}, but there is "
                    f"no {stem} with an ending of {', '.join(_ENDINGS)}."
                )
            self._place_of[key] = len(self._paths)
            self._paths.append(found[0])
        return self._place_of[key]

    def _read(self, path: pathlib.Path) -> np.ndarray:
        try:
            with Image.open(path) as image:
                size = (self._size, self._size)
                return np.asarray(
                    image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
                )
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be read: {error}.") from error


def _header(path: str | os.PathLike, line: str) -> tuple[int, int]:
    """The number of folds, and of pairs of either kind in each."""
    parts = line.split()
    numbers = [int(part) for part in parts if _NUMBER.fullmatch(part)]
    if not len(parts) == len(numbers) == 2 or min(numbers) < 1:
        raise InvalidInputError(
            f"{path}:1: {line!r} does not say how many folds there are and how many "
            "pairs of either kind in each; LFW's pairs.txt begins with 10 and 300."
        )
    folds, per_kind = numbers
    if folds < 2:
        raise InvalidInputError(f"{path}:1: {folds} folds; expected 2 or more.")
    return folds, per_kind


def _images(row: list[str]) -> list[tuple[str, str]] | None:
    """Name and number of both images of a line; None if it has not that form."""
    if len(row) == 3:
        row = [row[0], row[1], row[0], row[2]]
    if len(row) != 4 or not all(_NUMBER.fullmatch(number) for number in row[1::2]):
        return None
    if any(not name or "/" in name or name.startswith(".") for name in row[::2]):
        return None
    return [(row[0], row[1]), (row[2], row[3])]
