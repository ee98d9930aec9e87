"""The description of a data set: its counts, its table, its picture."""

import matplotlib.axes
import numpy as np
import pytest
import tensorflow as tf

from experiments.fedss import describe
from tff_fedss.datasets import stanford_online_products, synthetic
from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.federated.clients import Counted, InMemoryClientData
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut

TOY = {
    "images per client": [5, 1, 4],
    "classes per client": [2, 1, 3],
    "images per class": [5, 3, 2, 0],
    "clients per class": [2, 3, 1, 0],
}


def _dataset(**changes):
    """Three clients of four classes, the last of which no client has."""

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


def _counts(**changes):
    counts = describe.counts_of(_dataset(**changes))
    return {title: list(values) for title, values in counts.items()}


def test_counts_of_a_dataset():
    assert _counts() == TOY


def test_images_per_class_from_the_pooled_references():
    labels = np.array([0, 0, 1, 0, 0, 1, 0, 1, 2, 2], np.int32)
    references = {"image": {"offset": np.arange(10)}, "label": labels}

    def pooled():
        return tf.data.Dataset.from_tensor_slices(references)

    assert _counts(train=_without_labels(), pooled=pooled) == TOY


def test_images_per_class_are_left_out_where_they_cost_all_images():
    known = {title: some for title, some in TOY.items() if title != "images per class"}
    assert _counts(train=_without_labels()) == known


def test_glyphs_are_described_without_drawing_one(monkeypatch):
    dataset = synthetic.glyphs(num_classes=2000)
    monkeypatch.setattr(
        type(dataset.train), "client_arrays", lambda *_: pytest.fail("drawn")
    )
    counts = describe.counts_of(dataset)
    assert list(counts["clients per class"]) == [4] * 2000
    assert counts["classes per client"].sum() == 4 * 2000


def test_table():
    counts = {"images per client": np.array([1000, 1, 4]), "x": np.array([0, 5])}
    lines = describe.as_text(counts).splitlines()
    assert len({len(line) for line in lines}) == 1, "not aligned"
    assert lines[1].split() == ["min", "median", "mean", "max"]
    rows = [line.rsplit(maxsplit=4) for line in lines[3:-1]]
    assert rows == [
        ["images per client", "1", "4", "335", "1,000"],
        ["x", "0", "2.5", "2.5", "5"],
    ]


@pytest.mark.parametrize(
    "sizes, bars",
    [
        (np.array([3]), 1),
        (np.full(50, 100), 1),
        (np.random.default_rng(0).integers(1, 997, 300), 50),
    ],
)
def test_histograms_count_every_client_once(tmp_path, monkeypatch, sizes, bars):
    drawn = []
    original = matplotlib.axes.Axes.hist

    def hist(axes, counts, edges):
        heights, *rest = original(axes, counts, edges)
        drawn.append((heights.sum(), len(edges) - 1))
        return heights, *rest

    monkeypatch.setattr(matplotlib.axes.Axes, "hist", hist)
    counts = {title: np.array(values) for title, values in TOY.items()}
    counts["images per client"] = sizes
    describe.plot(counts, "toy", "", tmp_path / "toy.png")
    # A bar for each integer, at most 50.
    assert drawn == [(len(sizes), bars), (3, 3), (4, 6), (4, 4)]
    del counts["images per class"]
    describe.plot(counts, "toy", "", tmp_path / "unknown.png")
    assert len(drawn) == 7


# --- The paper's partitions, from the totals of the classes alone -----------------


def _equal_sizes(num_classes, num_images):
    """Sizes of classes with a sum, that differ by at most one."""
    return np.bincount(np.arange(num_images) % num_classes)


def test_sop_has_the_papers_596_clients():
    sizes = _equal_sizes(11_318, 59_551)  # Section 4.3.
    labels = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    each = stanford_online_products.IMAGES_PER_CLIENT
    split = partitions.chunks(labels, each, np.random.default_rng(0))
    assert list(split.sizes) == [100] * 595 + [51]


# --- The program ------------------------------------------------------------------


def test_program(run_program, tmp_path):
    picture = tmp_path / "a" / "glyphs.png"
    code, output, errors = run_program(
        describe,
        "--dataset=glyphs:num_classes=60",
        f"--results_dir={tmp_path / 'a'}",
    )
    assert code == 0, errors
    assert output.startswith("glyphs: 12 clients, n = 60 classes, ")
    assert output.endswith(f"Histograms: {picture}\n")
    assert picture.stat().st_size > 10_000
