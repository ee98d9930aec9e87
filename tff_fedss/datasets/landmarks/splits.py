"""The published splits of Google Landmarks v2, and the CSV files that they come in."""

import collections
import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tff_fedss import files
from tff_fedss.datasets import sources
from tff_fedss.datasets.federated import split_csv
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class Published:
    """What is known of a split as its authors published it.

    Attributes:
        title: Its name.
        folder: The folder of its files in a cache.
        train_csv: The name of the file that lists the clients' images.
        test_csv: The name of the file that lists the test images.
        num_classes: n.
        num_clients: The number of clients.
        num_train_images: The clients' images.
        num_test_images: The test images; None if it was not published.
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
    published: Published,
    *,
    split_dir: str | None,
    train_csv: str | None,
    test_csv: str | None,
    allow_other_split: bool,
) -> SplitFiles:
    """Reads and checks the two CSV files of a split.

    Args:
        published: What is known of it.
        split_dir: The folder or the zip with both.
        train_csv: Instead: the clients' file.
        test_csv: And the test images' file.
        allow_other_split: Whether they may be others than those published, by the
            numbers of clients, classes and images.

    Returns:
        The files. A line on stderr says if they are not the published ones.

    Raises:
        InvalidInputError: If the arguments or the files cannot be used, or if they are
            not the published ones and may be no others.
    """
    names = (published.train_csv, published.test_csv)
    given = [path for path in (train_csv, test_csv) if path is not None]
    if len(given) != (0 if split_dir else 2):
        raise InvalidInputError(
            f"expected `split_dir`, the folder or the zip with {names[0]} and "
            f"{names[1]}, or both `train_csv` and `test_csv` instead of it."
        )
    if split_dir and split_dir.endswith(".zip"):
        shown, contents = _read_zip(pathlib.Path(split_dir), names)
    else:
        shown = given or [str(pathlib.Path(split_dir) / name) for name in names]
        contents = [files.read_bytes(path) for path in shown]

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


def _read_zip(
    path: pathlib.Path, names: Sequence[str]
) -> tuple[list[str], list[bytes]]:
    """Returns the names, for messages, and the contents of the files of those names."""
    found = collections.defaultdict(list)
    source = sources.open_source(path, f"split_dir={path}")
    for member, content in source.read_all(lambda m: m.rpartition("/")[2] in names):
        found[member.rpartition("/")[2]].append((f"{path}/{member}", content))
    for name in names:
        if len(found[name]) != 1:
            raise InvalidInputError(
                f"split_dir={path}: found {len(found[name])} files called {name}; "
                "expected 1."
            )
    shown, contents = zip(*(found[name][0] for name in names), strict=True)
    return list(shown), list(contents)


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
