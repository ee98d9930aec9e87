"""Drawings of Omniglot, read from the files of a user."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image

from tff_fedss import progress
from tff_fedss.datasets import formats, sources
from tff_fedss.errors import InvalidInputError

NUM_CHARACTERS = 1623
# Characters 1..964 are the "background" set of 30 alphabets, 965..1623 the "evaluation"
# set of 20, in the numbering of the file names.
NUM_BACKGROUND_CHARACTERS = 964
NUM_DRAWERS = 20
NUM_DRAWINGS = NUM_CHARACTERS * NUM_DRAWERS

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


class Drawing(NamedTuple):
    """One drawing.

    Attributes:
        name: What to call it in a message.
        alphabet: The name of its alphabet.
        character: In 1..1623.
        drawer: In 1..20.
        image: Dark ink on white.
    """

    name: str
    alphabet: str
    character: int
    drawer: int
    image: Image.Image


def collect(drawings: Iterable[Drawing], label: str, image_size: int) -> Drawings:
    """Takes drawings in any order and checks that they are Omniglot's, all of them.

    Args:
        drawings: All drawings.
        label: What messages begin with.
        image_size: The height and width that they are brought to, in pixels, by
            averaging areas.
    """
    images, names, alphabets = {}, {}, {}
    for name, alphabet, character, drawer, image in progress.bar(
        "Reading Omniglot", NUM_DRAWINGS, "drawings", drawings
    ):
        width, height = image.size
        if width != height or width < image_size:
            raise InvalidInputError(
                f"{label}: {name} is {width}x{height} pixels; expected a square of at "
                f"least image_size={image_size} pixels a side."
            )
        image = image.convert("L")
        if width > image_size:
            image = image.resize((image_size, image_size), Image.Resampling.BOX)
        pixels = 255 - np.asarray(image)
        key = (character, drawer)
        if not np.array_equal(images.setdefault(key, pixels), pixels):
            raise InvalidInputError(
                f"{label}: {names[key]} and {name} are one drawing but differ."
            )
        names[key], alphabets[character] = name, alphabet
    expected = [
        (character, drawer)
        for character in range(1, NUM_CHARACTERS + 1)
        for drawer in range(1, NUM_DRAWERS + 1)
    ]
    for character, drawer in sorted(set(expected) ^ images.keys())[:1]:
        raise InvalidInputError(
            f"{label}: found {len(images):,} <Alphabet>/characterNN/XXXX_YY.png of "
            f"{len(alphabets):,} characters; expected {NUM_DRAWINGS:,} of "
            f"{NUM_CHARACTERS:,}. Missing, or too many: {character:04}_{drawer:02}.png."
        )
    characters, drawers = np.array(expected, np.int32).T
    return Drawings(
        np.stack([images[key] for key in expected])[..., None],
        characters,
        drawers,
        np.array([alphabets[character] for character, _ in expected]),
    )


def read(data_dir: str | os.PathLike, image_size: int) -> Drawings:
    """Reads and checks every drawing in a folder or an archive.

    Files are recognized by `<Alphabet>/characterNN/XXXX_YY.png` at the end of their
    path, with XXXX the number of the character and YY the drawer; others are ignored.

    Args:
        data_dir: A folder with such files somewhere below it; or, if it has none, a
            folder with archives of them (such as the original `images_background.zip`
            and `images_evaluation.zip`); or the path of one archive.
        image_size: The height and width that drawings are brought to, in pixels, by
            averaging areas.
    """
    label = f"data_dir={os.fspath(data_dir)}"
    return collect(_drawings(pathlib.Path(data_dir), label), label, image_size)


def _drawings(path: pathlib.Path, label: str) -> Iterator[Drawing]:
    found = [sources.open_source(path, label)]
    if path.is_dir() and not any(map(_DRAWING.search, found[0].names)):
        archives = sorted(filter(sources.is_archive, path.iterdir()))
        found = [sources.open_source(archive, label) for archive in archives]
    for source in found:
        for name, content in source.read_all(_DRAWING.search):
            try:
                formats.check(content)
                image = Image.fromarray(formats.pixels(content))
            except ValueError as error:
                raise InvalidInputError(f"{label}: {name} {error}.") from error
            alphabet, character, drawer = _DRAWING.search(name).groups()
            yield Drawing(name, alphabet, int(character), int(drawer), image)
