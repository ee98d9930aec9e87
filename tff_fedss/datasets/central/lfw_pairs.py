"""Pairs of images by a list: the protocol of Labeled Faces in the Wild (LFW).

`pairs.txt` of Huang et al. (2007), view 2: a line with the number of folds and of pairs
of either kind in a fold, then fold by fold

    NAME  1  4             images 1 and 4 of one person
    NAME  1  OTHER  2      image 1 of one person and image 2 of another

with tabs between. Image 4 of NAME is NAME/NAME_0004 with an ending, below a folder.
"""

import os
import pathlib

import numpy as np
from PIL import Image

from tff_fedss import files
from tff_fedss.datasets import fingerprint, formats
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.errors import InvalidInputError

_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


class LfwPairs:
    """A list of pairs, and their images, which are read on request.

    Attributes:
        first: int64[pairs], index of each pair's first image, in the order of the list.
        second: int64[pairs], index of each pair's second image.
        is_same: bool[pairs], whether both are of one person.
        num_folds: Number of consecutive parts of the list, of equal size.
    """

    def __init__(
        self, pairs_file: str | os.PathLike, folder: str | os.PathLike, image_size: int
    ):
        """Reads `pairs.txt`, and finds the images in the folders of persons."""
        self._size = image_size
        self._label = str(pairs_file)
        header, *lines = files.read_lines(pairs_file) or [""]
        numbers = [int(n) for n in header.split() if n.isdecimal()]
        rows = [
            (number, line.split("\t"))
            for number, line in enumerate(lines, 2)
            if line.strip()
        ]
        is_whole = len(numbers) == 2 and numbers[0] > 1 and numbers[1] > 0
        if not is_whole or len(rows) != 2 * numbers[0] * numbers[1]:
            raise InvalidInputError(
                f"{pairs_file}:1: found {header!r} and {len(rows):,} pairs; expected "
                "the number of folds, 2 or more, and that of pairs of either kind in "
                "each."
            )
        self.num_folds = numbers[0]
        self._paths: list[pathlib.Path] = []
        self._place_of: dict[tuple[str, str], int] = {}
        first, second, is_same = [], [], []
        for number, row in rows:
            text = " ".join(row)
            is_same.append(len(row) == 3)
            if is_same[-1]:
                row = [row[0], row[1], row[0], row[2]]
            if (
                len(row) != 4
                or not all(map(str.isdecimal, (row[1], row[3])))
                or (row[0] == row[2]) != is_same[-1]
            ):
                raise InvalidInputError(
                    f"{pairs_file}:{number}: expected NAME, number, number or NAME, "
                    f"number, OTHER, number with tabs between, found {text!r}."
                )
            first.append(self._place(pathlib.Path(folder), row[0], row[1]))
            second.append(self._place(pathlib.Path(folder), row[2], row[3]))
        self.first, self.second = np.array(first), np.array(second)
        self.is_same = np.array(is_same)
        if 2 * np.count_nonzero(self.is_same) != len(self.is_same):
            raise InvalidInputError(
                f"{pairs_file}: {np.count_nonzero(self.is_same):,} of "
                f"{len(self.is_same):,} pairs are of one person; expected half of them."
            )
        self.num_images = len(self._paths)

    def images(self, first: int, end: int) -> np.ndarray:
        """Reads images first..end-1, uint8[images, image_size, image_size, 3]."""
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
                endings = ", ".join(_ENDINGS)
                raise InvalidInputError(f"{self._label}: no file {stem} ({endings}).")
            self._place_of[key] = len(self._paths)
            self._paths.append(found[0])
        return self._place_of[key]

    def _read(self, path: pathlib.Path) -> np.ndarray:
        content = files.read_bytes(path)
        try:
            image = Image.fromarray(formats.pixels(content))
        except ValueError as error:
            raise InvalidInputError(f"{path} {error}.") from error
        size = (self._size, self._size)
        return np.asarray(image.resize(size, Image.Resampling.BILINEAR))
