import numpy as np
import pytest
from PIL import Image

from tff_fedss.datasets.central import identity_folders
from tff_fedss.errors import InvalidInputError


@pytest.fixture
def faces(tmp_path):
    """Nine identities, each a shade of grey, with one to three images."""
    for person in range(9):
        folder = tmp_path / f"person{person}"
        folder.mkdir()
        for i in range(1 + person % 3):
            image = Image.new("L" if i else "RGB", (20 + i, 30), 20 * (person + 1))
            image.save(folder / f"{i}.{'png' if i else 'JPG'}", format="PNG")
    (tmp_path / "README.txt").write_text("not a person")
    (tmp_path / "person0" / "notes.txt").write_text("not an image")
    (tmp_path / "empty").mkdir()
    return tmp_path


def shades(images):
    return images[:, 0, 0, 0] // 20 - 1


def test_folders_are_identities(faces):
    data = identity_folders.load(faces, image_size=16)
    assert data.num_classes == 7 and data.test_is_unseen
    assert "n=7 identities" in data.summary and "2 others" in data.summary
    test = shades(data.test_examples(0, 99))
    assert len(test) == len(data.test_labels) and set(data.test_labels) == {7, 8}
    counts = np.unique(test, return_counts=True)[1]
    assert len(counts) == 2 and counts.min() >= 2
    assert len(np.unique(test[data.test_labels == 7])) == 1
    num_train = 18 - len(test)
    images, labels = data.batch(0, num_train, seed=0)
    assert images.shape == (num_train, 16, 16, 3) and images.dtype == np.uint8
    train = sorted(set(range(9)) - set(test))
    np.testing.assert_array_equal(shades(images), np.array(train)[labels])
    again = identity_folders.load(str(faces), image_size=16)
    np.testing.assert_array_equal(again.batch(0, num_train, seed=0)[0], images)


def test_a_damaged_image_is_named(faces):
    for path in faces.glob("person*/0.JPG"):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InvalidInputError, match="person0/0.JPG is cut off or damaged"):
        identity_folders.load(faces, image_size=16)


def test_folders_without_identities_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match="none is not a folder"):
        identity_folders.load(tmp_path / "none")
    with pytest.raises(InvalidInputError, match="has 0 folders with images"):
        identity_folders.load(tmp_path)
