"""Where images lie: a folder, a zip or a tar, each read at any place.

A source lists its files once and gives the bytes of any of them afterwards, from many
threads at once, without unpacking. Only a compressed tar has to be unpacked, which is
done once, into the cache.
"""

import abc
import bz2
import contextlib
import errno
import gzip
import hashlib
import lzma
import os
import pathlib
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np
import tqdm

from tff_fedss import files
from tff_fedss.datasets import archives
from tff_fedss.datasets.federated import record_index
from tff_fedss.errors import InvalidInputError

_COPY_BYTES = 1 << 22
_FOREIGN = archives.FOREIGN.rstrip("/")  # As a part of a path.
# Of a zip: a local header, of which the lengths of name and extra field matter.
_LOCAL_HEADER = struct.Struct("<26xHH")
_DEFLATED = 8
_STORED = 0
_ENCRYPTED = 0x1


def default_cache_dir() -> pathlib.Path:
    """Where unpacked archives and indices go: $TFF_FEDSS_CACHE, or ~/.cache."""
    if named := os.environ.get("TFF_FEDSS_CACHE"):
        return pathlib.Path(named)
    return record_index.user_cache()


class Source(abc.ABC):
    """The files of a folder or an archive.

    Attributes:
        path: Of the folder or archive.
        names: Paths below it, with slashes, ascending; no hidden ones.
        folders: Likewise, of the folders in it, as far as it has them.
        sizes: Of the files in bytes, int64[files].
        stamps: By which a file is known to have changed, int64[files]: its time of
            change, or a checksum that the archive keeps.
    """

    path: pathlib.Path
    names: list[str]
    folders: list[str]
    sizes: np.ndarray
    stamps: np.ndarray

    @abc.abstractmethod
    def read(self, number: int) -> bytes:
        """Returns the content of a file.

        Args:
            number: Its position in `names`.

        Raises:
            OSError: If it cannot be read.
            ValueError: If the archive is damaged there; the message follows the name.
        """

    def damage(self) -> str | None:
        """Says what is wrong with the names, where it can be known; None: nothing.

        A name that is damaged may make a file one that nobody reads.
        """
        return None


def open_source(
    data_dir: str | os.PathLike, cache_dir: str | os.PathLike | None = None
) -> Source:
    """Lists a folder, an archive, or a folder with nothing but one archive.

    Args:
        data_dir: The folder or archive.
        cache_dir: Where a compressed tar is unpacked; by default
            `default_cache_dir()`.

    Raises:
        InvalidInputError: If there is none, or it cannot be read, or it is damaged.
    """
    path = pathlib.Path(data_dir)
    source = f"data_dir={os.fspath(data_dir)}"
    try:
        if not path.exists():
            raise InvalidInputError(f"{source} does not exist.")
        if path.is_dir():
            archive = _only_archive(path)
            if archive is None:
                return _Folder(path)
            path = archive
        elif not archives.is_archive(path):
            raise InvalidInputError(
                f"{source} is a file; expected a folder, an archive "
                f"({', '.join(archives.SUFFIXES)}) or an images.csv."
            )
        files.check_regular(path)
        if path.name.endswith(".zip"):
            return _Zip(path)
        return _Tar(path, pathlib.Path(cache_dir or default_cache_dir()))
    except archives.DAMAGED as error:
        if path.is_dir() or isinstance(error, OSError) and error.errno:
            named = getattr(error, "filename", None) or path
            raise InvalidInputError(
                f"{source}: {named} cannot be read: {error.strerror or error}."
            ) from error
        raise InvalidInputError(
            f"{source}: the archive {path.name} is unreadable or damaged: "
            f"{files.error_text(error)}."
        ) from error


def _only_archive(folder: pathlib.Path) -> pathlib.Path | None:
    """The one archive of a folder that has no other folder and no table beside it."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir() or entry.name.lower().endswith(".csv"):
                return None
            if archives.is_archive(path := pathlib.Path(entry.path)):
                found.append(path)
    return found[0] if len(found) == 1 else None


def _is_used(name: str) -> bool:
    """Whether a path is neither hidden nor another system's own."""
    return not any(part.startswith(".") or part == _FOREIGN for part in name.split("/"))


class _Folder(Source):
    def __init__(self, path: pathlib.Path):
        self.path = path
        self.folders = []
        found = list(_walk(str(path), "", frozenset(), self.folders))
        self.folders.sort()
        # By the whole name, as archives are sorted.
        found.sort()
        self.names = [name for name, _, _ in found]
        self.sizes = np.array([size for _, size, _ in found], np.int64)
        self.stamps = np.array([stamp for _, _, stamp in found], np.int64)

    def read(self, number: int) -> bytes:
        with open(self.path / self.names[number], "rb") as file:
            return file.read()


def _walk(
    folder: str, prefix: str, above: frozenset, folders: list[str]
) -> Iterator[tuple[str, int, int]]:
    """Yields name, size and time of change of all files below; appends folders."""
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise OSError(errno.ELOOP, "it is a link to a folder that it is in", folder)
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _is_used(entry.name):
                continue
            name = prefix + entry.name
            if entry.is_dir():
                folders.append(name)
                yield from _walk(entry.path, f"{name}/", above | {here}, folders)
                continue
            # Fails for a link that leads nowhere.
            status = os.stat(entry.path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file", entry.path)
            yield name, status.st_size, status.st_mtime_ns


class _Archive(Source):
    """Files at places of one file, which is read without moving a common position."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)  # Until the process ends.

    def _take(
        self, members: list[tuple], folders: list[str], columns: int
    ) -> list[np.ndarray]:
        """Sets names, sizes and stamps; returns the further columns of members."""
        self.folders = sorted(folder.rstrip("/") for folder in folders)
        members.sort()
        self.names = [member[0] for member in members]
        for name, following in zip(self.names, self.names[1:], strict=False):
            if name == following:
                raise InvalidInputError(f"{self.path}: {name} is in it twice.")
        self.sizes, self.stamps, *rest = (
            np.array([member[k] for member in members], np.int64)
            for k in range(1, columns + 1)
        )
        return rest

    def _pread(self, start: int, length: int) -> bytes:
        content = os.pread(self._descriptor, length, start)
        if len(content) != length:
            raise ValueError("is cut off: its archive has changed or ends too early")
        return content


class _Zip(_Archive):
    def __init__(self, path: pathlib.Path):
        super().__init__(path)
        members, folders = [], []
        with zipfile.ZipFile(path) as zipped:
            for info in zipped.infolist():
                if not _is_used(info.filename):
                    continue
                if info.is_dir():
                    folders.append(info.filename)
                    continue
                if info.flag_bits & _ENCRYPTED:
                    raise InvalidInputError(
                        f"{path}: {info.filename} is encrypted; unpack the archive "
                        "with its password first."
                    )
                if info.compress_type not in (_STORED, _DEFLATED):
                    raise InvalidInputError(
                        f"{path}: {info.filename} is compressed by the method "
                        f"{info.compress_type}; expected stored or deflated."
                    )
                members.append(
                    (
                        info.filename,
                        info.file_size,
                        info.CRC,
                        info.header_offset,
                        info.compress_size,
                        info.compress_type,
                    )
                )
        self._headers, self._packed, self._methods = self._take(members, folders, 5)

    def read(self, number: int) -> bytes:
        header = int(self._headers[number])
        name, extra = _LOCAL_HEADER.unpack(self._pread(header, _LOCAL_HEADER.size))
        start = header + _LOCAL_HEADER.size + name + extra
        content = self._pread(start, int(self._packed[number]))
        if self._methods[number] == _DEFLATED:
            try:
                content = zlib.decompress(content, -zlib.MAX_WBITS)
            except zlib.error as error:
                raise ValueError(f"is damaged in its archive ({error})") from error
        if zlib.crc32(content) != self.stamps[number]:
            raise ValueError("is damaged in its archive: its checksum differs")
        return content

    def damage(self) -> str | None:
        try:
            with zipfile.ZipFile(self.path) as zipped:
                for info in zipped.infolist():
                    # Hidden files may have other compressions, or a password.
                    with (
                        contextlib.suppress(NotImplementedError, RuntimeError),
                        zipped.open(info),
                    ):
                        pass  # To open it compares the names at its two places.
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            reason = files.error_text(error)
            return f"the archive {self.path.name} is unreadable or damaged: {reason}"
        return None


class _Tar(_Archive):
    def __init__(self, path: pathlib.Path, cache_dir: pathlib.Path):
        super().__init__(
            path if path.name.endswith(".tar") else _unpacked(path, cache_dir)
        )
        self.path, plain = path, self.path
        members, folders = [], []
        with tarfile.open(plain, "r:") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if member.isdir():
                    if _is_used(name):
                        folders.append(name)
                elif _is_used(name):
                    if not member.isfile() or member.issparse():
                        raise InvalidInputError(
                            f"{path}: {name} is a link or no plain file; expected a "
                            "file."
                        )
                    members.append(
                        (name, member.size, int(member.mtime), member.offset_data)
                    )
                tar.members = []  # It would keep them all.
            archives.check_end(tar)
        (self._starts,) = self._take(members, folders, 3)

    def read(self, number: int) -> bytes:
        return self._pread(int(self._starts[number]), int(self.sizes[number]))


def _unpacked(path: pathlib.Path, cache_dir: pathlib.Path) -> pathlib.Path:
    """The tar in a compressed tar, unpacked into the cache the first time."""
    status = path.stat()
    key = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    digest = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:16]
    target = cache_dir / f"{digest}.tar"
    if target.exists():
        return target
    files.make_folder(cache_dir, "the cache")
    with (
        files.replacing(target, unique=True) as temporary,
        open(path, "rb") as packed,
        tqdm.tqdm.wrapattr(
            packed,
            "read",
            total=status.st_size,
            desc=f"Unpacking {path.name}",
            delay=2,
            disable=None,
        ) as counted,
        _decompressing(path.name, counted) as tar,
        open(temporary, "wb") as result,
    ):
        while block := _read_packed(tar, path):
            result.write(block)
    return target


def _read_packed(tar, path: pathlib.Path) -> bytes:
    try:
        return tar.read(_COPY_BYTES)
    except archives.DAMAGED as error:
        raise InvalidInputError(
            f"the archive {path} is unreadable or damaged: {files.error_text(error)}."
        ) from error


def _decompressing(name: str, packed):
    if name.endswith((".gz", ".tgz")):
        return gzip.GzipFile(fileobj=packed, mode="rb")
    if name.endswith((".xz", ".txz")):
        return lzma.LZMAFile(packed)
    return bz2.BZ2File(packed)
