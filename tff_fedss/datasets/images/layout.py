"""What the names of image files say: class, client, and training or test.

Folders are read as people lay them out,

    CLASS/image                       vehicles/car/image (the class is vehicles/car)
    CLIENT/CLASS/image                train/CLASS/image and test/CLASS/image or val/...

below any number of folders that all images share, or a table `images.csv` says it:

    path,label,client,split           the last two are optional
"""

import collections
import csv
import dataclasses
import io
from collections.abc import Iterator, Sequence

import numpy as np

from tff_fedss import files
from tff_fedss.datasets import formats
from tff_fedss.errors import InvalidInputError

TABLE = "images.csv"
FOLDERS = ("auto", "class", "client/class", "none")
TRAIN, TEST, VALIDATION = 0, 1, 2
_SPLITS = {
    "train": TRAIN,
    "training": TRAIN,
    "test": TEST,
    "testing": TEST,
    "val": VALIDATION,
    "valid": VALIDATION,
    "validation": VALIDATION,
}
# Folders between the class and its images that say nothing, as Tiny-ImageNet has them.
_MEANINGLESS = frozenset({"images", "image", "imgs", "img", "jpg", "jpeg", "png"})
_COLUMNS = ("path", "label", "client", "split")
_MAX_SHOWN = 3
_NO_CLIENT = ""


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is known of each image, in the order of `files`.

    Attributes:
        files: Positions in the source's `names`, int64[N].
        class_names: Sorted; a label is a position here. None: nothing says the classes.
        labels: int32[N]; None likewise.
        client_names: Sorted; None if nothing says whose an image is.
        clients: int32[N], positions in `client_names`; None likewise.
        splits: int8[N] of `TRAIN`, `TEST` and `VALIDATION`; None if nothing says it.
        note: What was left out or decided, for a person; may be empty.
    """

    files: np.ndarray
    class_names: list[str] | None
    labels: np.ndarray | None
    client_names: list[str] | None
    clients: np.ndarray | None
    splits: np.ndarray | None
    note: str = ""


def from_folders(
    names: Sequence[str],
    source: str,
    folders: str = "auto",
    needs_labels: bool = True,
) -> Layout:
    """Reads the layout off the paths of the images.

    Args:
        names: All files, sorted; those that are no images by their suffix are left out.
        source: What messages begin with.
        folders: One of `FOLDERS`. "class": all folders above an image are its class.
            "client/class": the first is the client. "auto": the class, unless a class
            lies in several first folders, which could be either: that is refused.
            "none": folders mean nothing; the images have no class.
        needs_labels: Whether images that lie in no folder are refused. Else they have
            no class, if all lie so.

    Raises:
        InvalidInputError: If there is no image, or one in no folder, or the layout is
            ambiguous.
    """
    used = [k for k, name in enumerate(names) if formats.is_image_name(name)]
    if not used:
        raise InvalidInputError(
            f"{source}: found no image ({', '.join(formats.SUFFIXES)}); expected "
            f"CLASS/image, CLIENT/CLASS/image or {TABLE}"
            + (f", found {shown(names)}." if names else ", found no file.")
        )
    if folders == "none":
        return _without_labels(used)
    # Of few different folders; the work below is done once for each.
    of_image = [names[k].rpartition("/")[0] for k in used]
    parts = {folder: tuple(folder.split("/")) for folder in dict.fromkeys(of_image)}
    if "" in parts:
        first = next(names[k] for k in used if "/" not in names[k])
        if len(parts) == 1 and not needs_labels:
            return _without_labels(used)
        if len(parts) == 1:
            raise InvalidInputError(
                f"{source}: {first} lies in no folder; expected CLASS/image, "
                f"CLIENT/CLASS/image or {TABLE}."
            )
        raise InvalidInputError(
            f"{source}: {first} lies in no folder, others do; move it into the folder "
            "of its class"
            + ("." if needs_labels else ", or say folders=none, for no classes.")
        )
    parts = _without_shared(parts)
    parts, split_of = _without_splits(parts, source)
    parts = _without_meaningless(parts, split_of)
    notes = []
    without_class = [folder for folder, rest in parts.items() if not rest]
    if without_class:
        if len(without_class) == len(parts):
            raise InvalidInputError(
                f"{source}: no image lies in the folder of a class."
            )
        if any(split_of.get(folder, TRAIN) == TRAIN for folder in without_class):
            raise InvalidInputError(
                f"{source}: images in {without_class[0]}/ lie in no folder of a class."
            )
        count = sum(folder in set(without_class) for folder in of_image)
        notes.append(
            f"left out: {count:,} images of {shown(without_class)} without a class"
        )
    parts = {folder: rest for folder, rest in parts.items() if rest}
    client_of, class_of = _clients_and_classes(parts, source, folders)

    kept = [k for k, folder in zip(used, of_image, strict=True) if folder in parts]
    of_kept = [folder for folder in of_image if folder in parts]
    other = len(names) - len(used)
    if other:
        strange = next(name for name in names if not formats.is_image_name(name))
        notes.append(f"left out: {other:,} files that are no images, as {strange!r}")
    class_names, labels = _numbered(of_kept, class_of)
    client_names, clients = _numbered(of_kept, client_of) if client_of else (None, None)
    splits = None
    if split_of:
        splits = _values(of_kept, split_of).astype(np.int8)
        if not (splits != TRAIN).any():
            splits = None
    return Layout(
        np.array(kept, np.int64),
        class_names,
        labels,
        client_names,
        clients,
        splits,
        "; ".join(notes),
    )


def _without_labels(used: list[int]) -> Layout:
    return Layout(np.array(used, np.int64), None, None, None, None, None)


def _without_shared(parts: dict[str, tuple]) -> dict[str, tuple]:
    """Takes away the folders that all images share, but never an image's last one."""
    while True:
        firsts = {rest[0] for rest in parts.values()}
        if len(firsts) > 1 or min(map(len, parts.values())) < 2:
            return parts
        parts = {folder: rest[1:] for folder, rest in parts.items()}


def _without_splits(
    parts: dict[str, tuple], source: str
) -> tuple[dict[str, tuple], dict[str, int]]:
    """Takes away the level of folders that says training or test, if there is one."""
    for level in range(min(map(len, parts.values()))):
        found = {rest[level].lower() for rest in parts.values()}
        kinds = {_SPLITS[name] for name in found if name in _SPLITS}
        if TRAIN not in kinds or len(kinds) < 2:
            continue
        strange = sorted(
            {r[level] for r in parts.values() if r[level].lower() not in _SPLITS}
        )
        if strange:
            raise InvalidInputError(
                f"{source}: found the folder {strange[0]} beside "
                f"{' and '.join(sorted(found & _SPLITS.keys()))}; expected train, test "
                "and val alone, or classes alone."
            )
        split_of = {f: _SPLITS[rest[level].lower()] for f, rest in parts.items()}
        return (
            {f: rest[:level] + rest[level + 1 :] for f, rest in parts.items()},
            split_of,
        )
    return parts, {}


def _without_meaningless(
    parts: dict[str, tuple], split_of: dict[str, int]
) -> dict[str, tuple]:
    """Takes away a last folder such as `images`, if all classes have it."""
    of_train = [r for f, r in parts.items() if split_of.get(f, TRAIN) == TRAIN]
    lasts = {rest[-1].lower() if len(rest) > 1 else "" for rest in of_train}
    shared = len(lasts) == 1 and lasts <= _MEANINGLESS
    return {
        folder: rest[:-1]
        if rest
        and rest[-1].lower() in _MEANINGLESS
        and (shared or (len(rest) == 1 and split_of.get(folder, TRAIN) != TRAIN))
        else rest
        for folder, rest in parts.items()
    }


def _clients_and_classes(
    parts: dict[str, tuple], source: str, folders: str
) -> tuple[dict[str, str] | None, dict[str, str]]:
    """The client (None: unknown) and the class of each folder."""
    whole = {folder: "/".join(rest) for folder, rest in parts.items()}
    if folders == "class":
        return None, whole
    if folders == "client/class":
        for folder, rest in parts.items():
            if len(rest) < 2:
                raise InvalidInputError(
                    f"{source}: {folder}/ is one folder deep; with clients, expected "
                    "CLIENT/CLASS/image."
                )
        return (
            {folder: rest[0] for folder, rest in parts.items()},
            {folder: "/".join(rest[1:]) for folder, rest in parts.items()},
        )
    first_with = {}
    for folder, rest in parts.items():
        if len(rest) < 2:
            continue
        other = first_with.setdefault(rest[1:], (rest[0], folder))
        if other[0] != rest[0]:
            raise InvalidInputError(
                f"{source}: {other[1]} and {folder} may be one class of two clients, "
                "or two classes: say folders=client/class or folders=class."
            )
    return None, whole


def from_table(
    content: bytes,
    table: str,
    names: Sequence[str],
    source: str,
    needs_labels: bool = True,
) -> Layout:
    """Reads the layout off a table.

    Args:
        content: Of the table: CSV in UTF-8 with a header.
        table: Its path, as messages call it, below which its paths are.
        names: All files, sorted.
        source: What messages begin with.
        needs_labels: Whether a table without the column `label` is refused. Else its
            images have no class.

    Raises:
        InvalidInputError: If a line is wrong; the message has its number.
    """

    def fail(line: int, text: str):
        raise InvalidInputError(f"{source}: {table}:{line}: {text}")

    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{source}: {table} is not in UTF-8: {error}."
        ) from None
    prefix = table.rpartition("/")[0]
    prefix = prefix and f"{prefix}/"
    place = {name: k for k, name in enumerate(names)}
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    kept, seen = [], {}
    columns = {name: [] for name in _COLUMNS}
    header = None
    for line, row in _rows(reader, fail):
        if header is None:
            header = [name.strip() for name in row]
            needed = ("path", "label") if needs_labels else ("path",)
            _check_header(header, needed, lambda text, line=line: fail(line, text))
            continue
        if len(row) != len(header):
            fail(line, f"found {len(row)} columns; expected {','.join(header)}.")
        values = dict(zip(header, row, strict=True))
        path = values["path"].removeprefix("./")
        if path in seen:
            fail(line, f"{path!r} is already in line {seen[path]}.")
        seen[path] = line
        if (number := place.get(prefix + path)) is None:
            fail(line, f"there is no file {path!r} beside the table.")
        for name in ("label", "client"):
            if name in values and not values[name].strip():
                fail(line, f"the {name} of {path!r} is empty.")
        if (split := values.get("split")) is not None:
            if split.strip().lower() not in _SPLITS:
                fail(line, f"found the split {split!r}; expected train, test or val.")
            columns["split"].append(_SPLITS[split.strip().lower()])
        kept.append(number)
        for name in ("label", "client"):
            if name in values:
                columns[name].append(values[name])
    if not kept:
        raise InvalidInputError(f"{source}: {table} names no image.")
    class_names, labels = (
        _numbered(columns["label"]) if "label" in header else (None, None)
    )
    client_names, clients = (
        _numbered(columns["client"]) if "client" in header else (None, None)
    )
    splits = np.array(columns["split"], np.int8) if "split" in header else None
    images = sum(map(formats.is_image_name, names))
    left_out = images - len(kept)
    return Layout(
        np.array(kept, np.int64),
        class_names,
        labels,
        client_names,
        clients,
        splits if splits is not None and (splits != TRAIN).any() else None,
        f"left out: {left_out:,} images that {table} does not name"
        if left_out > 0
        else "",
    )


def _rows(reader, fail) -> Iterator[tuple[int, list[str]]]:
    """Yields the first line of a row and its columns; blank lines are left out."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fail(line, f"{files.error_text(error)}.")
        if row:
            yield line, row


def _check_header(header: list[str], needed: Sequence[str], fail) -> None:
    for name, count in collections.Counter(header).items():
        if count > 1:
            fail(f"the column {name!r} is there {count} times.")
    missing = [name for name in needed if name not in header]
    if missing:
        fail(
            f"the header lacks {' and '.join(missing)}; expected path,label and "
            f"perhaps client and split, found {','.join(header)[:80]!r}."
        )


def _numbered(keys: list[str], of: dict | None = None) -> tuple[list[str], np.ndarray]:
    """Sorted different values, and for each key the position of its value there."""
    values = sorted(set(keys if of is None else of.values()))
    if of is not None:
        used = {of[key] for key in set(keys)}
        values = [value for value in values if value in used]
    number = {value: k for k, value in enumerate(values)}
    if of is not None:
        number = {key: number[of[key]] for key in set(keys)}
    return values, np.fromiter((number[key] for key in keys), np.int32, len(keys))


def _values(keys: list[str], of: dict) -> np.ndarray:
    return np.fromiter((of[key] for key in keys), np.int64, len(keys))


def shown(names: Sequence[str]) -> str:
    """Writes some names in a message: the first few."""
    more = ", ..." if len(names) > _MAX_SHOWN else ""
    return ", ".join(map(repr, names[:_MAX_SHOWN])) + more
