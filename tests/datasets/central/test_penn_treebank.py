import numpy as np
import pytest

from tests.datasets.images import own_images
from tff_fedss.datasets.central import penn_treebank
from tff_fedss.errors import InvalidInputError

TEXTS = {
    "ptb.train.txt": b" the cat sat \n the dog \n the cat <unk> \n",
    "ptb.valid.txt": b" the dog sat \n",
    "ptb.test.txt": b" <unk> cat \n",
}


def write(folder, **changed):
    texts = {f"ptb.{part}.txt": text.encode() for part, text in changed.items()}
    return own_images.write(folder, {**TEXTS, **texts})


def assert_is_the_text(data):
    # 3 sentences, 3 the, 2 cat; then by the alphabet.
    assert data.words == ["<eos>", "the", "cat", "<unk>", "dog", "sat"]
    np.testing.assert_array_equal(data.train, [1, 2, 5, 0, 1, 4, 0, 1, 2, 3, 0])
    np.testing.assert_array_equal(data.valid, [1, 4, 5, 0])
    np.testing.assert_array_equal(data.test, [3, 2, 0])
    assert data.train.dtype == np.int32


def test_a_folder_is_read(tmp_path):
    assert_is_the_text(penn_treebank.load(write(tmp_path)))


@pytest.mark.parametrize("by_folder", [True, False])
def test_a_zip_is_read_beside_what_else_is_in_it(tmp_path, by_folder):
    contents = {f"data/{name}": text for name, text in TEXTS.items()}
    others = {f"__MACOSX/._{name}": b"\x00\xff" for name in TEXTS}
    path = own_images.write(tmp_path / "ptb.zip", contents | others)
    assert_is_the_text(penn_treebank.load(tmp_path if by_folder else path))


def test_a_later_text_has_the_words_of_the_training_text(tmp_path):
    write(tmp_path, valid="a bird \n")
    with pytest.raises(InvalidInputError, match="'a' of .* is not in pt"):
        penn_treebank.load(tmp_path)


def test_what_is_missing_or_damaged_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "ptb.valid.txt").unlink()
    with pytest.raises(InvalidInputError, match="found 0 files ptb.valid.txt"):
        penn_treebank.load(tmp_path)
    (tmp_path / "ptb.valid.txt").write_bytes(b"the\ncat \xff")
    with pytest.raises(InvalidInputError, match="ptb.valid.txt:2: this is not UTF-8"):
        penn_treebank.load(tmp_path)


def test_the_real_text(test_data):
    data = penn_treebank.load(test_data / "ptb")
    assert len(data.words) == 10_000
    # 887,521 words and 42,068 ends of sentences.
    assert len(data.train) == 929_589 and len(data.valid) == 73_760
    assert len(data.test) == 82_430
    assert data.words[:2] == ["the", "<unk>"]
