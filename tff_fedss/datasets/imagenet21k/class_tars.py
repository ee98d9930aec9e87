"""Class tars: ImageNet-21k's files as they are distributed.

A class tar, `n01440764.tar`, is named by the class's WordNet id (wnid) and holds its
images, `n01440764_10026.JPEG`. They come as a folder of class tars, as one tar of them
(`fall11_whole.tar`, 1.3 TB), or as that gzipped (`winter21_whole.tar.gz`, 1.1 TB). The
last can only be read from start to end: to know the classes means to decompress it all.
"""

import contextlib
import dataclasses
import gzip
import os
import pathlib
import re
import tarfile
from collections.abc import Iterator, Set
from typing import IO

from tff_fedss import files, progress
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
        wnid: The class.
        label: What messages call the tar.
        path: The file that has it.
        start: Where it starts in that file, in bytes.
        is_copy: Whether the file is a temporary copy, to be deleted after use.
    """

    wnid: str
    label: str
    path: pathlib.Path
    start: int = 0
    is_copy: bool = False

    def images(self) -> dict[str, tuple[int, int]]:
        """Returns where images lie in the file, (offset, size) by name.

        Raises:
            InvalidInputError: If the tar is damaged or holds something else.
        """
        pattern = re.compile(rf"{self.wnid}_\d+\.JPEG")
        places = {}
        with (
            _readable(self.label),
            open(self.path, "rb") as file,
            _tar_at(file, self.start) as tar,
        ):
            for member in _members(tar):
                name = member.name.rpartition("/")[2]
                if not member.isreg() or not pattern.fullmatch(name):
                    raise InvalidInputError(
                        f"{self.label}: the member {member.name} is not an image of "
                        f"this class: expected a file {self.wnid}_<number>.JPEG."
                    )
                places[name] = member.offset_data, member.size
        return places


@dataclasses.dataclass(frozen=True)
class Archive:
    """All class tars of a release.

    Attributes:
        path: The folder or file.
        wnids: The classes, sorted. The label of a class is its position here.
        class_tars: Those of a folder or a plain tar, in the order of the classes; None:
            the archive is gzipped.
    """

    path: pathlib.Path
    wnids: list[str]
    class_tars: list[ClassTar] | None

    def read(self, copies: pathlib.Path, done: Set[str]) -> Iterator[ClassTar]:
        """Yields the class tars.

        Args:
            copies: A folder for temporary copies of those of a gzipped archive. A copy
                is made when the next class tar is asked for.
            done: The classes that are not needed.

        Raises:
            InvalidInputError: If a gzipped archive is damaged, or has other classes.
        """
        if self.class_tars is not None:
            yield from (tar for tar in self.class_tars if tar.wnid not in done)
            return
        missing = set(self.wnids)
        for wnid, content in _gzipped(self.path):
            if wnid not in missing:
                raise InvalidInputError(
                    f"{self.path}: {wnid}.tar is there, but {wnid} is not in the list "
                    "of classes."
                )
            missing.remove(wnid)
            if wnid not in done:
                copy = copies / f"{wnid}.tar"
                with files.writing(copy), open(copy, "wb") as file:
                    for chunk in _chunks(content, str(self.path)):
                        file.write(chunk)
                yield ClassTar(wnid, f"{self.path}: {wnid}.tar", copy, is_copy=True)
        if missing:
            raise InvalidInputError(
                f"{self.path}: {min(missing)}.tar is missing, one of {len(missing):,} "
                "classes of the list that the archive does not have."
            )


def open_archive(path: os.PathLike, wnids: list[str] | None = None) -> Archive:
    """Finds out what an archive holds.

    Args:
        path: A folder of class tars, a tar of them, or such a tar gzipped.
        wnids: The classes, if they are known, which saves to decompress a gzipped tar
            for their names; see `read_wnids`.

    Raises:
        InvalidInputError: If it is none of these, is damaged, or has other classes than
            these.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise InvalidInputError(f"archive={path} does not exist; expected {_LAYOUT}.")
    class_tars = None
    if path.is_dir():
        class_tars = [
            ClassTar(_wnid(p.name, f"archive={path}: {p.name}"), str(p), p)
            for p in sorted(path.glob("*.tar"))
        ]
    elif not _is_gzipped(path):
        class_tars = _tars_of_tar(path)
    if class_tars is None:
        found = sorted(wnids or [wnid for wnid, _ in _gzipped(path, "Listing")])
    else:
        found = sorted(tar.wnid for tar in class_tars)
    if not found:
        raise InvalidInputError(f"{path} has no class tar; expected {_LAYOUT}.")
    if wnids is not None and sorted(wnids) != found:
        odd = sorted({*wnids} ^ {*found})
        raise InvalidInputError(
            f"`wnids` has {len(wnids):,} classes and {path} has {len(found):,}; "
            f"{odd[0]} is in one of them only."
        )
    return Archive(path, found, class_tars)


def read_wnids(path: os.PathLike) -> list[str]:
    """Reads a list of classes, one wnid a line.

    Raises:
        InvalidInputError: If it is not such a file.
    """
    wnids = set()
    for number, line in enumerate(files.read_lines(path), 1):
        wnid = line.strip()
        if wnid and (not _WNID.fullmatch(wnid) or wnid in wnids):
            problem = "is there twice" if wnid in wnids else "is not a wnid"
            raise InvalidInputError(
                f"wnids={path}:{number}: {wnid!r} {problem}; expected an n and 8 "
                "digits, each class once."
            )
        wnids.add(wnid)
    return sorted(wnids - {""})


def _is_gzipped(path: pathlib.Path) -> bool:
    with _readable(str(path)), open(path, "rb") as file:
        return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC


def _tars_of_tar(path: pathlib.Path) -> list[ClassTar]:
    tars = {}
    with _readable(str(path)), open(path, "rb") as file, _tar_at(file, 0) as tar:
        for member in _members(tar):
            wnid = _wnid_of(member, path)
            label = f"{path}: {wnid}.tar"
            tars[wnid] = ClassTar(wnid, label, path, member.offset_data)
    return [tars[wnid] for wnid in sorted(tars)]


def _gzipped(
    path: pathlib.Path, what: str = "Reading"
) -> Iterator[tuple[str, IO[bytes]]]:
    """Decompresses an archive; yields wnids and the files of their tars."""
    with (
        _readable(str(path)),
        open(path, "rb") as packed,
        gzip.GzipFile(fileobj=packed) as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|") as tar,
        progress.bar(f"{what} {path.name}", path.stat().st_size, "B") as bar,
    ):
        for member in tar:
            tar.members = []
            if member.isdir():
                continue
            yield _wnid_of(member, path), tar.extractfile(member)
            bar.update(packed.tell() - bar.n)
        while unpacked.read(_COPY_BYTES):  # A checksum is compared at the end.
            pass


def _chunks(content: IO[bytes], label: str) -> Iterator[bytes]:
    with _readable(label):
        while chunk := content.read(_COPY_BYTES):
            yield chunk


def _wnid_of(member: tarfile.TarInfo, path: pathlib.Path) -> str:
    name = member.name.rpartition("/")[2] if member.isreg() else ""
    return _wnid(name, f"{path}: the member {member.name}")


def _wnid(file_name: str, what: str) -> str:
    wnid = file_name.removesuffix(".tar")
    if wnid == file_name or not _WNID.fullmatch(wnid):
        raise InvalidInputError(f"{what} is not a class tar; expected {_LAYOUT}.")
    return wnid


def _tar_at(file, start: int) -> tarfile.TarFile:
    file.seek(start)
    return tarfile.open(fileobj=file, mode="r:")


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yields what a tar holds but for folders, and checks that it ends as it should."""
    for member in tar:
        if not member.isdir():
            yield member
    # tarfile takes a damaged header, or a file cut off between two members, for the
    # end. A whole archive has a block of zeros there.
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"no member and no end at byte {tar.offset:,}")


@contextlib.contextmanager
def _readable(label: str) -> Iterator[None]:
    """Names the file if it turns out to be damaged."""
    try:
        yield
    except sources.DAMAGED as e:
        raise InvalidInputError(
            f"{label} is unreadable or damaged: {files.error_text(e)}."
        ) from e
