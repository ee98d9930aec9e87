"""ImageNet-21k's files as they are distributed: tars of class tars.

A class tar, `n01440764.tar`, is named by the class's WordNet id (wnid) and holds its
images, `n01440764_10026.JPEG`. They come in one of three forms, which differ in what
can be had without reading everything:

- a folder of class tars: any of them, at any time;
- one tar of class tars (`fall11_whole.tar`, 1.3 TB): likewise, once its headers are
  read, which takes a seek for each class;
- the same, gzipped (`winter21_whole.tar.gz`, 1.1 TB): only one after the other. To know
  the classes means to decompress it all.

At no time is there more in memory than one image and the names of one class's images.
"""

import abc
import collections
import contextlib
import dataclasses
import gzip
import io
import json
import os
import pathlib
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator

import tqdm

from tff_fedss import errors, files

_WNID = re.compile(r"n\d{8}")
_LAYOUT = (
    "a folder of <wnid>.tar (such as n01440764.tar), one tar of them "
    "(fall11_whole.tar) or that gzipped (winter21_whole.tar.gz)"
)
_GZIP_MAGIC = b"\x1f\x8b"
_DAMAGE = (tarfile.TarError, zlib.error, EOFError, OSError)
# How much of a file is copied or skipped at once.
_CHUNK_BYTES = 1 << 20

_LISTING_FILE = "listing.json"


class Image(collections.namedtuple("Image", ["name", "offset", "content"])):
    """An image in a class tar.

    Attributes:
        name: The name of its file, without folders.
        offset: Where its content starts in the class tar, in bytes.
        content: The encoded image, whatever it is.
    """


class _Blocks(io.RawIOBase):
    """A part of a file that remembers the last thing that was read from it.

    `tarfile` takes the end of the file, or a damaged header, for the end of the
    archive. What it read last tells these from the zeros that end a whole archive.
    """

    def __init__(self, file, offset: int = 0, size: int | None = None):
        super().__init__()
        self._file = file
        self._offset = offset
        self._size = size
        self._position = 0
        self.last_read = b""
        if offset:
            file.seek(offset)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only absolute positions are needed here")
        if isinstance(self._file, gzip.GzipFile):
            # It can only be read up to there, and fastest in large steps.
            while ahead := position - self._position:
                if ahead < 0:
                    raise io.UnsupportedOperation("a gzipped tar is read once")
                if not (chunk := self._file.read(min(ahead, _CHUNK_BYTES))):
                    break
                self._position += len(chunk)
        else:
            self._file.seek(self._offset + position)
            self._position = position
        return self._position

    def read(self, size: int = -1) -> bytes:
        if self._size is not None:
            left = max(0, self._size - self._position)
            size = left if size < 0 else min(size, left)
        self.last_read = self._file.read(size)
        self._position += len(self.last_read)
        return self.last_read

    def check_end(self) -> None:
        """Checks that `tarfile` stopped at the end of an archive.

        Raises:
            tarfile.TarError: If it did not, or if something follows.
        """
        at = self._position - len(self.last_read)
        if len(self.last_read) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError(
                f"it is cut off: after {self._position:,} bytes there is no mark of "
                "its end"
            )
        while block := self.last_read:
            if block.strip(b"\0"):
                raise tarfile.ReadError(f"no valid header at byte {at:,}")
            at = self._position
            self.read(_CHUNK_BYTES)


@dataclasses.dataclass(frozen=True)
class ClassTar:
    """Where to find the tar of one class.

    Attributes:
        wnid: The class.
        source: What to call the tar in a message.
        path: The file that has it.
        offset: Where it starts in that file, in bytes.
        size: Its length in bytes.
        is_temporary: Whether it is a copy, to be deleted after use.
    """

    wnid: str
    source: str
    path: pathlib.Path
    offset: int
    size: int
    is_temporary: bool = False

    def images(self) -> Iterator[Image]:
        """Yields all images in the order of the tar, which is read once.

        Raises:
            errors.InvalidInputError: If the tar is damaged or holds something else.
        """
        pattern = re.compile(rf"{self.wnid}_\d+\.JPEG")
        seen = set()
        with _readable(self.source), open(self.path, "rb", buffering=0) as file:
            blocks = _Blocks(file, self.offset, self.size)
            for member in _members(blocks):
                name = member.name.rpartition("/")[2]
                what = f"{self.source}: the member {member.name}"
                if not _is_plain(member) or not pattern.fullmatch(name):
                    raise errors.InvalidInputError(
                        f"{what} is not an image of this class: expected a file "
                        f"{self.wnid}_<number>.JPEG."
                    )
                if name in seen:
                    raise errors.InvalidInputError(f"{what} is there twice.")
                seen.add(name)
                blocks.seek(member.offset_data)
                content = blocks.read(member.size)
                if len(content) < member.size:
                    raise errors.InvalidInputError(f"{what} is cut off.")
                yield Image(name, member.offset_data, content)
        if not seen:
            raise errors.InvalidInputError(
                f"{self.source} holds no image; expected {self.wnid}_<number>.JPEG."
            )

    @contextlib.contextmanager
    def reader(self) -> Iterator[Callable[[int, int], bytes]]:
        """Opens the tar to read from any place in it: (offset, size) -> content."""
        with _readable(self.source), open(self.path, "rb", buffering=0) as file:

            def read(offset: int, size: int) -> bytes:
                return os.pread(file.fileno(), size, self.offset + offset)

            yield read

    def delete_copy(self) -> None:
        """Deletes the file if it is a copy."""
        if self.is_temporary:
            self.path.unlink(missing_ok=True)


class Archive(abc.ABC):
    """All class tars of a release.

    Attributes:
        path: The folder or file.
        wnids: The classes, sorted. The label of a class is its place here.
        num_bytes: What `class_tars` goes through, to measure progress by; the sum of
            their steps.
    """

    path: pathlib.Path
    wnids: list[str]
    num_bytes: int

    @abc.abstractmethod
    def class_tars(
        self, copies: pathlib.Path, is_done: Callable[[str, int], bool]
    ) -> Iterator[tuple[ClassTar | None, int]]:
        """Yields every class tar, once.

        Args:
            copies: A folder for temporary copies, where they are needed. A copy is made
                when the next class tar is asked for.
            is_done: Whether a class is not needed again, from its wnid and the size of
                its tar in bytes.

        Yields:
            The class tar, or None if it is done; and the step, in bytes.

        Raises:
            errors.InvalidInputError: If the archive is damaged.
        """


class _DirectArchive(Archive):
    """Class tars that can be read at any time."""

    def __init__(self, path: pathlib.Path, class_tars: list[ClassTar]):
        self.path = path
        self._class_tars = sorted(class_tars, key=lambda tar: tar.wnid)
        self.wnids = [tar.wnid for tar in self._class_tars]
        self.num_bytes = sum(tar.size for tar in self._class_tars)

    def class_tars(self, copies, is_done):
        for tar in self._class_tars:
            yield None if is_done(tar.wnid, tar.size) else tar, tar.size


class _GzippedArchive(Archive):
    """Class tars that come one after the other."""

    def __init__(self, path: pathlib.Path, wnids: list[str]):
        self.path = path
        self.wnids = sorted(wnids)
        self.num_bytes = path.stat().st_size

    def class_tars(self, copies, is_done):
        missing = set(self.wnids)
        position = 0
        for wnid, size, copy, position_now in _gzip_members(self.path):
            if wnid not in missing:
                raise errors.InvalidInputError(
                    f"{self.path}: {wnid}.tar is there, but {wnid} is not in the list "
                    "of classes."
                )
            missing.remove(wnid)
            tar = None
            if not is_done(wnid, size):
                copy(copies / f"{wnid}.tar")
                tar = ClassTar(
                    wnid,
                    f"{self.path}: {wnid}.tar",
                    copies / f"{wnid}.tar",
                    0,
                    size,
                    is_temporary=True,
                )
            now = position_now()
            yield tar, now - position
            position = now
        if missing:
            raise errors.InvalidInputError(
                f"{self.path}: {min(missing)}.tar is missing, one of {len(missing):,} "
                "classes of the list that the archive does not have."
            )


def open_archive(
    path: os.PathLike,
    *,
    cache_dir: os.PathLike,
    wnids_file: os.PathLike | None = None,
) -> Archive:
    """Finds out what an archive holds.

    Args:
        path: A folder of class tars, a tar of them, or such a tar gzipped.
        cache_dir: Where the list of a gzipped tar's classes is kept, for which it has
            to be decompressed from start to end.
        wnids_file: A file with the wnid of every class, one a line, which saves that.
            For the others it is only compared.

    Returns:
        The archive.

    Raises:
        errors.InvalidInputError: If it is none of these, is damaged, has a class twice,
            or other classes than wnids_file.
    """
    path = pathlib.Path(path)
    listed = None if wnids_file is None else _read_wnids(pathlib.Path(wnids_file))
    if not path.exists():
        raise errors.InvalidInputError(
            f"archive={path} does not exist; expected {_LAYOUT}."
        )
    if path.is_dir():
        archive = _DirectArchive(path, _tars_of_folder(path))
    else:
        with _readable(str(path)):
            files.check_regular(path)
            with open(path, "rb") as file:
                is_gzipped = file.read(2) == _GZIP_MAGIC
        if is_gzipped:
            return _GzippedArchive(
                path, listed or _gzip_listing(path, pathlib.Path(cache_dir))
            )
        archive = _DirectArchive(path, _tars_of_tar(path))
    if listed is not None and listed != archive.wnids:
        odd = sorted(set(listed) ^ set(archive.wnids))
        raise errors.InvalidInputError(
            f"wnids={wnids_file} has {len(listed):,} classes and {path} has "
            f"{len(archive.wnids):,}; {odd[0]} is in one of them only."
        )
    return archive


def _read_wnids(path: pathlib.Path) -> list[str]:
    try:
        lines = files.read(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        reason = files.error_text(e)
        raise errors.InvalidInputError(f"wnids={path} cannot be read: {reason}.") from e
    wnids = set()
    for number, line in enumerate(lines, 1):
        wnid = line.strip()
        if not wnid:
            continue
        if not _WNID.fullmatch(wnid) or wnid in wnids:
            problem = "is there twice" if wnid in wnids else "is not a wnid"
            raise errors.InvalidInputError(
                f"wnids={path}, line {number}: {wnid!r} {problem}; expected an n and "
                "8 digits, each class once."
            )
        wnids.add(wnid)
    if not wnids:
        raise errors.InvalidInputError(f"wnids={path} names no class.")
    return sorted(wnids)


def _tars_of_folder(folder: pathlib.Path) -> list[ClassTar]:
    tars = []
    for path in sorted(folder.glob("*.tar")):
        if not _WNID.fullmatch(path.stem):
            raise errors.InvalidInputError(
                f"archive={folder}: {path.name} is not a class tar; expected "
                f"{_LAYOUT}."
            )
        with _readable(str(path)):
            size = files.check_regular(path).st_size
        tars.append(ClassTar(path.stem, str(path), path, 0, size))
    if not tars:
        raise errors.InvalidInputError(
            f"archive={folder} has no class tar; expected {_LAYOUT}."
        )
    return tars


def _tars_of_tar(path: pathlib.Path) -> list[ClassTar]:
    tars = {}
    with _readable(str(path)), open(path, "rb", buffering=0) as file:
        for member in _members(_Blocks(file)):
            wnid = _wnid_of(member, path, tars)
            tars[wnid] = ClassTar(
                wnid, f"{path}: {wnid}.tar", path, member.offset_data, member.size
            )
    if not tars:
        raise errors.InvalidInputError(f"{path} has no class tar; expected {_LAYOUT}.")
    return list(tars.values())


def _gzip_listing(path: pathlib.Path, cache_dir: pathlib.Path) -> list[str]:
    """Decompresses an archive for the names in it, unless that has been done before."""
    cache = cache_dir / _LISTING_FILE
    status = path.stat()
    key = [path.name, status.st_size, status.st_mtime_ns]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        listing = json.loads(cache.read_text())
        if listing["archive"] == key:
            return listing["wnids"]
    wnids = []
    with _progress(f"Listing {path.name}", status.st_size) as bar:
        for wnid, _, _, position in _gzip_members(path):
            wnids.append(wnid)
            bar.update(position() - bar.n)
    if not wnids:
        raise errors.InvalidInputError(f"{path} has no class tar; expected {_LAYOUT}.")
    cache_dir.mkdir(parents=True, exist_ok=True)
    temporary = cache.with_name(f"{cache.name}.tmp")
    temporary.write_text(json.dumps({"archive": key, "wnids": wnids}))
    os.replace(temporary, cache)
    return wnids


def _gzip_members(
    path: pathlib.Path,
) -> Iterator[tuple[str, int, Callable[[pathlib.Path], None], Callable[[], int]]]:
    """Decompresses a gzipped tar of class tars.

    Yields:
        A wnid; the size of its tar; a function that copies it to a path, to be called
        before the next is asked for; and one that tells how much of the gzipped file
        has been read.
    """
    seen = set()
    with (
        _readable(str(path)),
        open(path, "rb", buffering=_CHUNK_BYTES) as file,
        gzip.GzipFile(fileobj=file) as decompressed,
    ):
        blocks = _Blocks(decompressed)
        for member in _members(blocks):
            wnid = _wnid_of(member, path, seen)
            seen.add(wnid)

            def copy(target: pathlib.Path, member=member) -> None:
                left = member.size
                with files.writing(target), open(target, "wb") as out:
                    while left:
                        with _readable(str(path)):
                            chunk = blocks.read(min(left, _CHUNK_BYTES))
                            if not chunk:
                                raise EOFError(f"it is cut off within {member.name}")
                        out.write(chunk)
                        left -= len(chunk)

            yield wnid, member.size, copy, file.tell


def _wnid_of(member: tarfile.TarInfo, path: pathlib.Path, seen) -> str:
    name = member.name.rpartition("/")[2]
    wnid = name.removesuffix(".tar")
    what = f"{path}: the member {member.name}"
    is_tar = _is_plain(member) and name.endswith(".tar")
    if not is_tar or not _WNID.fullmatch(wnid):
        raise errors.InvalidInputError(f"{what} is not a class tar, <wnid>.tar.")
    if wnid in seen:
        raise errors.InvalidInputError(f"{what} is there twice.")
    return wnid


def _is_plain(member: tarfile.TarInfo) -> bool:
    return member.isreg() and not member.issparse()


def _members(blocks: _Blocks) -> Iterator[tarfile.TarInfo]:
    """Yields what a tar holds, folders apart, and checks that it ends as it should."""
    with tarfile.open(fileobj=blocks, mode="r:") as tar:
        while member := tar.next():
            # Of no use later: a class has thousands of images, an archive as many
            # classes.
            tar.members = []
            if not member.isdir():
                yield member
    blocks.check_end()


@contextlib.contextmanager
def _readable(source: str) -> Iterator[None]:
    """Names the file if it turns out to be damaged."""
    try:
        yield
    except _DAMAGE as e:
        reason = files.error_text(e)
        raise errors.InvalidInputError(
            f"{source} is unreadable or damaged: {reason}"
        ) from e


def _progress(what: str, num_bytes: int) -> tqdm.tqdm:
    return tqdm.tqdm(
        desc=what, total=num_bytes, unit="B", unit_scale=True, delay=2, disable=None
    )
