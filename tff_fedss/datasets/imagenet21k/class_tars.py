"""Class tars: the files in which ImageNet-21k is distributed.

A class tar, `n01440764.tar`, is named by the class's WordNet id (wnid) and holds its
images, `n01440764_10026.JPEG`. They come as a folder of class tars, as one tar of them
(`fall11_whole.tar`, 1.3 TB), or as that gzipped (`winter21_whole.tar.gz`, 1.1 TB). The
last can only be read from start to end, so listing its classes decompresses all of it.
"""

import contextlib
import dataclasses
import gzip
import os
import pathlib
import re
import tarfile
from collections.abc import Iterator, Set
from typing import IO, Any

from tff_fedss import files, progress, unpacking
from tff_fedss.datasets import sources
from tff_fedss.errors import InvalidInputError

_WNID = re.compile(r"n\d{8}")
_LAYOUT = (
    "a folder of <wnid>.tar (such as n01440764.tar), one tar of them "
    "(fall11_whole.tar) or that gzipped (winter21_whole.tar.gz)"
)
_GZIP_MAGIC = b"\x1f\x8b"
_COPY_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class ClassTar:
    """The tar of one class.

    Attributes:
        label: The tar's name in messages.
        start: Its offset in that file, in bytes.
        is_copy: Whether the file is a temporary copy, to be deleted after use.
    """

    wnid: str
    label: str
    path: pathlib.Path
    start: int = 0
    is_copy: bool = False

    def images(self) -> dict[str, tuple[int, int]]:
        """Returns the (offset, size) of images in the file, by name."""
        pattern = re.compile(rf"{self.wnid}_\d+\.JPEG")
        places = {}
        with sources.reading(self.label), _members(self.path, self.start) as members:
            for member in members:
                name = member.name.rpartition("/")[2]
                if not pattern.fullmatch(name):
                    expected = f"{self.wnid}_<number>.JPEG"
                    raise InvalidInputError(f"{self.label}: {name} is no {expected}.")
                unpacking.check_size(member.size)
                _put_once(places, name, (member.offset_data, member.size), self.label)
        return places


@dataclasses.dataclass(frozen=True)
class Archive:
    """All class tars of a release.

    Attributes:
        path: The folder or file.
        wnids: The classes, sorted. The label of a class is its position here.
        class_tars: The class tars of a folder or a plain tar, in the order of the
            classes; None: the archive is gzipped.
    """

    path: pathlib.Path
    wnids: list[str]
    class_tars: list[ClassTar] | None

    def read(self, copies: pathlib.Path, done: Set[str]) -> Iterator[ClassTar]:
        """Yields the class tars that are not done.

        Those of a gzipped archive are copied to the folder `copies` when they
        are requested.
        """
        if self.class_tars is not None:
            yield from (tar for tar in self.class_tars if tar.wnid not in done)
            return
        if done.issuperset(self.wnids):
            return
        seen = {}
        for wnid, content in _gzipped(self.path):
            _check_classes(self.path, {wnid} - set(self.wnids))
            _put_once(seen, f"{wnid}.tar", wnid, self.path)
            if wnid not in done:
                copy = copies / f"{wnid}.tar"
                with files.writing(copy), open(copy, "wb") as file:
                    for chunk in _chunks(content, str(self.path)):
                        file.write(chunk)
                yield ClassTar(wnid, f"{self.path}: {wnid}.tar", copy, is_copy=True)
        _check_classes(self.path, set(self.wnids) - {*seen.values()})


def _put_once(known: dict[str, Any], name: str, value: Any, label: object) -> None:
    """Adds a file of an archive to those that are known; a name may occur once."""
    if name in known:
        raise InvalidInputError(f"{label}: {name} is in it twice.")
    known[name] = value


def open_archive(path: os.PathLike, wnids: list[str] | None = None) -> Archive:
    """Lists a folder of class tars, a tar of them, or such a tar gzipped.

    With the classes (`read_wnids`), a gzipped tar need not be decompressed for
    their names.
    """
    path = pathlib.Path(path)
    class_tars = None
    if path.is_dir():
        class_tars = [
            ClassTar(_wnid(file.name, path), str(file), file)
            for file in sorted(path.glob("*.tar"))
        ]
    elif not _is_gzipped(path):
        class_tars = _tars_of_tar(path)
    if class_tars is not None:
        found = {tar.wnid for tar in class_tars}
    else:
        found = set(wnids or (wnid for wnid, _ in _gzipped(path, "Listing")))
    if not found:
        raise InvalidInputError(f"{path} has no class tar; expected {_LAYOUT}.")
    if wnids is not None:
        _check_classes(path, found ^ set(wnids))
    return Archive(path, sorted(found), class_tars)


def _check_classes(path: pathlib.Path, odd: set[str]) -> None:
    """Checks that archive and list have the same classes."""
    if odd:
        where = "the archive or in the list of classes only"
        raise InvalidInputError(f"{path}: {min(odd)} is in {where}.")


def read_wnids(path: os.PathLike) -> list[str]:
    """Reads a list of classes, one wnid a line."""
    wnids = set()
    for number, line in enumerate(files.read_lines(path), 1):
        wnid = line.strip()
        if wnid and not _WNID.fullmatch(wnid):
            raise InvalidInputError(f"wnids={path}:{number}: {wnid!r} is not a wnid.")
        wnids.add(wnid)
    return sorted(wnids - {""})


def _is_gzipped(path: pathlib.Path) -> bool:
    with sources.reading(f"archive={path}"), open(path, "rb") as file:
        return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC


def _tars_of_tar(path: pathlib.Path) -> list[ClassTar]:
    tars = {}
    with sources.reading(str(path)), _members(path, 0) as members:
        for member in members:
            wnid = _wnid(member.name, path)
            name = f"{wnid}.tar"
            tar = ClassTar(wnid, f"{path}: {name}", path, member.offset_data)
            _put_once(tars, name, tar, path)
    return [tars[name] for name in sorted(tars)]


def _gzipped(
    path: pathlib.Path, what: str = "Reading"
) -> Iterator[tuple[str, IO[bytes]]]:
    """Decompresses an archive; yields wnids and the files of their tars."""
    with (
        sources.reading(str(path)),
        open(path, "rb") as packed,
        gzip.GzipFile(fileobj=packed) as unpacked,
        tarfile.open(
            fileobj=unpacking.Bounded(unpacked, packed),
            mode="r|",
            tarinfo=unpacking.TarHeader,
        ) as tar,
        progress.bar(f"{what} {path.name}", path.stat().st_size, "B") as bar,
    ):
        for member in tar:
            tar.members = []
            unpacking.check_member(member)
            if not member.isdir():
                yield _wnid(member.name, path), tar.extractfile(member)
            bar.update(packed.tell() - bar.n)
        while unpacked.read(_COPY_BYTES):  # Reading to the end compares a checksum.
            pass


def _chunks(content: IO[bytes], label: str) -> Iterator[bytes]:
    with sources.reading(label):
        while chunk := content.read(_COPY_BYTES):
            yield chunk


def _wnid(name: str, path: pathlib.Path) -> str:
    """Returns the class of a class tar, from its name in an archive."""
    wnid, _, suffix = name.rpartition("/")[2].partition(".")
    if suffix != "tar" or not _WNID.fullmatch(wnid):
        raise InvalidInputError(f"{path}: found {name}; expected {_LAYOUT}.")
    return wnid


@contextlib.contextmanager
def _members(path: pathlib.Path, start: int) -> Iterator[Iterator[tarfile.TarInfo]]:
    """Opens a tar at an offset in a file; yields its files."""
    with open(path, "rb") as file:
        file.seek(start)
        with tarfile.open(fileobj=file, mode="r:", tarinfo=unpacking.TarHeader) as tar:
            yield (m for m in unpacking.tar_members(tar) if not m.isdir())
