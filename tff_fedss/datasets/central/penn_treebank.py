"""Penn Treebank as Mikolov's 10,000-word text: ptb.{train,valid,test}.txt.

The text is the LDC's: it may be used for research but not redistributed, so it is read
from the user's files.
"""

import collections
import os
from typing import NamedTuple

import numpy as np

from tff_fedss import errors, files
from tff_fedss.datasets import fingerprint, sources
from tff_fedss.datasets.fingerprint import Fingerprint

_FILES = {part: f"ptb.{part}.txt" for part in ("train", "valid", "test")}
_TITLES = ("training", "validation", "test")
_END = "<eos>"


class PennTreebank(NamedTuple):
    """The text as word ids; more frequent words have smaller ids.

    Attributes:
        train: int32[tokens], with an end-of-sentence token after every line.
        valid: int32[tokens], in the same form.
        test: int32[tokens], in the same form.
        words: The n words, by id.
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
    """Reads three files, of a folder, an archive, or a folder with an archive."""
    source = sources.open_source(data_dir)
    tokens = {
        part: _tokens(source.read_only(name)[1], f"{source.label}: {name}")
        for part, name in _FILES.items()
    }
    counts = collections.Counter(tokens["train"])
    # Ties are in alphabetical order: ids must not depend on the order of a dictionary.
    words = sorted(counts, key=lambda word: (-counts[word], word))
    number_of = {word: number for number, word in enumerate(words)}

    def numbers(part):
        unknown = set(tokens[part]) - set(number_of)
        if unknown:
            raise errors.InvalidInputError(
                f"{source.label}: {min(unknown)!r} of {_FILES[part]} is not in "
                f"{_FILES['train']}; expected the text with <unk>."
            )
        return np.array([number_of[word] for word in tokens[part]], np.int32)

    return PennTreebank(*map(numbers, _FILES), words)


def _tokens(content: bytes, name: str) -> list[str]:
    lines = [line.split() for line in files.decoded_lines(content, name)]
    return [word for line in lines if line for word in (*line, _END)]
