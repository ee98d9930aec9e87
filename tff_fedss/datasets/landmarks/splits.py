"""The published splits of Google Landmarks v2: their CSV files and our names."""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tff_fedss.datasets import sources
from tff_fedss.datasets.federated import split_csv
from tff_fedss.errors import InvalidInputError

TRAIN_FOLDER = "train"
TEST_FILE = "test.tfRecord"
IMAGE_FEATURE = "image/encoded_jpeg"
CLASS_FEATURE = "class"


@dataclasses.dataclass(frozen=True)
class Published:
    """The published description of a split.

    Attributes:
        title: Its name.
        folder: The folder of its files in a cache.
        train_csv: The name of the file that lists the clients' images.
        test_csv: The name of the file that lists the test images.
        num_classes: n.
        num_clients: The number of clients.
        num_train_images: The clients' images.
        num_test_images: The number of test images; None if not published.
    """

    title: str
    folder: str
    train_csv: str
    test_csv: str
    num_classes: int
    num_clients: int
    num_train_images: int
    num_test_images: int | None = None


SPLITS: Mapping[str, Published] = {
    "160k": Published(
        title="Landmarks-User-160k",
        folder="gld160k",
        train_csv="federated_train.csv",
        test_csv="test.csv",
        num_classes=2028,
        num_clients=1262,
        num_train_images=164_172,
        num_test_images=19_526,
    ),
    "23k": Published(
        title="Landmarks-User-23k",
        folder="gld23k",
        train_csv="mini_gld_train_split.csv",
        test_csv="mini_gld_test.csv",
        num_classes=203,
        num_clients=233,
        num_train_images=23_080,
    ),
}


class SplitFiles(NamedTuple):
    """The two CSV files as bytes, and their rows.

    Attributes:
        train_csv: Content of the clients' file.
        test_csv: Content of the test images' file.
        train: Its rows.
        test: Its rows.
    """

    train_csv: bytes
    test_csv: bytes
    train: split_csv.Split
    test: split_csv.Split


def read_split(
    published: Published, split_dir: str, allow_other_split: bool
) -> SplitFiles:
    """Reads and checks the two CSV files of a split.

    Args:
        published: Its published description.
        split_dir: The folder or the zip with both.
        allow_other_split: Whether the numbers of clients, classes and images may differ
            from the published ones.

    Returns:
        The files. A line on stderr reports such differences.
    """
    source = sources.open_source(split_dir, f"split_dir={split_dir}")
    found = [
        source.read_only(name) for name in (published.train_csv, published.test_csv)
    ]
    shown = [f"{split_dir}/{path}" for path, _ in found]
    contents = [content for _, content in found]
    n = published.num_classes
    train = split_csv.parse(contents[0], shown[0], n)
    test = split_csv.parse(contents[1], shown[1], n, with_clients=False)
    problems = list(_count_problems(train, test, published))
    if problems:
        message = f"This is not the published {published.title}: {'; '.join(problems)}."
        if not allow_other_split:
            raise InvalidInputError(
                f"{message} If that is intended, give `allow_other_split`."
            )
        print(f"note: {message}", file=sys.stderr)
    return SplitFiles(*contents, train, test)


def _count_problems(
    train: split_csv.Split, test: split_csv.Split, published: Published
) -> Iterator[str]:
    counts = [
        ("clients", len(set(train.clients)), published.num_clients),
        ("classes of clients", len(np.unique(train.classes)), published.num_classes),
        ("images of clients", len(train.image_ids), published.num_train_images),
    ]
    if published.num_test_images is not None:
        counts.append(("test images", len(test.image_ids), published.num_test_images))
    for what, found, expected in counts:
        if found != expected:
            yield f"it has {found:,} {what}, expected {expected:,}"
    in_both = len(set(train.image_ids) & set(test.image_ids))
    if in_both:
        yield f"{in_both:,} test images are clients' images too"
