import numpy as np
import pytest

from tests.datasets.images import own_images
from tff_fedss.datasets import images
from tff_fedss.datasets.federated.partitioners import Classes, Iid, Natural
from tff_fedss.datasets.images import layout
from tff_fedss.errors import InvalidInputError

CLASSES, EACH, CLIENTS = 8, 10, 4


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """8 classes of 10 pictures, on 4 clients; half of the last two is the test."""
    root = tmp_path_factory.mktemp("own")
    lines = ["path,label,client,split"]
    contents = {}
    for c in range(CLASSES):
        for i in range(EACH):
            name = f"{c}_{i}.png"
            contents[name] = own_images.encoded(own_images.picture(EACH * c + i))
            split = "test" if c >= 6 and i % 2 else "val" if i == 0 else "train"
            lines.append(f"{name},class {c},client {i % CLIENTS},{split}")
    contents["images.csv"] = "\n".join(lines).encode()
    own_images.write(root / "data", contents)
    return images.load_index(root / "data")


def load(index, by=images.federated, **options):
    options = {"partition": Iid(4), "image_size": 10, "resize_size": 12, **options}
    return by(index, **options)


def labels_of(data):
    return np.array([int(example["label"]) for example in data])


def of_clients(dataset):
    return {
        client: labels_of(dataset.train.create_tf_dataset_for_client(client))
        for client in dataset.train.client_ids
    }


@pytest.mark.parametrize("test", ["images", "clients", "given", None])
def test_known_classes_are_held_out(index, test):
    # A share of less than half a client is one client.
    dataset = load(index, test=test, test_share=0.1)
    assert dataset.num_classes == CLASSES and not dataset.test_is_unseen
    train = np.concatenate(list(of_clients(dataset).values()))
    held_out = labels_of(dataset.test_examples())
    assert len(held_out) == dataset.test.num_examples > 0
    assert set(train) == set(range(CLASSES)) >= set(held_out)
    # What the data call validation is trained in no case; nor is their test.
    given = index.splits == layout.TRAIN
    if test in ("given", None):
        assert len(train) == given.sum() and set(held_out) == {6, 7}
    else:
        assert len(train) + len(held_out) == given.sum()


def test_a_note_says_that_the_clients_of_the_data_are_not_used(index):
    assert "clients are not used, see --partition=natural" in load(index).note
    assert "not used" not in load(index, partition=Natural()).note


def test_a_note_counts_the_classes_that_validation_takes(index):
    options = {"test": "images", "validation_share": 0.25}
    dataset = load(index, partition=Classes(per_client=1, clients=CLASSES), **options)
    assert dataset.num_classes == CLASSES
    assert "; 2 classes have no training image, and stay in n" in dataset.note
    assert "stay in n" not in load(index, partition=Natural(), **options).note


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_share_of_each_class_leaves_one_image(index, share):
    dataset = load(index, test="images", test_share=share)
    sizes = np.bincount(labels_of(dataset.test_examples()), minlength=CLASSES)
    given = np.bincount(index.labels[index.splits == layout.TRAIN])
    expected = np.minimum(np.round(given * share), given - 1)
    np.testing.assert_array_equal(sizes, expected)


def test_unseen_classes_are_held_out(index):
    dataset = load(index, retrieval=True, test="classes", test_share=0.25)
    assert dataset.num_classes == 6 and dataset.test_is_unseen
    assert set(labels_of(dataset.test_examples())) == {0, 1}
    assert set(np.concatenate(list(of_clients(dataset).values()))) == set(range(6))


def test_public_classes_are_on_no_client(index):
    dataset = load(index, test="images", num_public_classes=3)
    assert dataset.num_classes == 5 and dataset.public.num_classes == 3
    assert "public images of 3 other classes" in dataset.summary()
    assert set(labels_of(dataset.public_examples())) == {0, 1, 2}
    assert len(labels_of(dataset.public_examples())) == dataset.public.num_examples
    assert "left out of the test" in dataset.note


@pytest.mark.parametrize("retrieval", [False, True])
def test_validation_clients_are_measured_in_trained_classes(index, retrieval):
    options = {"test": "classes" if retrieval else "images", "retrieval": retrieval}
    options["partition"] = Classes(per_client=1, clients=12)
    everyone = of_clients(load(index, **options))
    dataset = load(index, **options, validation_share=0.5, on_validation=True)
    trained = set(np.concatenate(list(of_clients(dataset).values())))
    apart = [everyone[k] for k in everyone.keys() - dataset.train.client_ids]
    theirs = sorted(np.concatenate(apart))
    known = [label for label in theirs if label in trained]
    assert 0 < len(known) < len(theirs)
    # Retrieval takes all of them.
    found = sorted(labels_of(dataset.test_examples()))
    assert found == (theirs if retrieval else known) and not dataset.test_is_unseen


def test_clients_know_their_classes_without_reading(index, monkeypatch):
    dataset = load(index, partition=Natural())
    monkeypatch.setattr(index, "encoded", None)
    for client in dataset.train.client_ids:
        assert dataset.num_examples(client) > 0
        assert (np.diff(dataset.positives(client)) > 0).all()
    monkeypatch.undo()
    for client, labels in of_clients(dataset).items():
        np.testing.assert_array_equal(np.unique(labels), dataset.positives(client))
        assert len(labels) == dataset.num_examples(client)
    assert dataset.max_positives == CLASSES


def test_images_are_those_of_the_files(index):
    assert load(index, image_size=None).image_shape == (10, 10, 3)  # Of 12 x 10.
    # Resized to more bytes than the files have, they are kept as they are.
    dataset = load(index, partition=Natural(), resize_size=20)
    by_pixels = {}
    for c in range(CLASSES):
        for i in range(EACH):
            by_pixels[own_images.picture(EACH * c + i)[:10, :10].tobytes()] = c
    for example in dataset.train.create_tf_dataset_for_client("client 1"):
        pixels = dataset.preprocessing.read(example["image"]).numpy()
        assert by_pixels[pixels[:10, :10].tobytes()] == int(example["label"])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"retrieval": True, "test": "images"}, "test=images is for classification"),
        ({"retrieval": True}, "'class 6' of the test is also trained"),
        (  # Here both classes of the test are public.
            {"retrieval": True, "num_public_classes": 6, "seed": 2},
            "'class 6' of the test is also trained",
        ),
        (
            {"num_public_classes": 7},
            "num_public_classes=7 must .* leave two of 8 classes",
        ),
        (
            {"test": "clients", "test_share": 0.99},
            "leaves none of the 4 clients to train",
        ),
        (
            {"retrieval": True, "test": "classes", "test_share": 0.9},
            "test=classes leaves fewer than two classes to train",
        ),
        ({"validation_share": 0.99}, "leaves no client to train, of 4"),
    ],
)
def test_bad_options_are_named(index, options, message):
    with pytest.raises(InvalidInputError, match=message):
        load(index, **options)
