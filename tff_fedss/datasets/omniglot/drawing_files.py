"""The drawings of Omniglot, and how they are read from the files of a user."""

import dataclasses
import io
import os
import pathlib
import re
from collections.abc import Iterator

import numpy as np
import tqdm
from PIL import Image

from tff_fedss import errors, files
from tff_fedss.datasets import archives, image_files

NUM_CHARACTERS = 1623
# Characters 1..964 are the "background" set of 30 alphabets, 965..1623 the "evaluation"
# set of 20, in the numbering of the file names.
NUM_BACKGROUND_CHARACTERS = 964
NUM_DRAWERS = 20
NUM_DRAWINGS = NUM_CHARACTERS * NUM_DRAWERS

_LAYOUT = "<Alphabet>/characterNN/XXXX_YY.png"
_DRAWING = re.compile(r"(?:^|/)([^/]+)/character\d+/(\d{4})_(\d{2})\.png$")


@dataclasses.dataclass(frozen=True)
class Drawings:
    """All 32,460 drawings, sorted by character and then by drawer.

    Attributes:
        images: uint8[32460, size, size, 1]; ink is 255 on 0.
        characters: int32[32460], in 1..1623.
        drawers: int32[32460], in 1..20. Drawers of different alphabets are different
            people, though they have the same numbers.
        alphabets: str[32460], the name of the character's alphabet.
    """

    images: np.ndarray
    characters: np.ndarray
    drawers: np.ndarray
    alphabets: np.ndarray


class Collector:
    """Takes drawings in any order and checks that they are Omniglot's, all of them."""

    def __init__(self, source: str, image_size: int):
        """Starts without a drawing.

        Args:
            source: Where the drawings come from, as messages are to name it.
            image_size: The height and width that they are brought to, in pixels.
        """
        self._source = source
        self._image_size = image_size
        self._images = {}
        self._names = {}
        self._alphabets = {}

    def add(
        self, name: str, alphabet: str, character: int, drawer: int, image: Image.Image
    ) -> None:
        """Adds one drawing.

        Args:
            name: What to call it in a message.
            alphabet: The name of its alphabet.
            character: In 1..1623; another number is not Omniglot's.
            drawer: In 1..20, likewise.
            image: Dark ink on white, square, at least image_size wide.

        Raises:
            errors.InvalidInputError: If it is not such a drawing, or is another one of
                the same character by the same drawer.
        """
        if not (1 <= character <= NUM_CHARACTERS and 1 <= drawer <= NUM_DRAWERS):
            raise errors.InvalidInputError(
                f"{self._source}: {name} is character {character} by drawer {drawer}; "
                f"Omniglot has characters 1 to {NUM_CHARACTERS} and drawers 1 to "
                f"{NUM_DRAWERS}."
            )
        width, height = image.size
        size = self._image_size
        if width != height or width < size:
            raise errors.InvalidInputError(
                f"{self._source}: {name} is {width}x{height} pixels; expected a square "
                f"of at least image_size={size} pixels a side."
            )
        image = image.convert("L")
        if width > size:
            image = image.resize((size, size), Image.Resampling.BOX)
        pixels = 255 - np.asarray(image)
        key = (character, drawer)
        if key in self._images and not np.array_equal(self._images[key], pixels):
            raise errors.InvalidInputError(
                f"{self._source}: {self._names[key]} and {name} are the same character "
                "by the same drawer, but differ: keep one of them."
            )
        self._images[key] = pixels
        self._names[key] = name
        self._alphabets[character] = alphabet

    def drawings(self) -> Drawings:
        """Returns all drawings.

        Raises:
            errors.InvalidInputError: If one of the 32,460 is missing.
        """
        expected = [
            (character, drawer)
            for character in range(1, NUM_CHARACTERS + 1)
            for drawer in range(1, NUM_DRAWERS + 1)
        ]
        missing = [key for key in expected if key not in self._images]
        if missing:
            character, drawer = missing[0]
            raise errors.InvalidInputError(
                f"{self._source}: found {len(self._images):,} drawings of "
                f"{len(self._alphabets):,} characters; expected {NUM_DRAWINGS:,} of "
                f"{NUM_CHARACTERS:,}. The first that is missing is "
                f"{character:04}_{drawer:02}.png."
            )
        characters, drawers = np.array(expected, np.int32).T
        return Drawings(
            np.stack([self._images[key] for key in expected])[..., None],
            characters,
            drawers,
            np.array([self._alphabets[character] for character, _ in expected]),
        )


def progress(drawings: Iterator) -> Iterator:
    """Shows a bar on a terminal if going through the drawings takes over 2 seconds."""
    return tqdm.tqdm(
        drawings,
        desc="Reading Omniglot",
        total=NUM_DRAWINGS,
        unit=" drawings",
        delay=2,
        disable=None,
    )


def read(data_dir: os.PathLike, image_size: int) -> Drawings:
    """Reads and checks every drawing in a folder or an archive; writes nothing.

    Files are recognized by `<Alphabet>/characterNN/XXXX_YY.png` at the end of their
    path, with XXXX the number of the character and YY the drawer; others are ignored.

    Args:
        data_dir: A folder with such files somewhere below it; or, if it has none, a
            folder with archives of them (such as the original `images_background.zip`
            and `images_evaluation.zip`); or the path of one archive.
        image_size: The height and width that drawings are brought to, in pixels, by
            averaging areas.

    Returns:
        The drawings.

    Raises:
        errors.InvalidInputError: If there are no drawings, if one is missing or cannot
            be decoded, or if an archive is damaged.
    """
    source = f"data_dir={os.fspath(data_dir)}"
    collector = Collector(source, image_size)
    for name, content in progress(_files(pathlib.Path(data_dir), source)):
        alphabet, character, drawer = _DRAWING.search(name).groups()
        collector.add(
            name, alphabet, int(character), int(drawer), _decode(source, name, content)
        )
    return collector.drawings()


def _decode(source: str, name: str, content: bytes) -> Image.Image:
    try:
        Image.open(io.BytesIO(content), formats=["PNG"])
        image_files.check(content)
        return image_files.load(content)
    except image_files.DECODING_ERRORS as e:
        raise errors.InvalidInputError(
            f"{source}: {name} ({len(content)} bytes) is not a whole PNG: "
            f"{files.error_text(e)}"
        ) from e


def _files(path: pathlib.Path, source: str) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of every drawing's file below a path."""
    if not path.exists():
        raise errors.InvalidInputError(f"{source} does not exist.")
    if not path.is_dir():
        yield from _archived_files(path, source)
        return
    found = sorted(
        file for file in path.rglob("*.png") if _DRAWING.search(file.as_posix())
    )
    if found:
        for file in found:
            yield str(file.relative_to(path)), _read_file(file, source)
        return
    entries = sorted(path.iterdir())
    archived = list(filter(archives.is_archive, entries))
    if not archived:
        found = f"{len(entries)} other entries" if entries else "an empty folder"
        raise errors.InvalidInputError(
            f"{source}: found {found}; expected Omniglot's drawings ({_LAYOUT}) or an "
            f"archive of them ({', '.join(archives.SUFFIXES)})."
        )
    for archive in archived:
        yield from _archived_files(archive, source)


def _read_file(file: pathlib.Path, source: str) -> bytes:
    try:
        return files.read(file)
    except OSError as e:
        raise errors.InvalidInputError(
            f"{source}: cannot read {file}: {e.strerror or e}."
        ) from e


def _archived_files(archive: pathlib.Path, source: str) -> Iterator[tuple[str, bytes]]:
    if not archives.is_archive(archive):
        raise errors.InvalidInputError(
            f"{source}: expected a folder or an archive "
            f"({', '.join(archives.SUFFIXES)}), found the file {archive.name}."
        )
    found = False
    for name, content in archives.members(
        archive, source, lambda name: _DRAWING.search(name) is not None
    ):
        found = True
        yield name, content
    if not found:
        raise errors.InvalidInputError(
            f"{source}: the archive {archive.name} holds no drawing of Omniglot's "
            f"({_LAYOUT})."
        )
