"""The description of partitions: its figures, its table, its picture."""

import os
import subprocess
import sys

import matplotlib.axes
import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from experiments.fedss import describe
from tff_fedss.datasets import synthetic
from tff_fedss.datasets.federated.clients import Counted, InMemoryClientData
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.errors import InvalidInputError


def _dataset(**changes):
    """Three clients of four classes, the last of which nobody has."""

    def images(n):
        return np.zeros([n, 2, 2, 1], np.uint8)

    train = InMemoryClientData(
        {
            "a": (images(5), np.array([0, 0, 0, 1, 0], np.int32)),
            "b": (images(1), np.array([1], np.int32)),
            "c": (images(4), np.array([0, 1, 2, 2], np.int32)),
        }
    )
    fields = {
        "name": "toy",
        "num_classes": 4,
        "image_shape": (2, 2, 1),
        "train": train,
        "test": HeldOut.from_arrays(images(7), np.zeros(7, np.int32)),
        "note": "nothing else",
    }
    return FederatedDataset(**{**fields, **changes})


def _without_labels():
    """Client data that cannot tell their labels without their images."""
    data = _dataset().train
    return Counted(data, data.client_ids, data.num_examples, data.positives)


def _assert_toy(description):
    assert list(description.images_per_client) == [5, 1, 4]
    assert list(description.classes_per_client) == [2, 1, 3]
    assert list(description.clients_per_class) == [2, 3, 1, 0]


def test_counts_of_a_dataset():
    description = describe.of_dataset(_dataset())
    _assert_toy(description)
    assert list(description.images_per_class) == [5, 3, 2, 0]
    assert description.note == "7 test images; nothing else"


def test_images_per_class_from_the_pooled_references():
    labels = np.array([0, 0, 1, 0, 0, 1, 0, 1, 2, 2], np.int32)
    references = {"image": {"offset": np.arange(10)}, "label": labels}
    description = describe.of_dataset(
        _dataset(
            train=_without_labels(),
            pooled=lambda: tf.data.Dataset.from_tensor_slices(references),
        )
    )
    _assert_toy(description)
    assert list(description.images_per_class) == [5, 3, 2, 0]


def test_images_per_class_are_left_out_where_they_cost_all_images():
    description = describe.of_dataset(_dataset(train=_without_labels()))
    _assert_toy(description)
    assert description.images_per_class is None
    text = describe.as_text(description)
    assert "images per class" not in text and "clients per class" in text


def test_glyphs_are_described_without_drawing_one(monkeypatch):
    dataset = synthetic.glyphs(num_classes=2000)
    monkeypatch.setattr(
        type(dataset.train), "client_arrays", lambda *_: pytest.fail("drawn")
    )
    description = describe.of_dataset(dataset)
    assert list(description.clients_per_class) == [4] * 2000
    assert description.classes_per_client.sum() == 4 * 2000


def test_statistics():
    found = describe.statistics(np.array([9, 1, 2, 4]))
    assert found == (1, 3, 4, 9)
    assert found._fields == ("min", "median", "mean", "max")


def test_table():
    description = describe.Description(
        "toy",
        images_per_client=np.array([1000, 1, 4]),
        classes_per_client=np.array([1, 2, 2]),
        clients_per_class=np.array([2, 0]),
        images_per_class=np.array([1004, 1]),
        note="And more.",
    )
    lines = describe.as_text(description).splitlines()
    assert lines[0] == "toy: 3 clients, n = 2 classes, 1,005 training images"
    assert lines[1] == "And more."
    assert len({len(line) for line in lines[2:]}) == 1, "not aligned"
    rows = {line[:20].strip(): line[20:].split() for line in lines[5:-1]}
    assert lines[3].split() == ["min", "median", "mean", "max"]
    assert rows == {
        "images per client": ["1", "4", "335", "1,000"],
        "classes per client": ["1", "2", "1.7", "2"],
        "images per class": ["1", "502.5", "502.5", "1,004"],
        "clients per class": ["0", "1", "1", "2"],
    }


def test_table_without_a_note_has_no_empty_line():
    lines = describe.as_text(describe.of_dataset(_dataset())._replace(note=""))
    assert all(lines.splitlines())


@pytest.mark.parametrize("kind", ["one", "equal", "wide", "unknown"])
def test_histograms_are_drawn(tmp_path, kind):
    toy = describe.of_dataset(_dataset())
    rng = np.random.default_rng(0)
    description = {
        "one": toy._replace(images_per_client=np.array([3])),
        "equal": toy._replace(images_per_client=np.full(50, 100)),
        "wide": toy._replace(images_per_client=rng.integers(1, 100_000, 500)),
        "unknown": toy._replace(images_per_class=None),
    }[kind]
    describe.plot(description, tmp_path / "toy.png")
    image = matplotlib.image.imread(tmp_path / "toy.png")
    height, width = image.shape[:2]
    assert height > 600 and width > 900
    panels = [
        image[top : top + height // 3, left : left + 2 * width // 5, :3]
        for top in (height // 10, height // 2)
        for left in (width // 10, 11 * width // 20)
    ]
    blank = [panel.std() < 0.01 for panel in panels]
    # Without images per class, there is nothing in the last panel.
    assert blank == [False, False, False, kind == "unknown"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["toy.pdf", "toy.png"]


def test_histograms_count_every_client_once(tmp_path, monkeypatch):
    drawn = []
    original = matplotlib.axes.Axes.hist

    def hist(axes, counts, edges):
        heights, *rest = original(axes, counts, edges)
        drawn.append((heights.sum(), len(edges) - 1))
        return heights, *rest

    monkeypatch.setattr(matplotlib.axes.Axes, "hist", hist)
    counts = np.random.default_rng(0).integers(1, 997, 300)
    toy = describe.of_dataset(_dataset())._replace(images_per_client=counts)
    describe.plot(toy, tmp_path / "toy.png")
    assert [n for n, _ in drawn] == [300, 3, 4, 4]
    assert [bars for _, bars in drawn][1:] == [3, 6, 4]  # a bar for each integer
    assert 40 <= drawn[0][1] <= 51


# From the sizes of the classes alone.


def test_sop_from_its_totals():
    sizes = describe.stand_in_sizes("sop", seed=0)
    assert len(sizes) == 11_318 and sizes.sum() == 59_551
    assert sizes.min() >= 2 and sizes.max() <= 12 and len(set(sizes)) > 8
    description = describe.of_class_sizes("sop", sizes, seed=0)
    assert len(description.images_per_client) == 596
    np.testing.assert_array_equal(description.images_per_class, sizes)
    assert list(description.images_per_client[:-1]) == [100] * 595
    assert 18 < description.classes_per_client.mean() < 20


def test_imagenet21k_from_its_totals():
    sizes = describe.stand_in_sizes("imagenet21k", seed=0)
    assert len(sizes) == 21_841 and sizes.sum() == 14_197_122
    assert sizes.min() >= 1 and sizes.max() <= 3_000 and len(set(sizes)) > 1000
    description = describe.of_class_sizes("imagenet21k", sizes, seed=0)
    assert len(description.images_per_client) == 25_691
    assert set(description.classes_per_client) == {20}
    # 80 % of each class.
    assert abs(description.images_per_class - 0.8 * sizes).max() <= 0.8
    assert description.images_per_class.min() >= 1
    assert description.images_per_client.min() > 350
    assert abs(description.images_per_client.mean() - 0.8 * 14_197_122 / 25_691) < 1


def test_stand_in_is_decided_by_the_seed():
    first, again, other = (describe.stand_in_sizes("sop", s) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize(
    "text",
    [
        "class,images\nn01440764,1300\nn02119789,7\n",
        "n01440764,1300\r\nn02119789, 7",
        "\ufeffwnid,images\n\nn01440764,1300\n\nn02119789,7\n\n",
    ],
)
def test_reads_class_sizes(tmp_path, text):
    path = tmp_path / "sizes.csv"
    path.write_bytes(text.encode())
    assert list(describe.read_class_sizes(str(path))) == [1300, 7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no line `class,images`"),
        ("class,images\n", "has no line `class,images`"),
        ("a,1\nb\n", ":2: found 'b'; expected"),
        ("a,1\nb,2,3\n", ":2: found 'b,2,3'; expected"),
        ("a,1\nb,many\n", ":2: found 'b,many'; expected"),
        ("a,12x\nb,2\n", ":1: found 'a,12x'; expected"),
        ("a,1\nb,0\n", ":2: found 'b,0'; expected"),
        ("a,1\nb,-3\n", ":2: found 'b,-3'; expected"),
        ("class,images\na,1\nb,2\na,1\n", ":4: the class 'a' is already in line 2."),
        ("a,1\n,2\n", ":2: found ',2'; expected"),
        ("a,1\nb,3000000000\n", ":2: 3000000000 images are more than a data set has"),
        (f"a,{'9' * 20}\n", f":1: {'9' * 20} images are more than a data set has"),
        (f"a,{'9' * 5000}\n", ":1: 99999999999999999999 images are more than a data"),
        ("a,90000000\nb,90000000\n", ": 180,000,000 images are more than a data set"),
        ('"a,1\nb,2\n', ", line 2: unexpected end of data"),
    ],
)
def test_class_sizes_that_cannot_be_read(tmp_path, text, message):
    path = tmp_path / "sizes.csv"
    path.write_text(text)
    with pytest.raises(InvalidInputError) as error:
        describe.read_class_sizes(str(path))
    assert str(error.value).startswith(f"--class_sizes={path}")
    assert message in str(error.value)


def test_class_sizes_that_are_no_text(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        describe.read_class_sizes(str(tmp_path / "no.csv"))
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InvalidInputError, match="it is a named pipe"):
        describe.read_class_sizes(str(tmp_path / "pipe.csv"))
    (tmp_path / "sizes.csv").write_bytes(b"\xff\xfe,1\n")
    with pytest.raises(InvalidInputError, match="not a text in UTF-8"):
        describe.read_class_sizes(str(tmp_path / "sizes.csv"))


# The program.


def _run(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, "-P", "-m", "experiments.fedss.describe", *arguments],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_program_from_class_sizes(tmp_path):
    result = _run(tmp_path, "--dataset=sop", "--class_sizes=original")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("sop: 596 clients, n = 11,318 classes, 59,551")
    assert "STAND-IN" in result.stdout
    assert result.stdout.endswith("Histograms: results/describe/sop.png\n")
    files = {p for p in tmp_path.rglob("*") if p.is_file()}
    folder = tmp_path / "results" / "describe"
    assert files == {folder / "sop.png", folder / "sop.pdf"}


def test_program_from_a_dataset(tmp_path):
    result = _run(tmp_path, "--dataset=glyphs", "--num_classes=60", "--output=a/b.png")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("glyphs: 12 clients, n = 60 classes, ")
    assert (tmp_path / "a" / "b.png").stat().st_size > 10_000


def _error_of_main(dataset, **values):
    with pytest.raises(InvalidInputError) as error:
        describe.main(describe.Config(dataset=dataset, **values))
    return str(error.value)


def test_flags_that_do_not_go_together(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    message = _error_of_main("omniglot", class_sizes="original")
    assert "--dataset=sop or imagenet21k only, found --dataset=omniglot" in message
    message = _error_of_main("sop", output="histogram.pdf")
    assert message == "--output=histogram.pdf must be a .png file."
    (tmp_path / "file").write_text("not a folder")
    message = _error_of_main("sop", class_sizes="original", output="file/a.png")
    assert message.startswith("--output=file/a.png: ")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_flags_of_other_data_sets(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    message = _error_of_main("sop", class_sizes="original", num_clients=5)
    assert "--num_clients goes with" in message


def test_another_number_of_clients():
    sizes = np.full(100, 50)
    description = describe.of_class_sizes("imagenet21k", sizes, 0, num_clients=30)
    assert len(description.images_per_client) == 30
    assert description.images_per_client.sum() == 100 * 40


def test_too_few_classes_for_the_papers_clients():
    with pytest.raises(InvalidInputError, match="20 is more than the 10 classes"):
        describe.of_class_sizes("imagenet21k", np.full(10, 10), seed=0)
