"""Sources: files in a folder, a zip or a tar, with random access.

A source lists its files once and then reads any of them, from many threads at once,
without unpacking. Only a compressed tar is unpacked, once, into the cache. The cache
also keeps results about files, until one of them changes.
"""

import abc
import array
import bz2
import contextlib
import gzip
import hashlib
import lzma
import os
import pathlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tff_fedss import files, progress, unpacking
from tff_fedss.datasets import formats
from tff_fedss.errors import InvalidInputError, RunStoppedError

SUFFIXES = (
    ".zip",
    ".tar",
    ".tar.gz",
    ".tgz",
    ".tar.xz",
    ".txz",
    ".tar.bz2",
    ".tbz2",
)
_FOREIGN = "__MACOSX"  # Added by macOS.
_COPY_BYTES = 1 << 22

# Errors from reading a damaged archive.
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,  # includes gzip.BadGzipFile
    NotImplementedError,  # a compression that zipfile does not know
    RuntimeError,  # a zip with a password
    UnicodeDecodeError,  # a name that is said to be UTF-8
    unpacking.UnpackingError,
)


@contextlib.contextmanager
def reading(label: str) -> Iterator[None]:
    """Raises an error with the archive's or file's name if it is damaged."""
    try:
        yield
    except RunStoppedError:
        raise
    except DAMAGED as error:
        file = getattr(error, "filename", None)
        which = f" ({file})" if file and str(file) not in label else ""
        raise InvalidInputError(
            f"{label} is unreadable or damaged: {files.error_text(error)}{which}."
        ) from error


def is_archive(path: pathlib.Path) -> bool:
    """Returns whether a file's name is an archive's."""
    return path.name.lower().endswith(SUFFIXES)


class Source(abc.ABC):
    """The files of a folder or an archive.

    Attributes:
        label: The start of messages: the argument that named the data.
        path: The folder or archive.
        names: Paths below it, with slashes, ascending; no hidden ones.
        folders: Paths of the listed folders in it, ascending.
        sizes: Sizes of the files in bytes, int64[files].
        stamps: int64[files], which change with a file: its modification time, or its
            checksum in the archive.
        part: What of a file is read, if it has several images.
    """

    label: str
    path: pathlib.Path
    names: Sequence[str]
    folders: Sequence[str]
    sizes: np.ndarray
    stamps: np.ndarray
    part: str = ""

    @abc.abstractmethod
    def read(self, number: int) -> bytes:
        """Returns the content of a file.

        Args:
            number: Its position in `names`.

        Raises:
            One of `DAMAGED`: If it cannot be read.
        """

    def check_names(self) -> None:
        """Checks names that an archive stores twice: a damaged one hides a file."""
        return

    def read_all(
        self, is_wanted: Callable[[str], object]
    ) -> Iterator[tuple[str, bytes]]:
        """Yields name and content of the selected files."""
        for number, name in enumerate(self.names):
            if is_wanted(name):
                with reading(f"{self.label}: {name}"):
                    content = self.read(number)
                yield name, content

    def read_only(self, name: str, expected: str = "one") -> tuple[str, bytes]:
        """Returns path and content of the only file with a name, in any folder.

        Args:
            name: The file's name, or the end of its path, such as "val/classes.txt".
            expected: The expected file, for messages.
        """
        found = dict(self.read_all(lambda path: f"/{path}".endswith(f"/{name}")))
        if len(found) != 1:
            raise InvalidInputError(
                f"{self.label}: found {len(found)} files {name}; expected {expected}."
            )
        return found.popitem()


def open_source(data_dir: str | os.PathLike | None, label: str | None = None) -> Source:
    """Lists a folder, an archive, or a folder with one archive only.

    Args:
        data_dir: The folder or archive; None is refused with a message.
        label: The start of messages; by default data_dir, as an argument.
    """
    if not data_dir:
        raise InvalidInputError("`data_dir` must name a folder or an archive of data.")
    path = pathlib.Path(data_dir)
    label = label or f"data_dir={os.fspath(data_dir)}"
    if not (path.is_dir() or (path.is_file() and is_archive(path))):
        found = "is a file" if path.exists() else "does not exist"
        raise InvalidInputError(
            f"{label} {found}; expected a folder or an archive ({', '.join(SUFFIXES)})."
        )
    if path.is_dir():
        path = _only_archive(path) or path
    with reading(label if path.is_dir() else f"{label}: {path.name}"):
        if path.is_dir():
            source = Folder(path)
        elif path.suffix.lower() == ".zip":
            source = Zip(path)
        else:
            source = Tar(path)
    source.label = label
    for name, following in zip(source.names, source.names[1:], strict=False):
        if name == following:
            raise InvalidInputError(f"{label}: it has {name} twice.")
    return source


def _only_archive(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the only archive of a folder without folders, tables and images."""
    entries = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if any(
        path.is_dir()
        or path.suffix.lower() == ".csv"
        or formats.is_image_name(path.name)
        for path in entries
    ):
        return None
    archives = list(filter(is_archive, entries))
    return archives[0] if len(archives) == 1 else None


def _is_used(name: str) -> bool:
    """Returns whether a path is neither hidden nor an operating system's."""
    return not any(part.startswith(".") or part == _FOREIGN for part in name.split("/"))


class Folder(Source):
    """Files below a folder."""

    def __init__(self, path: pathlib.Path):
        self.path, self.folders = path, []
        found = sorted(_walk(str(path), "", self.folders))
        self.folders.sort()
        self.names = [name for name, _, _ in found]
        self.sizes = np.array([size for _, size, _ in found], np.int64)
        self.stamps = np.array([stamp for _, _, stamp in found], np.int64)

    def read(self, number: int) -> bytes:
        """See the base class."""
        return (self.path / self.names[number]).read_bytes()


def _walk(
    folder: str, prefix: str, folders: list[str]
) -> Iterator[tuple[str, int, int]]:
    """Yields name, size and time of change of all files below; appends folders."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if not _is_used(entry.name):
                continue
            if entry.is_dir():
                folders.append(name)
                yield from _walk(entry.path, f"{name}/", folders)
            else:
                status = os.stat(entry.path)  # Fails for a broken link.
                yield name, status.st_size, status.st_mtime_ns


class Zip(Source):
    """Files in a zip."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._zip = unpacking.Zip(path)
        found = [(i.filename.removeprefix("./"), i) for i in self._zip.infolist()]
        found = [(name, info) for name, info in found if name and _is_used(name)]
        found.sort(key=lambda pair: pair[0])
        self.names = [name for name, info in found if not info.is_dir()]
        self._infos = [info for _, info in found if not info.is_dir()]
        self.folders = sorted(name.rstrip("/") for name, i in found if i.is_dir())
        self.sizes = np.array([info.file_size for info in self._infos], np.int64)
        self.stamps = np.array([info.CRC for info in self._infos], np.int64)

    def read(self, number: int) -> bytes:
        """See the base class."""
        info = self._infos[number]
        unpacking.check_size(info.file_size)
        return self._zip.read(info)  # It compares a checksum, and reads no more bytes.

    def check_names(self) -> None:
        """See the base class."""
        with reading(f"{self.label}: the archive {self.path.name}"):
            for info in self._zip.infolist():
                # Hidden files may have unsupported compressions, or a password.
                with (
                    contextlib.suppress(NotImplementedError, RuntimeError),
                    self._zip.open(info),
                ):
                    pass  # Opening compares the two stored names.


class Tar(Source):
    """Files in a tar; the cache keeps its list, and its content if it is compressed."""

    def __init__(self, path: pathlib.Path):
        """Lists the files.

        Raises:
            One of `DAMAGED`: If it is no complete tar.
        """
        self.path = path
        is_plain = path.suffix.lower() == ".tar"
        self._plain = path if is_plain else _unpacked(path)
        found = kept(
            "tar",
            [os.path.abspath(self._plain)],
            file_states([self._plain]),
            lambda: _tar_members(self._plain),
        )
        self.names, self.folders = _lines(found["names"]), _lines(found["folders"])
        self.sizes, self.stamps, self.starts = found["places"]

    def read(self, number: int) -> bytes:
        """See the base class."""
        return read_part(self._plain, self.starts[number], self.sizes[number])


def read_part(path: str | os.PathLike, start: int, size: int) -> bytes:
    """Returns a part of a file, such as a member of a tar.

    Raises:
        One of `DAMAGED`: If it is too large, is not there whole, or cannot be read.
    """
    unpacking.check_size(size)
    with open(path, "rb") as file:
        file.seek(start)
        content = file.read(size)
    if len(content) != size:
        raise EOFError("its archive ends too early")
    return content


def _tar_members(path: pathlib.Path) -> dict[str, np.ndarray]:
    names, folders = [], []
    places = array.array("q")  # A tuple for each of a million members takes 0.2 GB.
    with tarfile.open(path, "r:", tarinfo=unpacking.TarHeader) as tar:
        for member in unpacking.tar_members(tar):
            name = member.name.removeprefix("./")
            if member.isdir():
                folders.append(name)
            elif _is_used(name):
                names.append(name)
                places.extend((member.size, int(member.mtime), member.offset_data))
    order = np.argsort(np.array(names, object), kind="stable")
    return {
        "names": _joined([names[k] for k in order]),
        "folders": _joined(sorted(filter(_is_used, folders))),
        "places": np.asarray(places).reshape(-1, 3)[order].T,
    }


def _joined(names: Sequence[str]) -> np.ndarray:
    text = "\0".join([*names, ""])
    return np.frombuffer(text.encode(errors="surrogateescape"), np.uint8)


def _lines(joined: np.ndarray) -> list[str]:
    return joined.tobytes().decode(errors="surrogateescape").split("\0")[:-1]


def _unpacked(path: pathlib.Path) -> pathlib.Path:
    """Returns the tar in a compressed tar, unpacked into the cache the first time."""
    folder = cache_folder()
    target = folder / f"{digest([str(path.resolve())], file_states([path]))}.tar"
    if target.exists():
        return target
    files.make_folder(folder, "the cache")
    with (
        files.replacing(target, unique=True) as temporary,
        open(path, "rb") as packed,
        progress.bar(f"Unpacking {path.name}", path.stat().st_size, "B") as bar,
        _decompressing(path.name.lower(), packed) as unpacked,
        open(temporary, "wb") as result,
    ):
        tar = unpacking.Bounded(unpacked, packed)
        while block := _unpacked_block(tar):
            result.write(block)
            bar.update(packed.tell() - bar.n)
    return target


def _unpacked_block(tar: unpacking.Bounded) -> bytes:
    try:
        return tar.read(_COPY_BYTES)
    except DAMAGED as error:
        # Not an OSError, which `files.replacing` would report as a failure to write.
        raise tarfile.ReadError(files.error_text(error)) from error


def _decompressing(name: str, packed):
    if name.endswith((".gz", ".tgz")):
        return gzip.GzipFile(fileobj=packed, mode="rb")
    if name.endswith((".xz", ".txz")):
        return lzma.LZMAFile(packed)
    return bz2.BZ2File(packed)


# The cache.


def cache_folder() -> pathlib.Path:
    """Returns the cache's folder: $TFF_FEDSS_CACHE, or tff_fedss in ~/.cache."""
    if named := os.environ.get("TFF_FEDSS_CACHE"):
        return pathlib.Path(named)
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root) / "tff_fedss"


def file_states(paths: Sequence[str | os.PathLike]) -> np.ndarray:
    """Returns sizes and times of change of files, int64[N, 2].

    Raises:
        OSError: If there is no such file.
    """
    states = map(os.stat, paths)
    states = [(status.st_size, status.st_mtime_ns) for status in states]
    return np.array(states, np.int64)


def kept(
    kind: str,
    names: Sequence[str],
    states: np.ndarray,
    make: Callable[[], dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Returns arrays made from files, which the cache keeps until a file changes.

    If the cache is not writable, they are made each time.

    Args:
        states: The files' sizes and times, which show a change, int64[..., 2].
    """
    folder = cache_folder()
    path = folder / f"{digest([kind, *names])}.npz"
    # It compares the checksum of each array.
    with (
        contextlib.suppress(ValueError, KeyError, *DAMAGED),
        np.load(path) as found,
    ):
        arrays = {name: found[name] for name in found.files}
        if np.array_equal(arrays.pop("states"), states):
            return arrays
    arrays = make()
    with contextlib.suppress(OSError, InvalidInputError, RunStoppedError):
        files.make_folder(folder)
        with files.replacing(path, unique=True) as temporary:
            files.write_npz(temporary, {**arrays, "states": states})
    return arrays


def digest(names: Sequence[str], states: np.ndarray | None = None) -> str:
    """Returns a name for what is made of files, 16 hexadecimal digits."""
    found = hashlib.sha256("\0".join(names).encode(errors="surrogateescape"))
    if states is not None:
        found.update(states.tobytes())
    return found.hexdigest()[:16]
