import numpy as np
import pytest

from tff_fedss.datasets.central import identities


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


def test_arrays_are_given_as_they_are():
    images = np.arange(12, dtype=np.uint8).reshape(6, 2)
    labels = np.array([0, 0, 1, 1, 2, 2])
    data = identities.ArrayIdentities(
        "toy", (images, labels), (images[:3], labels[:3] + 3), "a note"
    )
    assert data.num_classes == 3 and data.test_is_unseen
    assert data.summary.endswith("6 training and 3 test images, a note")
    for number in range(4):
        examples, found = data.batch(number, 4, seed=0)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, labels[examples[:, 0] // 2])
    np.testing.assert_array_equal(data.test_examples(1, 9), images[1:3])


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
