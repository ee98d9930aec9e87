"""Extreme classification: rows with sparse features and several labels each.

Reads two text formats; the name of the file says which:

- XMC (the Extreme Classification Repository's, libsvm with labels): a first line
  `rows features labels`, then `label,label feature:value feature:value` for each row;
- sparse ARFF (`.arff`, as in Mulan): attributes, then `{index value, ...}` for each
  row. The labels are the attributes whose names an XML file lists, or whose names begin
  with `TAG_` if there is no such file.

XMC is read here and not by scikit-learn's `load_svmlight_file`, whose errors ("need
more than 1 value to unpack") do not name the line, and which rejects XMC's first line
as a broken row. SciPy's ARFF reader does not read sparse rows.
"""

import array
import dataclasses
import os
import pathlib
import re
import xml.etree.ElementTree
from collections.abc import Callable, Iterable, Iterator
from itertools import starmap

import numpy as np

from tff_fedss import errors, files
from tff_fedss.datasets import fingerprint
from tff_fedss.datasets.fingerprint import Fingerprint

_SUFFIXES = (".txt", ".svm", ".libsvm", ".arff")
_ARFF_LABEL = "TAG_"

# A row of a file: feature ids, their values, label ids.
_Row = tuple[list[int], list[float], list[int]]


@dataclasses.dataclass(frozen=True)
class SparseRows:
    """Rows of sparse features, and their labels, in compressed form.

    Attributes:
        feature_ids: int32[k], the features of all rows, row by row.
        values: float32[k], the features' values.
        feature_ends: int64[rows + 1], where each row's features end; 0 first.
        label_ids: int32[l], the labels of all rows, row by row.
        label_ends: int64[rows + 1], where each row's labels end; 0 first.
    """

    feature_ids: np.ndarray
    values: np.ndarray
    feature_ends: np.ndarray
    label_ids: np.ndarray
    label_ends: np.ndarray

    def __len__(self) -> int:
        return len(self.feature_ends) - 1

    def labels(self, row: int) -> np.ndarray:
        """Returns the labels of a row, int32[its labels]."""
        return self.label_ids[self.label_ends[row] : self.label_ends[row + 1]]


@dataclasses.dataclass(frozen=True)
class ExtremeDataset:
    """A training and a test set.

    Attributes:
        num_features: v.
        num_labels: n.
    """

    train: SparseRows
    test: SparseRows
    num_features: int
    num_labels: int

    def fingerprint(self) -> Fingerprint:
        """Returns a fingerprint of the data (see `fingerprint`)."""
        result = {"features": self.num_features, "labels": self.num_labels}
        for part, rows in (("training", self.train), ("test", self.test)):
            result |= {
                f"{part} rows": len(rows),
                f"labels of {part} rows": [rows.label_ids, rows.label_ends],
                f"features of {part} rows": [
                    rows.feature_ids,
                    rows.feature_ends,
                    rows.values,
                ],
            }
        return fingerprint.of(result)


def load(data_dir: str | os.PathLike) -> ExtremeDataset:
    """Reads a training and a test file from a folder.

    Args:
        data_dir: Holds one file with `train` in its name and one with `test`, ending in
            .txt, .svm, .libsvm (XMC) or .arff. With ARFF files, an XML file may list
            the names of the labels.
    """
    folder = pathlib.Path(data_dir)
    parts, sizes, names = [], [], []
    for part in ("train", "test"):
        found = sorted(
            path
            for path in folder.glob("*")
            if part in path.name.lower() and path.suffix.lower() in _SUFFIXES
        )
        if len(found) != 1:
            files_found = ", ".join(path.name for path in found) or "none"
            raise errors.InvalidInputError(
                f"data_dir={data_dir} must hold one file with '{part}' in its name "
                f"that ends in {', '.join(_SUFFIXES)}; found {files_found}."
            )
        rows, *size, own = read(found[0])
        parts.append(rows)
        sizes.append(tuple(size))
        names.append(own)
    if sizes[0] != sizes[1]:
        found = (
            f"(features, labels) {sizes[0]} for training and {sizes[1]} for the test"
        )
        raise errors.InvalidInputError(f"data_dir={data_dir}: {found} differ.")
    if names[0] != names[1]:
        what = "the attributes of training and test have other names or another order"
        raise errors.InvalidInputError(f"data_dir={data_dir}: {what}.")
    if (num_labels := sizes[0][1]) < 2:
        raise errors.InvalidInputError(
            f"data_dir={data_dir} has n={num_labels} labels; expected at least 2."
        )
    return ExtremeDataset(*parts, *sizes[0])


def read(path: os.PathLike) -> tuple[SparseRows, int, int, list[str]]:
    """Reads one file: rows, numbers of features v and labels n, names of attributes.

    An XMC file has no names.
    """
    path = pathlib.Path(path)
    reader = _read_arff if path.suffix.lower() == ".arff" else _read_xmc
    with files.reading(path), path.open(encoding="utf-8-sig", errors="replace") as file:
        return reader(path, enumerate(file, 1))


def _collect(
    path: pathlib.Path,
    lines: Iterable[tuple[int, str]],
    parse: Callable[[str], _Row],
    expected: str,
    num_features: int,
    num_labels: int,
) -> SparseRows:
    """Reads rows, and checks all together at the end.

    `parse` reads a line and raises ValueError if it is no row, which is `expected`.
    Empty lines are skipped. (In an XMC file, a space is a row without anything.)
    """
    limits = {"feature": num_features, "label": num_labels}
    ids = {kind: array.array("q") for kind in limits}
    ends = {kind: array.array("q", [0]) for kind in limits}
    values, line_numbers = array.array("f"), []
    for number, line in lines:
        if not line.rstrip("\r\n"):
            continue
        try:
            ids_of_row, values_of_row, labels_of_row = parse(line)
            ids["feature"].extend(ids_of_row)
            values.extend(values_of_row)
            ids["label"].extend(labels_of_row)
        except (ValueError, OverflowError) as error:
            what = f"expected {expected}, found {line.strip()[:60]!r}"
            raise errors.InvalidInputError(f"{path}:{number}: {what}.") from error
        for kind in limits:
            ends[kind].append(len(ids[kind]))
        line_numbers.append(number)
    ids = {kind: np.array(i, np.int64) for kind, i in ids.items()}
    ends = {kind: np.array(e, np.int64) for kind, e in ends.items()}
    values = np.array(values, np.float32)
    problems = []
    for kind, limit in limits.items():
        is_outside = (ids[kind] < 0) | (ids[kind] >= limit)
        problems.append((is_outside, kind, f"a {kind} is not in 0..{limit - 1}"))
        row_of = np.repeat(np.arange(len(line_numbers)), np.diff(ends[kind]))
        order = np.lexsort((ids[kind], row_of))
        is_same = (np.diff(ids[kind][order]) == 0) & (np.diff(row_of[order]) == 0)
        is_twice = np.isin(np.arange(len(order)), order[1:][is_same])
        problems.append((is_twice, kind, f"a {kind} is repeated"))
    problems.append((~np.isfinite(values), "feature", "a value is not a finite number"))
    for is_bad, kind, what in problems:
        if is_bad.any():
            row = np.searchsorted(ends[kind], is_bad.argmax(), "right") - 1
            raise errors.InvalidInputError(f"{path}:{line_numbers[row]}: {what}.")
    return SparseRows(
        ids["feature"].astype(np.int32),
        values,
        ends["feature"],
        ids["label"].astype(np.int32),
        ends["label"],
    )


# --- XMC --------------------------------------------------------------------------


def _read_xmc(
    path: pathlib.Path, lines: Iterator[tuple[int, str]]
) -> tuple[SparseRows, int, int, list[str]]:
    _, header = next(lines, (1, ""))
    try:
        num_rows, num_features, num_labels = map(int, header.split())
    except ValueError as error:
        what = f"expected 'rows features labels', found {header.strip()!r}"
        raise errors.InvalidInputError(f"{path}:1: {what}.") from error
    expected = "'label,label feature:value feature:value'"
    rows = _collect(path, lines, _xmc_row, expected, num_features, num_labels)
    if len(rows) != num_rows:
        raise errors.InvalidInputError(f"{path}: {len(rows)} rows, not {num_rows}.")
    return rows, num_features, num_labels, []


def _xmc_row(line: str) -> _Row:
    # A row without labels begins with a space.
    labels, _, features = line.rstrip("\n").partition(" ")
    pairs = [pair.partition(":") for pair in features.split()]
    return (
        [int(feature) for feature, _, _ in pairs],
        [float(value) for _, _, value in pairs],
        [int(label) for label in labels.split(",")] if labels else [],
    )


# --- Sparse ARFF ------------------------------------------------------------------

_ATTRIBUTE = re.compile(
    r"""@attribute\s+("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\S+)\s+\S""", re.IGNORECASE
)


def _read_arff(
    path: pathlib.Path, lines: Iterator[tuple[int, str]]
) -> tuple[SparseRows, int, int, list[str]]:
    names = []
    for number, line in lines:
        if line.lower().startswith("@data"):
            break
        if line.lower().startswith("@attribute"):
            match = _ATTRIBUTE.match(line)
            if match is None:
                raise errors.InvalidInputError(f"{path}:{number}: no valid attribute.")
            names.append(match[1].strip("'\""))
    is_label = _which_are_labels(path, names)
    # Maps an attribute's number to that of the feature or label.
    place = np.where(is_label, np.cumsum(is_label), np.cumsum(~is_label)) - 1
    num_labels = int(is_label.sum())
    num_features = len(names) - num_labels
    place, is_label = place.tolist(), is_label.tolist()  # faster one by one

    def is_valid(index: int, value: float) -> bool:
        return index in attributes and (not is_label[index] or value in (0, 1))

    def parse(line: str) -> _Row:
        line = line.strip()
        cells = [cell.split() for cell in line[1:-1].split(",") if cell.strip()]
        cells = [(int(index), float(value)) for index, value in cells]
        if line[0] + line[-1] != "{}" or not all(starmap(is_valid, cells)):
            raise ValueError(line)
        cells = [(i, value) for i, value in cells if value]
        features = [(place[i], value) for i, value in cells if not is_label[i]]
        return (
            [i for i, _ in features],
            [value for _, value in features],
            [place[i] for i, _ in cells if is_label[i]],
        )

    attributes = range(len(names))
    expected = (
        f"{{index value, ...}} with indices in 0..{len(names) - 1}, labels 0 or 1"
    )
    lines = (x for x in lines if x[1].strip() and not x[1].startswith("%"))
    rows = _collect(path, lines, parse, expected, num_features, num_labels)
    return rows, num_features, num_labels, names


def _which_are_labels(path: pathlib.Path, names: list[str]) -> np.ndarray:
    """Returns which attributes are labels, bool[attributes]."""
    lists = sorted(path.parent.glob("*.xml"))
    if len(lists) > 1:
        found = ", ".join(file.name for file in lists)
        raise errors.InvalidInputError(f"{path.parent}: found {found}; expected one.")
    if lists:
        try:
            root = xml.etree.ElementTree.fromstring(files.read_bytes(lists[0]))
        except xml.etree.ElementTree.ParseError as error:
            raise errors.InvalidInputError(f"{lists[0]}: {error}.") from error
        labels = {e.get("name", "") for e in root.iter() if e.tag.endswith("label")}
        if missing := labels.difference(names):
            what = f"the label {min(missing)!r} is no attribute of {path.name}"
            raise errors.InvalidInputError(f"{lists[0]}: {what}.")
        is_label = np.array([name in labels for name in names], bool)
    else:
        is_label = np.array([name.startswith(_ARFF_LABEL) for name in names], bool)
    if not is_label.any() or is_label.all():
        found = f"of {len(names)} attributes, {is_label.sum()} are labels"
        raise errors.InvalidInputError(f"{path}: {found}; an XML file must name these.")
    return is_label
