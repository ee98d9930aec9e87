"""Extreme classification: rows with sparse features and several labels each.

Reads two text formats, told apart by the name of the file:

- XMC (the Extreme Classification Repository's, libsvm with labels): a first line
  `rows features labels`, then `label,label feature:value feature:value` for each row;
- sparse ARFF (`.arff`, as Mulan has it): attributes, then `{index value, ...}` for each
  row. The labels are the attributes whose names an XML file lists, or whose names
  begin with `TAG_` if there is no such file.

XMC is read here and not by scikit-learn's `load_svmlight_file`: its errors ("need more
than 1 value to unpack") do not name the line, it takes XMC's first line for a broken
row, and it lets `nan` and `1_0` pass as values. SciPy's ARFF reader reads no sparse
rows.
"""

import array
import dataclasses
import os
import pathlib
import re
import xml.etree.ElementTree
from collections.abc import Iterable, Iterator

import numpy as np

from tff_fedss import errors, files
from tff_fedss.datasets import fingerprint
from tff_fedss.datasets.fingerprint import Fingerprint

_SUFFIXES = (".txt", ".svm", ".libsvm", ".arff")
_ARFF_LABEL = "TAG_"
_MAX_COUNT = 2**31 - 1
# An encoding that Python does not know is one of the last two.
_XML_ERRORS = (OSError, xml.etree.ElementTree.ParseError, LookupError, ValueError)


@dataclasses.dataclass(frozen=True)
class SparseRows:
    """Rows of sparse features, and their labels, in compressed form.

    Attributes:
        feature_ids: int32[k], those of all rows, one row after another.
        values: float32[k], of the features.
        feature_ends: int64[rows + 1], where each row's features end; 0 first.
        label_ids: int32[l], likewise.
        label_ends: int64[rows + 1], likewise.
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
        train: The training rows.
        test: The test rows.
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
            .txt, .svm, .libsvm (XMC) or .arff. Beside ARFF, an XML file may list the
            names of the labels.

    Raises:
        errors.InvalidInputError: If there is no such pair, or more than one; if a file
            cannot be used, with its line; or if the two do not go together.
    """
    folder = pathlib.Path(data_dir)
    source = f"data_dir={data_dir}"
    if not folder.is_dir():
        raise errors.InvalidInputError(f"{source} is not a folder.")
    paths, parts, sizes = [], [], []
    for part in ("train", "test"):
        found = sorted(
            path
            for path in folder.iterdir()
            if part in path.name.lower() and path.suffix.lower() in _SUFFIXES
        )
        if len(found) != 1:
            names = ", ".join(path.name for path in found) or "none"
            raise errors.InvalidInputError(
                f"{source} must hold one file with '{part}' in its name that ends in "
                f"{', '.join(_SUFFIXES)}; found {names}."
            )
        if found[0] in paths:
            raise errors.InvalidInputError(
                f"{source}: {found[0].name} has both 'train' and 'test' in its name."
            )
        paths.append(found[0])
        rows, *size = read(found[0])
        parts.append(rows)
        sizes.append(tuple(size))
    if sizes[0] != sizes[1]:
        raise errors.InvalidInputError(
            f"{source}: the training file has {sizes[0][0]} features and {sizes[0][1]} "
            f"labels, the test file {sizes[1][0]} and {sizes[1][1]}."
        )
    return ExtremeDataset(*parts, *sizes[0])


def read(path: os.PathLike) -> tuple[SparseRows, int, int]:
    """Reads one file.

    Args:
        path: The file, in the format that its name says.

    Returns:
        The rows, the number of features v, and the number of labels n.

    Raises:
        errors.InvalidInputError: If it cannot be read, or a line cannot be used. The
            message names the file and the line.
    """
    path = pathlib.Path(path)
    reader = _read_arff if path.suffix.lower() == ".arff" else _read_xmc
    try:
        files.check_regular(path)
        # Some editors write a byte order mark.
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            rows, num_features, num_labels = reader(path, enumerate(lines, 1))
    except OSError as error:
        raise errors.InvalidInputError(
            f"{path} cannot be read: {error.strerror or error}."
        ) from error
    if num_labels < 2:
        raise errors.InvalidInputError(
            f"{path} has {num_labels} label; expected two or more to choose from."
        )
    if not len(rows.label_ids):
        raise errors.InvalidInputError(f"{path}: no row has a label.")
    return rows, num_features, num_labels


class _Rows:
    """Rows while they are read. They are checked all together in the end."""

    def __init__(self, path: pathlib.Path, num_features: int, num_labels: int):
        self._path = path
        self._limits = {"feature": num_features, "label": num_labels}
        self._ids = {kind: array.array("q") for kind in self._limits}
        self._ends = {kind: array.array("q", [0]) for kind in self._limits}
        self._values = array.array("f")
        self._line_numbers = array.array("q")

    def add(
        self,
        number: int,
        features: Iterable[int],
        values: Iterable[float],
        labels: Iterable[int],
    ) -> None:
        self._line_numbers.append(number)
        self._values.extend(values)
        for kind, ids in (("feature", features), ("label", labels)):
            self._ids[kind].extend(ids)
            self._ends[kind].append(len(self._ids[kind]))

    def __len__(self) -> int:
        return len(self._line_numbers)

    def finish(self) -> SparseRows:
        if not self._line_numbers:
            raise errors.InvalidInputError(f"{self._path} has no rows.")
        values = np.array(self._values, np.float32)
        ids = {kind: np.array(i, np.int64) for kind, i in self._ids.items()}
        ends = {kind: np.array(e, np.int64) for kind, e in self._ends.items()}
        for kind, limit in self._limits.items():
            is_outside = (ids[kind] < 0) | (ids[kind] >= limit)
            if is_outside.any():
                place = int(is_outside.argmax())
                reason = f"{kind} {ids[kind][place]} is not in 0..{limit - 1}"
                raise self._error_at(ends[kind], place, reason)
            row_of = np.repeat(np.arange(len(self)), np.diff(ends[kind]))
            order = np.lexsort((ids[kind], row_of))
            is_same = (np.diff(ids[kind][order]) == 0) & (np.diff(row_of[order]) == 0)
            if is_same.any():
                place = int(order[is_same.argmax()])
                raise self._error_at(ends[kind], place, f"a {kind} is there twice")
        is_bad = ~np.isfinite(values)
        if is_bad.any():
            reason = "a value is not a finite number"
            raise self._error_at(ends["feature"], int(is_bad.argmax()), reason)
        return SparseRows(
            ids["feature"].astype(np.int32),
            values,
            ends["feature"],
            ids["label"].astype(np.int32),
            ends["label"],
        )

    def _error_at(
        self, ends: np.ndarray, place: int, reason: str
    ) -> errors.InvalidInputError:
        row = int(np.searchsorted(ends, place, "right")) - 1
        return _error(self._path, self._line_numbers[row], reason)


def _check_digits(line: str) -> None:
    """Refuses what Python takes for a number, and the formats do not: 1_000, or ٣."""
    if "_" in line or not line.isascii():
        raise ValueError(line)


def _error(path: pathlib.Path, number: int, reason: str) -> errors.InvalidInputError:
    return errors.InvalidInputError(f"{path}, line {number}: {reason}.")


# --- XMC --------------------------------------------------------------------------


def _read_xmc(
    path: pathlib.Path, lines: Iterator[tuple[int, str]]
) -> tuple[SparseRows, int, int]:
    number, header = next(lines, (1, ""))
    try:
        _check_digits(header)
        num_rows, num_features, num_labels = map(int, header.split())
    except ValueError:
        num_rows = -1
    if num_rows < 0 or not all(
        0 < count <= _MAX_COUNT for count in (num_features, num_labels)
    ):
        raise _error(
            path, number, f"expected 'rows features labels', found {header.strip()!r}"
        )
    rows = _Rows(path, num_features, num_labels)
    for number, line in lines:
        # A row without labels begins with a space.
        labels, _, features = line.rstrip("\n").partition(" ")
        if not line.strip():
            continue
        pairs = [pair.partition(":") for pair in features.split()]
        try:
            _check_digits(line)
            rows.add(
                number,
                [int(feature) for feature, _, _ in pairs],
                [float(value) for _, _, value in pairs],
                # Nothing between two commas is not a label.
                [int(label) for label in labels.split(",")] if labels else [],
            )
        except (ValueError, OverflowError) as error:
            raise _error(
                path,
                number,
                "expected 'label,label feature:value feature:value', found "
                f"{line.strip()[:60]!r}",
            ) from error
    if len(rows) != num_rows:
        raise errors.InvalidInputError(
            f"{path} has {len(rows)} rows, but its first line says {num_rows}."
        )
    return rows.finish(), num_features, num_labels


# --- Sparse ARFF ------------------------------------------------------------------

_ATTRIBUTE = re.compile(
    r"""@attribute\s+("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\S+)\s+\S""", re.IGNORECASE
)


def _read_arff(
    path: pathlib.Path, lines: Iterator[tuple[int, str]]
) -> tuple[SparseRows, int, int]:
    names, names_seen = [], set()
    for number, line in lines:
        line = line.strip()
        if line.lower().startswith("@data"):
            break
        if line.lower().startswith("@attribute"):
            match = _ATTRIBUTE.match(line)
            if match is None:
                raise _error(path, number, f"a broken attribute: {line[:60]!r}")
            name = match[1].strip("'\"")
            if name in names_seen:
                raise _error(path, number, f"the attribute {name!r} is there twice")
            names_seen.add(name)
            names.append(name)
    else:
        raise errors.InvalidInputError(f"{path} has no @data line.")
    is_label = _which_are_labels(path, names)
    # From the number of an attribute to that of the feature or label.
    place = np.where(is_label, np.cumsum(is_label), np.cumsum(~is_label)) - 1
    num_labels = int(is_label.sum())
    place, is_label = place.tolist(), is_label.tolist()  # faster one by one
    rows = _Rows(path, len(names) - num_labels, num_labels)
    for number, line in lines:
        line = line.strip()
        if not line or line.startswith("%"):
            continue
        if not (line.startswith("{") and line.endswith("}")):
            raise _error(path, number, f"expected a sparse row, found {line[:60]!r}")
        cells = [cell.split() for cell in line[1:-1].split(",") if cell.strip()]
        try:
            _check_digits(line)
            ids = [int(index) for index, _ in cells]
            values = [float(value) for _, value in cells]
        except ValueError as error:
            raise _error(
                path, number, f"expected '{{index value, ...}}', found {line[:60]!r}"
            ) from error
        if ids and not 0 <= min(ids) <= max(ids) < len(names):
            raise _error(path, number, f"an index is not in 0..{len(names) - 1}")
        if len(set(ids)) < len(ids):
            raise _error(path, number, "an index is there twice")
        cells = [(i, value) for i, value in zip(ids, values, strict=True) if value]
        if any(is_label[i] and value != 1 for i, value in cells):
            raise _error(path, number, "a label's value is neither 0 nor 1")
        features = [(place[i], value) for i, value in cells if not is_label[i]]
        rows.add(
            number,
            [i for i, _ in features],
            [value for _, value in features],
            [place[i] for i, _ in cells if is_label[i]],
        )
    return rows.finish(), len(names) - num_labels, num_labels


def _which_are_labels(path: pathlib.Path, names: list[str]) -> np.ndarray:
    """Tells labels from features: bool[attributes]."""
    lists = sorted(path.parent.glob("*.xml"))
    if lists:
        try:
            root = xml.etree.ElementTree.fromstring(files.read(lists[0]))
        except _XML_ERRORS as error:
            reason = files.error_text(error)
            raise errors.InvalidInputError(
                f"{lists[0]} is unreadable or damaged: {reason}."
            ) from error
        labels = {e.get("name") for e in root.iter() if e.tag.endswith("label")}
        if not labels or None in labels:
            raise errors.InvalidInputError(
                f"{lists[0]} must list the labels as <label name=...>; found "
                f"{'one without a name' if labels else 'none'}."
            )
        missing = labels - set(names)
        if missing:
            raise errors.InvalidInputError(
                f"{lists[0]} lists the label {min(missing)!r}, which is no attribute "
                f"of {path.name}."
            )
        is_label = np.array([name in labels for name in names], bool)
    else:
        is_label = np.array([name.startswith(_ARFF_LABEL) for name in names], bool)
    if not is_label.any() or is_label.all():
        raise errors.InvalidInputError(
            f"{path}: of {len(names)} attributes, {is_label.sum()} are labels; an XML "
            "file beside it must list the names of the labels."
        )
    return is_label
