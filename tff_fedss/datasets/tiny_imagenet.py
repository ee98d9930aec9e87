"""Tiny-ImageNet as a federated data set: 200 classes of 64x64 photographs.

It is a cut of ImageNet (Deng et al., 2009) made for a course (CS231N, Stanford): 500
images of each class for training, 50 for validation, and 10,000 without labels, which
are not used here.
"""

import errno
import os
import pathlib
import re
from collections.abc import Iterator

import numpy as np
import tqdm

from tff_fedss import errors, files
from tff_fedss.datasets import archives, fingerprint, image_files
from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.federated.clients import (
    Arrays,
    InMemoryClientData,
    dataset_from_arrays,
)
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.datasets.federated.preprocessing import Preprocessing

PARTITIONS = ("mixed", "dirichlet")

# Keeps the draws of this data set apart from others of the same seed.
_PHILOX_STREAM = int.from_bytes(b"tiny-img", "big")

_ROOT = "tiny-imagenet-200"
_LAYOUT = (
    "train/<wnid>/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt, in a "
    f"folder {_ROOT} or an archive of it ({', '.join(archives.SUFFIXES)})"
)
_ANNOTATIONS = "val/val_annotations.txt"
_CLASSES = "wnids.txt"
# Every file in a folder `images` counts as an image, whatever its name, except hidden
# ones. What is here but not named, such as bounding boxes, is not used.
_USED = re.compile(
    r"(?P<root>(?:[^/]+/)*?)"
    r"(?P<path>"
    r"train/(?P<wnid>[^/.][^/]*)/(?:images/|[^/]+_boxes\.txt)?"
    r"|train/(?P<train_wnid>[^/.][^/]*)/images/[^/.][^/]*"
    r"|val/images/(?P<val>[^/.][^/]*)"
    rf"|{re.escape(_ANNOTATIONS)}"
    rf"|{re.escape(_CLASSES)}"
    r")"
)
_IMAGE = re.compile(r"(?:train/[^/.][^/]*|val)/images/[^/.][^/]*")
# Folders of other systems' own files, at any depth.


def load(
    data_dir: os.PathLike | None,
    *,
    partition: str = "mixed",
    seed: int = 0,
    image_size: int = 64,
    resize_size: int | None = None,
    classes_per_client: int = 20,
    images_per_class: int = 5,
    num_clients: int | None = None,
    alpha: float = 0.5,
    num_public_classes: int = 0,
    num_unseen_classes: int = 0,
) -> FederatedDataset:
    """Loads Tiny-ImageNet, or a part of it in the same layout.

    Every image is read and decoded once, to see that it is whole; then its encoded
    bytes are kept in memory (about 2 KB an image), and the input pipeline decodes them.

    Args:
        data_dir: The folder tiny-imagenet-200, a folder with it or with an archive of
            it, or the path of such an archive; the original is tiny-imagenet-200.zip.
            None is refused with a message: nothing is downloaded.
        partition: How the training images are split over clients. "mixed": clients
            hold about classes_per_client classes and images_per_class images of each,
            in the proportions of the paper's ImageNet-21k clients (Appendix A.4).
            "dirichlet": each class is cut over num_clients clients in proportions from
            a Dirichlet distribution; see `partitions.dirichlet`.
        seed: Which partition; 0 <= seed < 2^63.
        image_size: Height and width in pixels of what the model sees: a crop.
        resize_size: Height and width in pixels that images are brought to first. By
            default image_size * 256/224, as in the paper (Appendix A.2): 73 for 64.
        classes_per_client: For "mixed": mean number of classes of a client.
        images_per_class: For "mixed": mean number of images of each.
        num_clients: For "dirichlet". By default there are about as many clients as
            with the other partition.
        alpha: For "dirichlet": the concentration.
        num_public_classes: So many classes, drawn at random, are given to no client:
            their training images are the public ones, for a warm start, and n is that
            many less. A small network does not learn these photographs from nothing on
            clients.
        num_unseen_classes: So many more, drawn after the public ones, are given to
            nobody: all their images, of training and of validation, are to be retrieved
            among each other.

    Returns:
        The data set. Classes are numbered in the order of their sorted wnids. Stored
        images are string[], the bytes of a JPEG. The test images are those of the
        validation set, of the classes that clients have.

    Raises:
        errors.InvalidInputError: If an argument is out of range, or if data_dir does
            not hold the data set, whole and with one label to an image.
    """
    if partition not in PARTITIONS:
        raise errors.InvalidInputError(
            f"partition={partition!r} must be one of {', '.join(PARTITIONS)}."
        )
    partitions.check_seed(seed)
    for name, value in (
        ("classes_per_client", classes_per_client),
        ("images_per_class", images_per_class),
        ("num_clients", num_clients),
    ):
        if value is not None and value < 1:
            raise errors.InvalidInputError(f"{name}={value} must be at least 1.")
    if num_clients is not None and partition != "dirichlet":
        raise errors.InvalidInputError(
            f"num_clients={num_clients} goes with partition='dirichlet' only."
        )
    preprocessing = Preprocessing(image_size, resize_size)
    if data_dir is None:
        raise errors.InvalidInputError(
            f"Tiny-ImageNet needs `data_dir`; expected there: {_LAYOUT}."
        )
    source = Files(data_dir)
    most = len(source.wnids) - 2
    if not 0 <= num_public_classes <= most:
        raise errors.InvalidInputError(
            f"num_public_classes={num_public_classes} must leave two or more of the "
            f"{len(source.wnids)} classes to the clients."
        )
    if num_unseen_classes == 1 or not (
        0 <= num_unseen_classes <= most - num_public_classes
    ):
        raise errors.InvalidInputError(
            f"num_unseen_classes={num_unseen_classes} must be two or more, or 0, and, "
            f"with num_public_classes={num_public_classes}, leave two or more of the "
            f"{len(source.wnids)} classes to the clients."
        )
    rng = partitions.generator(seed, _PHILOX_STREAM)
    # Without public classes nothing is drawn: partitions stay what they were.
    is_public = np.zeros(len(source.wnids), bool)
    if num_public_classes:
        is_public[rng.choice(len(is_public), num_public_classes, replace=False)] = True
    is_unseen = np.zeros_like(is_public)
    if num_unseen_classes:
        others = np.flatnonzero(~is_public)
        is_unseen[rng.choice(others, num_unseen_classes, replace=False)] = True
    train, test = source.train(), source.test()
    is_clients = ~(is_public | is_unseen)
    public_images, public_labels = _of_classes(train, is_public)
    images, labels = _of_classes(train, is_clients)
    test_images, test_labels = _of_classes(test, is_clients)
    unseen_images, unseen_labels = (
        np.concatenate(parts)
        for parts in zip(
            _of_classes(train, is_unseen), _of_classes(test, is_unseen), strict=True
        )
    )

    if partition == "mixed":
        split = partitions.grouped_shares(
            labels, classes_per_client, images_per_class, rng
        )
    else:
        if num_clients is None:
            mean_size = classes_per_client * images_per_class
            num_clients = max(1, round(len(labels) / mean_size))
        split = partitions.dirichlet(labels, num_clients, alpha, 1, rng)
    client_data = InMemoryClientData(
        {
            client_id: (images[examples], labels[examples])
            for client_id, examples in split.items()
        }
    )
    return FederatedDataset(
        name="tiny_imagenet",
        num_classes=int(is_clients.sum()),
        image_shape=(image_size, image_size, 3),
        train=client_data,
        test=HeldOut.from_arrays(test_images, test_labels),
        preprocessing=preprocessing,
        pooled=lambda: dataset_from_arrays(images, labels),
        public=(
            HeldOut.from_arrays(public_images, public_labels)
            if num_public_classes
            else None
        ),
        unseen=(
            HeldOut.from_arrays(unseen_images, unseen_labels)
            if num_unseen_classes
            else None
        ),
        note="test images are those of the validation set",
        contents=lambda: {
            **client_data.contents(),
            "contents of test images": fingerprint.of_arrays(
                [test_images, test_labels]
            ),
            "contents of public images": fingerprint.of_arrays(
                [public_images, public_labels]
            ),
            **(
                {
                    "contents of unseen images": fingerprint.of_arrays(
                        [unseen_images, unseen_labels]
                    )
                }
                if num_unseen_classes
                else {}
            ),
        },
    )


def _of_classes(arrays: Arrays, is_wanted: np.ndarray) -> Arrays:
    """The images of some classes, which are numbered anew, in the same order."""
    images, labels = arrays
    chosen = is_wanted[labels]
    new_labels = np.cumsum(is_wanted, dtype=np.int32) - 1
    return images[chosen], new_labels[labels[chosen]]


class Files:
    """The files of Tiny-ImageNet, checked.

    Attributes:
        wnids: The names of the classes, sorted; a label is a position here.
    """

    def __init__(self, data_dir: os.PathLike):
        """Reads them.

        Args:
            data_dir: See `load`.

        Raises:
            errors.InvalidInputError: If something is missing or damaged.
        """
        self._source = f"data_dir={os.fspath(data_dir)}"
        # By path below the root, images only.
        self._train: dict[str, bytes] = {}
        self._val: dict[str, bytes] = {}
        self._texts: dict[str, str] = {}
        # By wnid, the paths of its images.
        self._of_class: dict[str, list[str]] = {}
        self._root: str | None = None
        for name, content in _progress(_files(pathlib.Path(data_dir), self._source)):
            self._add(name, content)
        if not self._of_class:
            self._fail(f"found no class with training images; expected {_LAYOUT}.")
        self._check_classes()
        if len(self._of_class) == 1:
            self._fail(f"found one class, {min(self._of_class)}; expected two or more.")
        self.wnids = sorted(self._of_class)

    def train(self) -> Arrays:
        """The training images, object[N] of bytes, and labels int32[N], by class."""
        paths = [path for wnid in self.wnids for path in sorted(self._of_class[wnid])]
        sizes = [len(self._of_class[wnid]) for wnid in self.wnids]
        labels = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        return _objects([self._train[path] for path in paths]), labels

    def test(self) -> Arrays:
        """The validation images and labels, likewise, by the name of the file."""
        labels = self._annotations()
        names = sorted(self._val)
        return (
            _objects([self._val[name] for name in names]),
            np.array([labels[name] for name in names], np.int32),
        )

    def _add(self, name: str, content: bytes) -> None:
        found = _USED.fullmatch(name)
        root, path = found["root"], found["path"]
        if self._root not in (None, root):
            self._fail(
                f"found {self._root or './'}train and {root or './'}train; expected "
                "one copy of the data set."
            )
        self._root = root
        if found["wnid"]:
            self._of_class.setdefault(found["wnid"], [])
            return
        if path in (_ANNOTATIONS, _CLASSES):
            self._once(self._texts, path, name, self._decoded(name, content))
            return
        try:
            image_files.check(content)
        except ValueError as e:
            self._fail(f"{name} {e}.")
        if found["val"]:
            self._once(self._val, found["val"], name, content)
        else:
            self._once(self._train, path, name, content)
            self._of_class.setdefault(found["train_wnid"], []).append(path)

    def _once(self, known: dict, key: str, name: str, content) -> None:
        if key in known:
            self._fail(f"{name} is there twice.")
        known[key] = content

    def _decoded(self, name: str, content: bytes) -> str:
        try:
            return content.decode("utf-8-sig")  # Some editors write such a mark.
        except UnicodeDecodeError as e:
            self._fail(f"{name} is not a text in UTF-8: {e}.")

    def _lines(self, path: str) -> Iterator[tuple[str, str]]:
        """Yields `<path>:<number>` and the line, for lines that are not blank."""
        for number, line in enumerate(self._texts[path].split("\n"), start=1):
            if line.strip():
                yield f"{self._root}{path}:{number}", line.strip()

    def _check_classes(self) -> None:
        """Checks that classes have images and are those of wnids.txt, if there."""
        for wnid, paths in sorted(self._of_class.items()):
            if not paths:
                self._fail(
                    f"the class folder {self._root}train/{wnid} holds no image; "
                    f"expected {self._root}train/{wnid}/images/*.JPEG."
                )
        if _CLASSES not in self._texts:
            return
        listed = {}
        for where, wnid in self._lines(_CLASSES):
            if wnid in listed:
                self._fail(f"{where}: the class {wnid} is already in {listed[wnid]}.")
            listed[wnid] = where
            if wnid not in self._of_class:
                self._fail(
                    f"{where}: the class {wnid} has no folder "
                    f"{self._root}train/{wnid}/images."
                )
        for wnid in sorted(self._of_class):
            if wnid not in listed:
                self._fail(
                    f"the class folder {self._root}train/{wnid} is not one of the "
                    f"{len(listed):,} classes in {self._root}{_CLASSES}."
                )

    def _annotations(self) -> dict[str, int]:
        """The label of every validation image, by the name of its file."""
        if _ANNOTATIONS not in self._texts:
            self._fail(
                f"{self._root}{_ANNOTATIONS} is missing, which has the labels of the "
                f"{len(self._val):,} validation images."
            )
        label_of = {wnid: label for label, wnid in enumerate(self.wnids)}
        labels, lines = {}, {}
        for where, line in self._lines(_ANNOTATIONS):
            columns = line.split("\t")
            if len(columns) < 2:
                self._fail(
                    f"{where}: found {line!r}; expected a file name and a class, "
                    "separated by tabs."
                )
            name, wnid = columns[:2]
            if name in lines:
                self._fail(f"{where}: {name} already has a class in {lines[name]}.")
            if wnid not in label_of:
                self._fail(
                    f"{where}: {name} has the class {wnid!r}, which is none of the "
                    f"{len(label_of):,} classes in {self._root}train."
                )
            if name not in self._val:
                self._fail(f"{where}: there is no {self._root}val/images/{name}.")
            labels[name], lines[name] = label_of[wnid], where
        for name in sorted(self._val):
            if name not in labels:
                self._fail(
                    f"{self._root}val/images/{name} has no line in "
                    f"{self._root}{_ANNOTATIONS}."
                )
        if not labels:
            self._fail(
                f"{self._root}{_ANNOTATIONS} is empty: there are no test images."
            )
        return labels

    def _fail(self, message: str) -> None:
        raise errors.InvalidInputError(f"{self._source}: {message}")


def _objects(contents: list[bytes]) -> np.ndarray:
    """An array of bytes objects, object[N]; NumPy's own bytes lose zeros at the end."""
    array = np.empty(len(contents), object)
    array[:] = contents
    return array


def _progress(contents: Iterator) -> Iterator:
    """Shows a bar on a terminal if going through the files takes over 2 seconds."""
    return tqdm.tqdm(
        contents, desc="Reading Tiny-ImageNet", unit=" files", delay=2, disable=None
    )


def _is_used(name: str) -> bool:
    return not name.startswith(archives.FOREIGN) and _USED.fullmatch(name) is not None


def _files(path: pathlib.Path, source: str) -> Iterator[tuple[str, bytes]]:
    """Yields the name and content of every file to use; b"" for a class folder."""
    if not path.exists():
        raise errors.InvalidInputError(f"{source} does not exist.")
    if not path.is_dir():
        if not archives.is_archive(path):
            raise errors.InvalidInputError(
                f"{source}: found the file {path.name}; expected {_LAYOUT}."
            )
        yield from archives.members(path, source, _is_used)
        return
    for root in (path, path / _ROOT):
        if (root / "train").is_dir():
            yield from _files_below(root, source)
            return
    entries = sorted(path.iterdir())
    found = [file for file in entries if archives.is_archive(file)]
    if len(found) == 1:
        yield from archives.members(found[0], source, _is_used)
        return
    if found:
        names = ", ".join(file.name for file in found[:3])
        what = f"{len(found)} archives ({names}{', ...' * (len(found) > 3)})"
    else:
        what = f"{len(entries)} other entries" if entries else "an empty folder"
    raise errors.InvalidInputError(f"{source}: found {what}; expected {_LAYOUT}.")


def _files_below(root: pathlib.Path, source: str) -> Iterator[tuple[str, bytes]]:
    try:
        for top in ("train", "val"):
            if (root / top).is_dir():
                below = [f"{top}/{name}" for name in archives.names_below(root / top)]
                for name in below:
                    # Not that of a class, but one with the name of an image.
                    if name.endswith("/") and _IMAGE.fullmatch(name[:-1]):
                        raise IsADirectoryError(
                            errno.EISDIR, os.strerror(errno.EISDIR), str(root / name)
                        )
                for name in filter(_is_used, below):
                    content = b"" if name.endswith("/") else files.read(root / name)
                    yield name, content
        if os.path.lexists(root / _CLASSES):
            yield _CLASSES, files.read(root / _CLASSES)
    except OSError as e:
        raise errors.InvalidInputError(
            f"{source}: {e.filename} cannot be read: {e.strerror or e}."
        ) from e
