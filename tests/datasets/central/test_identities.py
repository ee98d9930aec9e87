import hashlib

import numpy as np
import pytest
from PIL import Image

from tests.datasets.images import own_images
from tff_fedss.datasets import images
from tff_fedss.datasets.central import identities
from tff_fedss.errors import InvalidInputError


def test_a_stream_of_mini_batches_goes_through_whole_epochs():
    size, total = 7, 23
    positions = np.concatenate(
        [identities.epoch_positions(i, size, total, seed=5) for i in range(2 * total)]
    )
    epochs = positions.reshape(-1, total)
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(total))
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)
    again = identities.epoch_positions(3, size, total, seed=5)
    np.testing.assert_array_equal(again, positions[21:28])
    assert (identities.epoch_positions(3, size, total, seed=6) != again).any()


def test_a_generated_identity_is_a_fixed_normal_point():
    data = identities.GeneratedIdentities(10**12)
    ids = np.array([0, 1, 10**12 - 1, 0])
    centres = data.centres(ids)
    np.testing.assert_array_equal(centres[0], centres[3])
    many = data.centres(np.arange(5000))
    assert abs(many.mean()) < 0.01 and many.std() == pytest.approx(1, abs=0.01)
    assert abs(np.mean(many**4) - 3) < 0.1
    # No two coordinates, and no two identities, go together.
    correlation = np.corrcoef(many.T) - np.eye(many.shape[1])
    assert abs(correlation).max() < 0.08
    other = identities.GeneratedIdentities(10**12, seed=1).centres(ids)
    assert (other != centres).mean() > 0.99


def test_generated_examples_follow_from_the_arguments():
    data = identities.GeneratedIdentities(1000, num_test_identities=5)
    examples, labels = data.batch(3, 200, seed=1)
    again, same_labels = identities.GeneratedIdentities(1000).batch(3, 200, seed=1)
    np.testing.assert_array_equal(examples, again)
    np.testing.assert_array_equal(labels, same_labels)
    for number, seed in ((4, 1), (3, 2)):
        assert (data.batch(number, 200, seed)[1] != labels).any()
    # The half that matters is there, once the rotation is undone.
    own = (examples @ data._rotation.T)[:, :32]
    assert np.std(own - data.centres(labels)) == pytest.approx(0.3, rel=0.05)
    np.testing.assert_array_equal(data.test_labels, 1000 + np.repeat(np.arange(5), 4))
    tests = data.test_examples(0, 99)
    assert tests.shape == (20, 64) and tests.dtype == np.float32
    np.testing.assert_array_equal(data.test_examples(7, 9), tests[7:9])


def load(folder, **options):
    return identities.of_images(images.load_index(folder), image_size=16, **options)


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
    data = load(faces)
    assert data.num_classes == 7 and data.test_is_unseen
    assert "n=7 identities" in data.summary and "2 others" in data.summary
    assert "without images: 'empty'" in data.summary
    test = shades(data.test_examples(0, 99))
    assert len(test) == len(data.test_labels) and set(data.test_labels) == {7, 8}
    counts = np.unique(test, return_counts=True)[1]
    assert len(counts) == 2 and counts.min() >= 2
    assert len(np.unique(test[data.test_labels == 7])) == 1
    num_train = 18 - len(test)
    batch, labels = data.batch(0, num_train, seed=0)
    assert batch.shape == (num_train, 16, 16, 3) and batch.dtype == np.uint8
    train = sorted(set(range(9)) - set(test))
    np.testing.assert_array_equal(shades(batch), np.array(train)[labels])
    again = load(str(faces))
    np.testing.assert_array_equal(again.batch(0, num_train, seed=0)[0], batch)


def test_identities_are_numbered_and_held_out_as_ever(tmp_path):
    """What the reader of folders gave that this one replaced."""
    names = ("a", "a b", "a-b", "a.b", "Zed", "é", "p0", "p1", "p2", "p3", "p4", "p5")
    contents = {
        f"{name}/{i}.png": own_images.encoded(own_images.picture(10 * k + i))
        for k, name in enumerate(names)
        for i in range(1 + k % 3)
    }
    data = load(own_images.write(tmp_path, contents))
    assert data.num_classes == 10
    np.testing.assert_array_equal(data.test_labels, np.repeat([10, 11], 3))
    batch, labels = data.batch(0, 16, seed=3)
    assert labels.tolist() == [8, 3, 9, 0, 8, 4, 7, 2, 5, 6, 2, 9, 3, 0, 1, 6]
    digest = hashlib.sha256(batch.tobytes() + data.test_examples(0, 9).tobytes())
    assert digest.hexdigest()[:16] == "a12bf92100bf401b"


def test_a_given_test_is_taken_as_it_is(tmp_path):
    names = [f"train/{c}/{i}.png" for c in "abc" for i in range(3)]
    seen = [f"test/{c}/{i}.png" for c in "cb" for i in range(2)]
    unseen = [f"val/{c}/{i}.png" for c in "yx" for i in range(2)]
    folder = own_images.write(tmp_path / "seen", own_images.images(*names, *seen))
    data = load(folder)
    assert data.num_classes == 3 and not data.test_is_unseen
    assert data.test_labels.tolist() == [1, 1, 2, 2]
    assert "others of theirs: 4 for the test" in data.summary
    folder = own_images.write(tmp_path / "unseen", own_images.images(*names, *unseen))
    data = load(folder)
    assert data.num_classes == 3 and data.test_is_unseen
    assert data.test_labels.tolist() == [3, 3, 4, 4]
    # val is left out where there is a test.
    folder = tmp_path / "both"
    seen = [name.replace("train", "val") for name in names]
    unseen = [name.replace("val", "test") for name in unseen]
    data = load(own_images.write(folder, own_images.images(*names, *seen, *unseen)))
    assert data.test_is_unseen and data.test_labels.tolist() == [3, 3, 4, 4]
    assert "left out: 9 images of the data's own val or test" in data.summary
    own_images.write(folder, own_images.images("train/d/0.png"))
    data = load(folder, test="classes")
    assert "left out: 13 images of the data's own val or test" in data.summary


def test_the_share_of_held_out_identities(tmp_path):
    names = [f"{c}/{i}.png" for c in "abcdefghij" for i in range(2)]
    folder = own_images.write(tmp_path, own_images.images(*names))
    assert load(folder).num_classes == 8
    assert load(folder, test_share=0.5).num_classes == 5
    with pytest.raises(InvalidInputError, match="10 identities, 10 of two"):
        load(folder, test_share=0.9)
    with pytest.raises(InvalidInputError, match="pairs of both kinds: use a larger"):
        load(folder, test="images", test_share=0.5)
