"""Limits of unpacking, by which small files that would become large are refused.

A file of 10 MB can hold 10 GB of zeros. Unpacked data may have 256 MiB, or 100 times
their packed bytes if that is more: images, text and weights have less. Names in an
archive are never used as paths.
"""

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Iterator
from typing import IO

import numpy as np

from tff_fedss import files
from tff_fedss.errors import InvalidInputError

LARGEST = 1 << 28
_MOST_TIMES = 100
_COPY_BYTES = 1 << 20
# Members of a tar that say something of the next one, such as a long name.
_ABOUT_OTHERS = frozenset(
    {
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
    }
)
_LONGEST_HEADER = 1 << 20
_LONGEST_LIST = 1 << 25  # In memory it takes eight times as much.


class UnpackingError(ValueError):
    """The content of an archive is too large or not allowed."""


def check_size(size: int) -> None:
    """Raises an UnpackingError if a member that is read as a whole is too large."""
    if size > LARGEST:
        raise UnpackingError(f"{size:,} bytes unpacked, more than {LARGEST:,}")


def check_ratio(unpacked: int, packed: int) -> None:
    """Raises an UnpackingError if the unpacked bytes are too many for the packed."""
    if unpacked > LARGEST and unpacked > _MOST_TIMES * packed:
        raise UnpackingError(
            f"{unpacked:,} bytes or more are packed in {packed:,}; expected at most "
            f"{_MOST_TIMES} times as many"
        )


class Bounded:
    """An unpacked stream, read up to the limit of `check_ratio`."""

    def __init__(self, unpacked: IO[bytes], packed: IO[bytes]):
        """Reads from the current position.

        Args:
            unpacked: The stream that unpacks.
            packed: The file that it reads, whose position is the packed bytes so far.
        """
        self._unpacked, self._packed = unpacked, packed
        self._count = self._num_empty = 0

    def read(self, size: int) -> bytes:
        """Returns at most `size` bytes; none at the end.

        Raises:
            UnpackingError: If it is too large.
            EOFError: If it is read again and again at its end, as by tarfile for a
                member whose header claims far too many bytes.
        """
        block = self._unpacked.read(size)
        self._num_empty = 0 if block else self._num_empty + 1
        if self._num_empty > 2:
            raise EOFError("its archive ends too early")
        self._count += len(block)
        if self._count > LARGEST:
            check_ratio(self._count, self._packed.tell())
        return block


def gunzip(path: str | os.PathLike) -> bytes:
    """Returns the content of a gzipped file.

    Raises:
        UnpackingError: If it is too large.
        OSError, EOFError, zlib.error: If it is damaged or cannot be read.
    """
    with open(path, "rb") as packed, gzip.GzipFile(fileobj=packed) as unpacked:
        stream = Bounded(unpacked, packed)
        return b"".join(iter(lambda: stream.read(_COPY_BYTES), b""))


# --- Tars -------------------------------------------------------------------------


class TarHeader(tarfile.TarInfo):
    """Headers, for `tarfile.open(tarinfo=...)`, without those that take much memory."""

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> tarfile.TarInfo:
        """See the base class; it reads every header, before anything of its content."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in _ABOUT_OTHERS and header.size > _LONGEST_HEADER:
            raise UnpackingError(f"a header has {header.size:,} bytes")
        # A length below zero leads back to a member before, for ever.
        if header.size < 0 or header.type == tarfile.GNUTYPE_SPARSE:
            raise UnpackingError(f"{header.name} is damaged or sparse; expected a file")
        return header


def check_member(member: tarfile.TarInfo) -> None:
    """Raises an UnpackingError if a member of a tar is neither a file nor a folder."""
    if not (member.isfile() or member.isdir()):
        raise UnpackingError(f"{member.name} is a link; expected a file")
    # A PAX header may have any text, also as a number: "inf", "nan".
    is_sound = 0 <= member.size < 1 << 62 and abs(member.mtime) < 1 << 62
    if not is_sound or "\0" in member.name or member.issparse():
        raise UnpackingError(f"{member.name} is damaged or sparse; expected a file")


def tar_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yields the files and folders of a tar, and checks that it ends as it should.

    Raises:
        UnpackingError: If it has something else than these.
        tarfile.ReadError: If it is damaged.
    """
    for member in tar:
        tar.members = []  # It would keep them all.
        check_member(member)
        yield member
    # tarfile takes a damaged header, or a file cut off between two members, for the
    # end. A whole archive has blocks of zeros there.
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
        raise tarfile.ReadError(
            f"no member and no end of the archive at byte {tar.offset:,}"
        )


# --- Zips -------------------------------------------------------------------------


class Zip(zipfile.ZipFile):
    """A zip to read, unless the list of its members takes much memory.

    Many threads may use it: a ZipFile that has opened its file itself may close it
    while another thread reads.
    """

    def __init__(self, path: str | os.PathLike):
        """Reads the list of members.

        Raises:
            UnpackingError: If it is longer than 32 MiB, some 300,000 members.
            zipfile.BadZipFile, OSError, ...: If it is damaged or cannot be read.
        """
        file = _Bytes(io.FileIO(path))
        try:
            super().__init__(file)
        except BaseException:
            file.close()
            raise
        file.has_list = True

    def close(self) -> None:
        """Closes the file, too."""
        file = self.fp
        super().close()
        if file is not None:
            file.close()


class _Bytes(io.BufferedReader):
    """The bytes of a zip, whose list zipfile asks for in one piece."""

    has_list = False

    def read(self, size: int = -1) -> bytes:
        if size > _LONGEST_LIST and not self.has_list:
            raise UnpackingError(
                f"the list of its files has {size >> 20} MiB, more than "
                f"{_LONGEST_LIST >> 20}; unpack it into a folder, or pack it as a tar"
            )
        return super().read(size)


def check_zip(archive: zipfile.ZipFile, path: str | os.PathLike) -> None:
    """Raises an UnpackingError if a zip is not to be unpacked as a whole."""
    unpacked = sum(info.file_size for info in archive.infolist())
    check_ratio(unpacked, os.path.getsize(path))


def npz_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file; Python objects in it are refused.

    What NumPy raises for damaged files is not documented.
    """
    with Zip(path) as archive:
        check_zip(archive, path)
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def read_npz(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads an .npz file, see `npz_arrays`.

    Raises:
        InvalidInputError: If it is not there, damaged or too large.
    """
    try:
        return npz_arrays(path)
    except Exception as error:
        raise InvalidInputError(
            f"{os.fspath(path)} is damaged: {files.error_text(error)}."
        ) from error
