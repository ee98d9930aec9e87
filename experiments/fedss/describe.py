"""Prints how the training images of a data set are split over clients, and draws it.

    ./run.sh describe --dataset=omniglot --data_dir=DIR
    ./run.sh describe --dataset=sop --class_sizes=original
    ./run.sh describe --dataset=imagenet21k --class_sizes=original
    ./run.sh describe --dataset=imagenet21k --class_sizes=FILE.csv

The first form reads the data as training would. The others need no image: from the
sizes of the classes alone they make the paper's partitions, 596 clients for Stanford
Online Products (SOP, Section 4.3) in a second and 25,691 for ImageNet-21k (Appendix
A.4) in about 15 seconds and 1 GB of memory. FILE.csv has a line `class,images` for each
class, with any name for the class.

`original` knows only the true totals: 59,551 training images of 11,318 SOP products and
14,197,122 images of 21,841 ImageNet-21k classes. The sizes of the single classes are a
stand-in, random numbers with these sums. The number of clients follows from the totals;
the spread of the other figures does not.

The result is a table with minimum, median, mean and maximum, and a PNG of histograms.
"""

import csv
import dataclasses
import io
import pathlib
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tqdm

from experiments.common import config, plots, program, table
from experiments.fedss import run_config, run_parts
from tff_fedss import files, memory
from tff_fedss.datasets import imagenet21k, stanford_online_products
from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """What a user asks for. --results_dir is where the histograms go."""

    output: str | None = config.flag(
        None,
        "Where `describe` writes its histograms, a .png file. By default "
        "results/describe/DATASET.png.",
    )
    class_sizes: str | None = config.flag(
        None,
        "For sop and imagenet21k: `describe` makes the paper's partition without "
        "images, from a CSV file with a line `class,images` for each class; or, with "
        "`original`, from random class sizes whose sum is the true number of images.",
    )


_STREAM = int.from_bytes(b"describe", "big")
_MAX_BARS = 50
# Seven times ImageNet-21k. A partition takes some 80 bytes of memory an image.
_MAX_IMAGES = 10**8
_MAX_DIGITS = 30
_LABELS_AT_A_TIME = 10_000


class _Original(NamedTuple):
    """What is known of a data set whose images are not here.

    Attributes:
        num_classes: n.
        num_images: Of all classes together.
        smallest: The least images of a class in the stand-in.
        largest: The most.
        note: What else a person should know about the numbers.
    """

    num_classes: int
    num_images: int
    smallest: int
    largest: int
    note: str


# Section 4.3 counts the training images only; A.4 counts all images, and trains on 80 %
# of each class.
_ORIGINALS = {
    "sop": _Original(11_318, 59_551, 2, 12, ""),
    "imagenet21k": _Original(21_841, 14_197_122, 1, 3_000, " 80 % are for training."),
}


class Description(NamedTuple):
    """How training images are split over clients.

    Attributes:
        name: Of the data set.
        images_per_client: n_k, int[K].
        classes_per_client: |P_k|, int[K].
        clients_per_class: How many clients hold a class, int[n]; 0 if none does.
        images_per_class: Over all clients, int[n]. None: not to be had without making
            every image.
        note: What else a person should know; may be empty.
    """

    name: str
    images_per_client: np.ndarray
    classes_per_client: np.ndarray
    clients_per_class: np.ndarray
    images_per_class: np.ndarray | None = None
    note: str = ""

    def items(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields what was counted and the counts, as rows of the table."""
        yield "images per client", self.images_per_client
        yield "classes per client", self.classes_per_client
        if self.images_per_class is not None:
            yield "images per class", self.images_per_class
        yield "clients per class", self.clients_per_class


class Statistics(NamedTuple):
    """The columns of the table."""

    min: float
    median: float
    mean: float
    max: float


def statistics(counts: np.ndarray) -> Statistics:
    """Sums up some counts.

    Args:
        counts: int[N], N >= 1.
    """
    return Statistics(
        float(np.min(counts)),
        float(np.median(counts)),
        float(np.mean(counts)),
        float(np.max(counts)),
    )


def of_dataset(dataset: FederatedDataset) -> Description:
    """Describes a data set; reads and decodes no image.

    Args:
        dataset: With at least one client.
    """
    client_ids = dataset.train.client_ids
    positives = [dataset.positives(client_id) for client_id in client_ids]
    return Description(
        dataset.name,
        np.array([dataset.num_examples(client_id) for client_id in client_ids]),
        np.array([len(classes) for classes in positives]),
        np.bincount(np.concatenate(positives), minlength=dataset.num_classes),
        _images_per_class(dataset),
        f"{dataset.test.num_examples:,} test images"
        + (f"; {dataset.note}" if dataset.note else ""),
    )


def _images_per_class(dataset: FederatedDataset) -> np.ndarray | None:
    labels_of = getattr(dataset.train, "labels", None)
    if labels_of is not None:
        batches = map(labels_of, dataset.train.client_ids)
    elif dataset.pooled is not None:
        # Stored examples are references, or bytes that nobody decodes here.
        labels = dataset.pooled_examples().map(lambda example: example["label"])
        batches = labels.batch(_LABELS_AT_A_TIME).as_numpy_iterator()
    else:
        return None
    counts = np.zeros(dataset.num_classes, np.int64)
    with tqdm.tqdm(
        desc="Counting labels", unit=" images", delay=2, disable=None
    ) as progress:
        for batch in batches:
            counts += np.bincount(batch, minlength=dataset.num_classes)
            progress.update(len(batch))
    return counts


def of_partition(
    name: str, partition: partitions.Partition, labels: np.ndarray, note: str = ""
) -> Description:
    """Describes a partition of labels that have no images.

    Args:
        name: Of the data set.
        partition: Of the labels.
        labels: int[N], classes 0..n-1.
        note: See `Description`.
    """
    counts = partitions.class_counts(partition, labels)
    return Description(
        name,
        partition.sizes,
        np.bincount(counts.clients),
        np.bincount(counts.classes),
        np.bincount(labels),
        note,
    )


def of_class_sizes(
    dataset: str,
    sizes: np.ndarray,
    seed: int,
    num_clients: int | None = None,
    note: str = "",
) -> Description:
    """Makes the paper's partition of a data set from the sizes of its classes.

    Args:
        dataset: "sop" or "imagenet21k".
        sizes: Images of every class, int[n]; of both splits for imagenet21k, whose
            training share (80 %) is taken.
        seed: Decides the partition.
        num_clients: For imagenet21k, where another number than the paper's is asked
            for.
        note: See `Description`.

    Raises:
        InvalidInputError: If there are too few classes or images for the clients.
    """
    if dataset == "sop":
        labels = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        split = partitions.chunks(
            labels, stanford_online_products.IMAGES_PER_CLIENT, _rng(seed)
        )
    else:
        labels = imagenet21k.training_labels(sizes)
        split = imagenet21k.client_partition(sizes, seed=seed, num_clients=num_clients)
    return of_partition(dataset, split, labels, note)


def stand_in_sizes(dataset: str, seed: int) -> np.ndarray:
    """Draws class sizes with the true number of classes and of images.

    They are NOT the sizes of the true classes, which are not known here.

    Args:
        dataset: "sop" or "imagenet21k".
        seed: Decides the sizes.

    Returns:
        int64[n], between 2 and 12 for sop and between 1 and 3,000 for imagenet21k.
    """
    original, rng = _ORIGINALS[dataset], _rng(seed)
    room = original.largest - original.smallest
    mean = (original.num_images / original.num_classes - original.smallest) / room
    rates = rng.beta(4 * mean, 4 * (1 - mean), original.num_classes)
    sizes = original.smallest + rng.binomial(room, rates)
    while off := original.num_images - int(sizes.sum()):
        step = 1 if off > 0 else -1
        stop = original.largest if off > 0 else original.smallest
        movable = np.flatnonzero(sizes != stop)
        chosen = rng.choice(movable, min(abs(off), len(movable)), replace=False)
        sizes[chosen] += step
    return sizes


def read_class_sizes(path: str) -> np.ndarray:
    """Reads the sizes of classes from a CSV file.

    Args:
        path: A file with a line `class,images` for each class: a name that no other
            line has, and a number of at least 1. The first line may be just the words
            "class,images" (or other words before "images").

    Returns:
        int64[n], in the order of the lines.

    Raises:
        InvalidInputError: If the file cannot be read or a line is not of this form.
    """
    source = f"--class_sizes={path}"
    try:
        text = files.read(path).decode("utf-8-sig")
    except OSError as e:
        raise InvalidInputError(f"{source} cannot be read: {e.strerror or e}.") from e
    except UnicodeDecodeError as e:
        raise InvalidInputError(f"{source} is not a text in UTF-8: {e}.") from e
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    sizes, lines = [], {}
    for row in _csv_rows(reader, source):
        where = f"{source}: {path}:{reader.line_num}"
        if reader.line_num == 1 and len(row) == 2 and row[1].strip() == "images":
            continue
        if not row:  # a blank line
            continue
        cells = [cell.strip() for cell in row]
        if len(cells) != 2 or not cells[0] or not _is_positive(cells[1]):
            raise InvalidInputError(
                f"{where}: found {','.join(row)!r}; expected `class,images`, where "
                "images is an integer of at least 1."
            )
        name, number = cells
        if len(number) > _MAX_DIGITS or int(number) > _MAX_IMAGES:
            raise InvalidInputError(
                f"{where}: {number[:20]} images are more than a data set has; expected "
                f"at most {_MAX_IMAGES:,}."
            )
        if name in lines:
            raise InvalidInputError(
                f"{where}: the class {name!r} is already in line {lines[name]}."
            )
        lines[name] = reader.line_num
        sizes.append(int(number))
    if not sizes:
        raise InvalidInputError(f"{source} has no line `class,images`.")
    if sum(sizes) > _MAX_IMAGES:
        raise InvalidInputError(
            f"{source}: {sum(sizes):,} images are more than a data set has; expected "
            f"at most {_MAX_IMAGES:,}."
        )
    # A label and a place in the order, of each image.
    memory.check({f"labels of {sum(sizes):,} images of {source}": 12 * sum(sizes)})
    return np.array(sizes, np.int64)


def _csv_rows(reader, source: str) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as e:
        raise InvalidInputError(f"{source}, line {reader.line_num}: {e}.") from e


def _is_positive(number: str) -> bool:
    return number.isascii() and number.isdecimal() and bool(number.strip("0"))


def as_text(description: Description) -> str:
    """Writes a description as a table for the terminal."""
    rows = [
        (title, *map(_number, statistics(counts)))
        for title, counts in description.items()
    ]
    return "\n".join(
        [
            f"{description.name}: {len(description.images_per_client):,} clients, "
            f"n = {len(description.clients_per_class):,} classes, "
            f"{description.images_per_client.sum():,} training images",
            *([description.note] if description.note else []),
            table.as_text(("", *Statistics._fields), rows),
        ]
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def plot(description: Description, path: pathlib.Path) -> None:
    """Draws a histogram of each row of the table, as one PNG.

    Args:
        description: What to draw.
        path: The file, in a folder that exists; replaced whole or not at all.

    Raises:
        InvalidInputError: If it cannot be written.
    """
    with plots.figure(path, 2, 2, figsize=(9, 6)) as (figure, grid):
        panels = dict(zip(("client", "class"), grid, strict=True))
        for axes in (*panels["client"], *panels["class"]):
            axes.set_axis_off()
        drawn = {"client": 0, "class": 0}
        for title, counts in description.items():
            of = title.split()[-1]
            axes = panels[of][drawn[of]]
            drawn[of] += 1
            axes.set_axis_on()
            width = -(-(int(np.ptp(counts)) + 1) // _MAX_BARS)
            edges = np.arange(counts.min(), counts.max() + width + 1, width) - 0.5
            axes.hist(counts, edges)
            axes.axvline(counts.mean(), color="black", linestyle="--", linewidth=1)
            axes.set(xlabel=title, ylabel="clients" if of == "client" else "classes")
            axes.locator_params(integer=True)
        figure.suptitle(
            f"{description.name}: {len(description.images_per_client):,} clients "
            "(dashed: mean)"
        )
        # A picture may be seen without the table.
        figure.supxlabel(
            "\n".join(textwrap.wrap(description.note, 120)), fontsize="small"
        )


def main(config: Config) -> None:
    """Writes the histograms and prints the table."""
    output = pathlib.Path(config.output or f"{config.results_dir}/{config.dataset}.png")
    if output.suffix != ".png":
        raise InvalidInputError(f"--output={output} must be a .png file.")
    if config.class_sizes is None:
        num_classes = config.num_classes or 0
        # Glyphs have a class on four clients: its number there, once more when all are
        # put together, and a count.
        memory.check({f"who holds which of {num_classes:,} classes": 40 * num_classes})
        description = of_dataset(
            run_parts.load_dataset(run_config.with_defaults(config))
        )
    else:
        description = _from_class_sizes(config)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise InvalidInputError(f"--output={output}: {e.strerror}.") from e
    plot(description, output)
    print(f"{as_text(description)}\nHistograms: {output}")


def _from_class_sizes(config: Config) -> Description:
    dataset, class_sizes, seed = config.dataset, config.class_sizes, config.seed
    if dataset not in _ORIGINALS:
        raise InvalidInputError(
            f"--class_sizes goes with --dataset={' or '.join(_ORIGINALS)} only, found "
            f"--dataset={dataset}."
        )
    run_config.with_defaults(config)  # Refuses flags of other data sets.
    if class_sizes == "original":
        sizes = stand_in_sizes(dataset, seed)
        note = (
            "The class sizes are a STAND-IN: random, with the true number of classes "
            f"({len(sizes):,}) and images ({sizes.sum():,})."
        )
    else:
        sizes = read_class_sizes(class_sizes)
        note = f"Class sizes from {class_sizes}: {sizes.sum():,} images."
    note += _ORIGINALS[dataset].note
    return of_class_sizes(dataset, sizes, seed, config.num_clients, note)


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, _STREAM]))


if __name__ == "__main__":
    program.run(main, Config(results_dir="results/describe"), topics=())
