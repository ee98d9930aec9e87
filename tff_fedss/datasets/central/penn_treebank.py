"""Penn Treebank as Mikolov's 10,000-word text: ptb.{train,valid,test}.txt.

The text is the LDC's: it may be used for research and must not be passed on, so it is
read from where the user has it.
"""

import collections
import os
from typing import NamedTuple

import numpy as np

from tff_fedss import errors
from tff_fedss.datasets import fingerprint, sources
from tff_fedss.datasets.fingerprint import Fingerprint

_FILES = {part: f"ptb.{part}.txt" for part in ("train", "valid", "test")}
_TITLES = ("training", "validation", "test")
_END = "<eos>"


class PennTreebank(NamedTuple):
    """The text as numbers of words; more frequent words have smaller numbers.

    Attributes:
        train: int32[tokens], every line with an end-of-sentence token after it.
        valid: int32[tokens], likewise.
        test: int32[tokens], likewise.
        words: The n words, by their numbers.
    """

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    words: list[str]

    def fingerprint(self) -> Fingerprint:
        """Returns a fingerprint of the text (see `fingerprint`)."""
        result = {"words": len(self.words), "spelling of words": self.words}
        for part, tokens in zip(_TITLES, self[:3], strict=True):
            result |= {
                f"{part} tokens": len(tokens),
                f"contents of {part} text": tokens,
            }
        return fingerprint.of(result)


def load(data_dir: str | os.PathLike) -> PennTreebank:
    """Reads the three files.

    Args:
        data_dir: A folder with the files, or an archive of them or a folder with that.

    Raises:
        errors.InvalidInputError: If a file is missing, empty or not text, the archive
            is damaged, or a later file has a word that the training text has not.
    """
    source = f"data_dir={data_dir}"
    texts = _read(data_dir, source)
    tokens = {part: _tokens(texts, part, source) for part in _FILES}
    counts = collections.Counter(tokens["train"])
    # Ties by the alphabet: the numbers must not depend on the order of a dictionary.
    words = sorted(counts, key=lambda word: (-counts[word], word))
    number_of = {word: number for number, word in enumerate(words)}

    def numbers(part):
        unknown = set(tokens[part]) - set(number_of)
        if unknown:
            raise errors.InvalidInputError(
                f"{source}: {_FILES[part]} has the word {min(unknown)!r}, which is not "
                f"in {_FILES['train']}; expected the preprocessed text with <unk>."
            )
        return np.array([number_of[word] for word in tokens[part]], np.int32)

    return PennTreebank(*map(numbers, _FILES), words)


def _tokens(texts: dict[str, bytes], part: str, source: str) -> list[str]:
    name = _FILES[part]
    if name not in texts:
        raise errors.InvalidInputError(f"{source} has no {name}.")
    try:
        text = texts[name].decode("utf-8-sig")  # Some editors write such a mark.
    except UnicodeDecodeError as error:
        raise errors.InvalidInputError(
            f"{source}: {name} is not UTF-8 text: {error.reason} at byte {error.start}."
        ) from error
    if "\0" in text:
        raise errors.InvalidInputError(
            f"{source}: {name} is not UTF-8 text: a zero byte at character "
            f"{text.index(chr(0)):,}."
        )
    lines = [line.split() for line in text.splitlines()]
    if any(_END in line for line in lines):
        raise errors.InvalidInputError(
            f"{source}: {name} has the word {_END}, which is put after every line "
            "here; expected the text without it."
        )
    tokens = [word for line in lines if line for word in (*line, _END)]
    if not tokens:
        raise errors.InvalidInputError(f"{source}: {name} is empty.")
    return tokens


def _read(data_dir: str | os.PathLike, source: str) -> dict[str, bytes]:
    found = sources.open_source(data_dir, source)
    texts = {}
    for path, content in found.read_all(
        lambda path: path.rpartition("/")[2] in _FILES.values()
    ):
        name = path.rpartition("/")[2]
        if name in texts:
            raise errors.InvalidInputError(
                f"{source}: {found.path.name} has {name} twice; expected one copy."
            )
        texts[name] = content
    return texts
