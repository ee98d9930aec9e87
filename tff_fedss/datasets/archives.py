"""The files in a zip or a tar, every one of them or an error."""

import contextlib
import errno
import lzma
import pathlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator

from tff_fedss import errors, files

_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")
SUFFIXES = (".zip", *_TAR_SUFFIXES)
FOREIGN = "__MACOSX/"  # What macOS puts beside the files.

# What reading a damaged archive raises.
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,  # includes gzip.BadGzipFile
    NotImplementedError,  # a compression that zipfile does not know
    RuntimeError,  # a zip with a password
)


def is_archive(path: pathlib.Path) -> bool:
    """Whether the name of a file is that of an archive."""
    return path.name.endswith(SUFFIXES)


def members(
    path: pathlib.Path, source: str, is_wanted: Callable[[str], bool]
) -> Iterator[tuple[str, bytes]]:
    """Yields the files of an archive, in its order, each when it is reached.

    Args:
        path: The archive; its kind follows from its name, see `is_archive`.
        source: What a message is to begin with, such as the flag that named the path.
        is_wanted: Whether a file is to be read, by its path in the archive. A folder is
            asked for too, by its path with a slash at the end.

    Yields:
        The path in the archive and the content; b"" for a folder.

    Raises:
        errors.InvalidInputError: If the archive is damaged or ends too early, or if
            what is wanted in a tar is neither a file nor a folder (a link).
    """
    read = _zip_members if path.name.endswith(".zip") else _tar_members
    try:
        files.check_regular(path)
        yield from read(path, source, is_wanted)
    except DAMAGED as e:
        reason = files.error_text(e)
        raise errors.InvalidInputError(
            f"{source}: the archive {path.name} is unreadable or damaged: {reason}"
        ) from e


def names_below(root: pathlib.Path) -> Iterator[str]:
    """Yields the paths of all files below a folder, as `members` has them, sorted.

    A folder comes before what is in it, with a slash at its end.

    Raises:
        OSError: If a folder cannot be read, or has a link that leads nowhere or to a
            folder that it is in.
    """

    def names(folder: pathlib.Path, above: frozenset) -> Iterator[str]:
        status = folder.stat()
        here = (status.st_dev, status.st_ino)
        if here in above:
            raise OSError(
                errno.ELOOP, "it is a link to a folder that it is in", str(folder)
            )
        for entry in sorted(folder.iterdir()):
            name = entry.relative_to(root).as_posix()
            if entry.is_dir():
                yield f"{name}/"
                yield from names(entry, above | {here})
            else:
                entry.stat()  # Fails for a link that leads nowhere.
                yield name

    return names(root, frozenset())


def _zip_members(path, source, is_wanted):
    del source
    with zipfile.ZipFile(path) as zipped:
        for member in zipped.infolist():
            if is_wanted(member.filename):
                yield member.filename, zipped.read(member)
                continue
            # A damaged name in the list at the end may be why nobody wants it: to open
            # a member compares it with the name beside the content.
            with (
                contextlib.suppress(NotImplementedError, RuntimeError),
                zipped.open(member),
            ):
                pass


def _tar_members(path, source, is_wanted):
    # Members in the order of the archive: going back in a compressed file would unpack
    # it from the start again.
    with tarfile.open(path, "r:*") as tar:
        for member in tar:
            name = member.name + "/" * member.isdir()
            if not is_wanted(name):
                continue
            if not (member.isfile() or member.isdir()):
                raise errors.InvalidInputError(
                    f"{source}: {name} in {path.name} is a link; expected a file."
                )
            yield name, tar.extractfile(member).read() if member.isfile() else b""
        check_end(tar)


def check_end(tar: tarfile.TarFile) -> None:
    """Checks what tarfile does not: that it stopped where the archive ends."""
    # tarfile takes a damaged header, or a file cut off between two members, for the
    # end. A whole archive has blocks of zeros there.
    tar.fileobj.seek(tar.offset)
    block = tar.fileobj.read(tarfile.BLOCKSIZE)
    if block != tarfile.NUL * tarfile.BLOCKSIZE:
        raise tarfile.ReadError(
            f"no member and no end of the archive at byte {tar.offset:,}"
        )
    while tar.fileobj.read(1 << 20):  # A checksum at the end is compared when reached.
        pass
