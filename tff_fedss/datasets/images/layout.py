"""Layout: class, client and split (training or test) from the paths of image files.

Folders may be

    CLASS/image                       vehicles/car/image (the class is vehicles/car)
    CLIENT/CLASS/image                train/CLASS/image and test/CLASS/image or val/...

below any number of folders that all images share, or there is a table `images.csv`:

    path,label,client,split           the last two are optional
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tff_fedss import files
from tff_fedss.datasets import formats
from tff_fedss.datasets.splits import TEST, TRAIN, VALIDATION
from tff_fedss.errors import InvalidInputError

TABLE = "images.csv"
FOLDERS = ("auto", "class", "client/class", "none")
_SPLITS = {
    "train": TRAIN,
    "training": TRAIN,
    "test": TEST,
    "testing": TEST,
    "val": VALIDATION,
    "valid": VALIDATION,
    "validation": VALIDATION,
}
# Folders without meaning between a class and its images, as in Tiny-ImageNet.
_MEANINGLESS = frozenset({"images", "image", "imgs", "img", "jpg", "jpeg", "png"})
_MAX_SHOWN = 3
_EXPECTED = f"CLASS/image, CLIENT/CLASS/image or {TABLE}"


@dataclasses.dataclass(frozen=True)
class Layout:
    """The class, client and split of each image, in the order of `files`.

    Attributes:
        files: Positions in the source's `names`, int64[N].
        class_names: A label is a position here. Sorted, but those of TFDS have its
            order. None without classes.
        labels: int32[N]; None without classes.
        client_names: Sorted, but those of TFDS by value. None without clients.
        clients: int32[N], positions in `client_names`; None without clients.
        splits: int8[N] of `TRAIN`, `TEST` and `VALIDATION`; None if not given.
        note: Omissions and decisions, for the summary; may be empty.
    """

    files: np.ndarray
    class_names: list[str] | None = None
    labels: np.ndarray | None = None
    client_names: list[str] | None = None
    clients: np.ndarray | None = None
    splits: np.ndarray | None = None
    note: str = ""


def from_folders(
    names: Sequence[str],
    source: str,
    folders: str = "auto",
    needs_labels: bool = True,
) -> Layout:
    """Reads the layout from the paths of the images.

    Args:
        names: All files, sorted; those without the suffix of an image are left out.
        source: The start of messages.
        folders: One of `FOLDERS`. "class": all folders above an image are its class.
            "client/class": the first is the client. "auto": the class; an error if a
            class is in several first folders, which could be clients. "none": the
            images have no class.
        needs_labels: Whether images outside of folders are refused. If not, and if no
            image is in a folder, they have no class.
    """
    used = [k for k, name in enumerate(names) if formats.is_image_name(name)]
    if not used:
        raise InvalidInputError(
            f"{source}: found no image, {shown(names) or 'no file'}; expected "
            f"{_EXPECTED}, an image ending in {', '.join(formats.SUFFIXES)}."
        )
    if folders == "none":
        return Layout(np.array(used, np.int64))
    # There are few different folders; the work below is done once for each.
    of_image = [names[k].rpartition("/")[0] for k in used]
    parts = {folder: tuple(folder.split("/")) for folder in dict.fromkeys(of_image)}
    if "" in parts:
        if len(parts) == 1 and not needs_labels:
            return Layout(np.array(used, np.int64))
        first = next(names[k] for k in used if "/" not in names[k])
        expected = f"expected {_EXPECTED}, or, for no classes, folders=none"
        raise InvalidInputError(f"{source}: {first} is not in a folder; {expected}.")
    parts = _without_shared(parts)
    parts, split_of = _without_splits(parts, source)
    parts = _without_meaningless(parts, split_of)
    notes = []
    without_class = [folder for folder, rest in parts.items() if not rest]
    if without_class:
        if any(split_of.get(folder, TRAIN) == TRAIN for folder in without_class):
            found = f"{without_class[0]}/ is not a class's folder"
            raise InvalidInputError(f"{source}: {found}.")
        count = sum(folder in set(without_class) for folder in of_image)
        notes.append(
            f"left out: {count:,} images of {shown(without_class)} without a class"
        )
    parts = {folder: rest for folder, rest in parts.items() if rest}
    client_of, class_of = _clients_and_classes(parts, source, folders)

    kept = [k for k, folder in zip(used, of_image, strict=True) if folder in parts]
    of_kept = [folder for folder in of_image if folder in parts]
    if other := len(names) - len(used):
        strange = next(name for name in names if not formats.is_image_name(name))
        notes.append(f"left out: {other:,} files that are no images, as {strange!r}")
    class_names, labels = _numbered([class_of[folder] for folder in of_kept])
    client_names, clients = _numbered([client_of.get(folder) for folder in of_kept])
    splits = np.array([split_of.get(folder, TRAIN) for folder in of_kept], np.int8)
    return Layout(
        np.array(kept, np.int64),
        class_names,
        labels,
        client_names,
        clients,
        splits if (splits != TRAIN).any() else None,
        "; ".join(notes),
    )


def _without_shared(parts: dict[str, tuple]) -> dict[str, tuple]:
    """Removes the folders that all images share, but never an image's last one."""
    while True:
        firsts = {rest[0] for rest in parts.values()}
        if len(firsts) > 1 or min(map(len, parts.values())) < 2:
            return parts
        parts = {folder: rest[1:] for folder, rest in parts.items()}


def _without_splits(
    parts: dict[str, tuple], source: str
) -> tuple[dict[str, tuple], dict[str, int]]:
    """Removes the level of folders for training and test, if there is one."""
    for level in range(max(map(len, parts.values()))):
        found = {rest[level].lower() for rest in parts.values() if len(rest) > level}
        kinds = {_SPLITS[name] for name in found if name in _SPLITS}
        if TRAIN not in kinds or len(kinds) < 2:
            continue
        strange = sorted(
            "/".join(rest[: level + 1])
            for rest in parts.values()
            if len(rest) <= level or rest[level].lower() not in _SPLITS
        )
        if strange:
            others = " and ".join(sorted(found & _SPLITS.keys()))
            raise InvalidInputError(
                f"{source}: the folder {strange[0]} beside {others}."
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
    """Removes a last folder such as `images`, if all classes have it."""
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
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the client (if known) and the class of each folder."""
    whole = {folder: "/".join(rest) for folder, rest in parts.items()}
    if folders == "class":
        return {}, whole
    if folders == "client/class":
        for folder, rest in parts.items():
            if len(rest) < 2:
                expected = "one folder; expected CLIENT/CLASS/image"
                raise InvalidInputError(f"{source}: {folder}/ is {expected}.")
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
                "or two classes: give folders=client/class or folders=class."
            )
    return {}, whole


class Row(NamedTuple):
    """A table's row of one image.

    Attributes:
        where: The line, for messages.
        label: Its class; None if the table has no classes.
        client: Its client; None if the table has no clients.
        split: `TRAIN`, `TEST` or `VALIDATION`.
    """

    where: str
    path: str
    label: str | None
    client: str | None = None
    split: int = TRAIN


def from_rows(rows: Sequence[Row], names: Sequence[str], note: str = "") -> Layout:
    """Makes a layout from a table's rows, in their order.

    All or none have a label, and all or none a client. `names` are all files, sorted.
    """
    number_of = {name: number for number, name in enumerate(names)}
    where_of = {}
    for row in rows:
        if row.path not in number_of:
            raise InvalidInputError(f"{row.where}: there is no file {row.path!r}.")
        files.expect_once(where_of, row.path, row.where, "path")
    _, paths, labels, clients, splits = zip(*rows, strict=True)
    class_names, labels = _numbered(labels)
    client_names, clients = _numbered(clients)
    splits = np.array(splits, np.int8)
    return Layout(
        np.array([number_of[path] for path in paths], np.int64),
        class_names,
        labels,
        client_names,
        clients,
        splits if (splits != TRAIN).any() else None,
        note,
    )


def from_table(
    content: bytes,
    table: str,
    names: Sequence[str],
    source: str,
    needs_labels: bool = True,
) -> Layout:
    """Reads the layout from a table.

    Args:
        content: Content of the table: CSV in UTF-8 with a header.
        table: Its path, for messages; paths in it are relative to its folder.
        names: All files, sorted.
        source: The start of messages.
        needs_labels: Whether a table without the column `label` is refused. If not, its
            images have no class.
    """
    folder = table.rpartition("/")[0]
    columns = ("path", "label") if needs_labels else ("path",)

    def rows() -> Iterator[Row]:
        for where, values in files.csv_table(content, f"{source}: {table}", columns):
            values = {k: v if k == "path" else v.strip() for k, v in values.items()}
            split = values.get("split", "train").lower()
            has_names = all(values.get(k, "x") for k in ("label", "client"))
            if split not in _SPLITS or not has_names:
                wanted = "a label, a client, and the split train, test or val"
                raise InvalidInputError(f"{where}: found {values}; expected {wanted}.")
            path = f"{folder}/{values['path'].removeprefix('./')}".removeprefix("/")
            yield Row(
                where, path, values.get("label"), values.get("client"), _SPLITS[split]
            )

    found = list(rows())
    if not found:
        raise InvalidInputError(f"{source}: {table} has no row.")
    listed = {row.path for row in found}
    left_out = len(set(filter(formats.is_image_name, names)) - listed)
    note = f"left out: {left_out:,} images that {table} does not list"
    return from_rows(found, names, note if left_out else "")


def _numbered(
    values: Sequence[str | None],
) -> tuple[list[str] | None, np.ndarray | None]:
    """Returns the sorted distinct values, and each value's position among them."""
    if None in values:
        return None, None
    names = sorted(set(values))
    number = {name: k for k, name in enumerate(names)}
    return names, np.array([number[value] for value in values], np.int32)


def shown(names: Sequence[str]) -> str:
    """Formats the first few names for a message."""
    more = ", ..." if len(names) > _MAX_SHOWN else ""
    return ", ".join(map(repr, names[:_MAX_SHOWN])) + more
