"""Files: atomic writes, texts and CSV by line, locks, digests."""

import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import os
import pathlib
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from tff_fedss.errors import InvalidInputError, RunStoppedError

# Errors of the path itself; any other error is the machine's.
_BAD_PATH = frozenset(
    {
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EINVAL,
        errno.ENOENT,
        errno.ENOTEMPTY,
    }
)
_CURES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit (ulimit -f)",
    errno.EMFILE: "raise the limit (ulimit -n)",
}


def error_text(error: object) -> str:
    """Returns an exception's message, or a text, on one line without a full stop.

    For an OSError: the operating system's message, and what to do about a full disk.
    """
    words = getattr(error, "strerror", None) or getattr(error, "message", None)
    text = " ".join(str(words or error).split()).removesuffix(".")
    cure = _CURES.get(getattr(error, "errno", None))
    if cure:
        return f"{text}; {cure}, then run the same command again"
    return text or type(error).__name__


def io_error(
    error: Exception, path: str | os.PathLike, what: str
) -> InvalidInputError | RunStoppedError:
    """Returns the error to raise for a file that cannot be read or written.

    It is an `InvalidInputError` if the path is to blame, else a `RunStoppedError`. The
    path is the one that the user named; `what` failed, such as "cannot be written".
    """
    is_input = getattr(error, "errno", None) in _BAD_PATH
    message = f"{os.fspath(path)} {what}: {error_text(error)}."
    return (InvalidInputError if is_input else RunStoppedError)(message)


@contextlib.contextmanager
def doing(path: str | os.PathLike, what: str) -> Iterator[None]:
    """Converts an OSError of the body into that of `io_error`, which names the file."""
    try:
        yield
    except OSError as error:
        raise io_error(error, path, what) from error


def writing(path: str | os.PathLike) -> contextlib.AbstractContextManager[None]:
    """Converts a failure to write in the body into an error that names the file."""
    return doing(path, "cannot be written")


def reading(path: str | os.PathLike) -> contextlib.AbstractContextManager[None]:
    """Converts a failure to read in the body into an error that names the file."""
    return doing(path, "cannot be read")


def make_folder(path: str | os.PathLike, name: str | None = None) -> pathlib.Path:
    """Makes a folder and its parents where they are missing, and returns it.

    Raises InvalidInputError if there can be none, RunStoppedError if it cannot be
    made. Messages have its name or, by default, its path.
    """
    with doing(name or path, "cannot be created"):
        try:
            os.makedirs(path, exist_ok=True)
        except FileExistsError:
            reason = errno.ENOTDIR, os.strerror(errno.ENOTDIR)
            raise NotADirectoryError(*reason) from None
    return pathlib.Path(path)


@contextlib.contextmanager
def replacing(path: str | os.PathLike, unique: bool = False) -> Iterator[pathlib.Path]:
    """Yields a path to write to; the result replaces the file unless the body fails.

    With `unique` several processes may write it at once; the last one wins. Raises
    InvalidInputError if there can be no such file, and RunStoppedError if it cannot
    be written; the previous file stays.
    """
    path = pathlib.Path(path)
    with writing(path):
        if path.exists() and not path.is_file():
            raise InvalidInputError(f"{path} cannot be written: it is no regular file.")
        part = f"{os.getpid()}." if unique else ""
        temporary = path.with_name(f".{path.name}.{part}tmp")
        try:
            yield temporary
            with open(temporary, "rb") as file:  # On the disk before it has its name.
                os.fdatasync(file.fileno())
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


def write(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file, see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text in UTF-8, see `replacing`."""
    write(path, text.encode("utf-8"))


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a file; InvalidInputError if it is missing, else RunStoppedError."""
    try:
        return pathlib.Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path.
        raise io_error(error, path, "cannot be read") from error


def read_if_there(path: str | os.PathLike) -> bytes | None:
    """Reads a file, see `read_bytes`; None if there is no such file."""
    with reading(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return pathlib.Path(path).read_bytes()
    return None


def read_lines(path: str | os.PathLike) -> list[str]:
    """Reads the lines of a text in UTF-8, without their ends.

    Raises:
        InvalidInputError: If there is no such file, or it is not UTF-8.
        RunStoppedError: If it cannot be read.
    """
    return decoded_lines(read_bytes(path), path)


def decoded(content: bytes, name: str | os.PathLike) -> str:
    """Decodes UTF-8 without a byte order mark; errors name the file and the line."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(f"{name}:{line}: this is not UTF-8.") from error


def decoded_lines(content: bytes, name: str | os.PathLike) -> list[str]:
    """Returns the lines of `decoded`, without line feeds and carriage returns."""
    lines = io.StringIO(decoded(content, name), newline=None)
    return [line.removesuffix("\n") for line in lines]


def csv_rows(
    content: bytes, name: str | os.PathLike, delimiter: str = ","
) -> Iterator[tuple[str, list[str]]]:
    """Yields rows of a CSV file in UTF-8 that are not blank, each with its end.

    The end is "name:line", for messages. Raises InvalidInputError with the line if
    it is not UTF-8 or no CSV.
    """
    text = io.StringIO(decoded(content, name), newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if row:
                yield f"{name}:{reader.line_num}", row
    except csv.Error as error:
        raise InvalidInputError(f"{name}:{reader.line_num}: {error}.") from error


def csv_table(
    content: bytes,
    name: str | os.PathLike,
    columns: Sequence[str] = (),
    delimiter: str = ",",
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the rows of a CSV file with a header, see `csv_rows`.

    Args:
        content: The bytes of the file.
        name: Its name in messages.
        columns: The columns that the file must have; it may have more.
        delimiter: The separator of fields.

    Yields:
        Where the row ends, as "name:line", and its fields by column.

    Raises:
        InvalidInputError: If it is not UTF-8 or no CSV, a column is missing or
            repeated, or a row is shorter or longer than the header.
    """
    rows = csv_rows(content, name, delimiter)
    _, header = next(rows, ("", []))
    header = [column.strip() for column in header]
    if not set(columns) <= set(header) or len(set(header)) < len(header):
        expected, found = map(delimiter.join, (columns, header))
        raise InvalidInputError(
            f"{name}:1: expected the columns {expected}, once each; "
            f"found {found or 'nothing'}."
        )
    for where, row in rows:
        if len(row) != len(header):
            found = f"found {len(row)} fields; the header has {len(header)}"
            raise InvalidInputError(f"{where}: {found}.")
        yield where, dict(zip(header, row, strict=True))


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    r"""Returns the text of a CSV file, whose lines end with "\n"."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def expect_once(where_of: dict[str, str], key: str, where: str, what: str) -> None:
    """Records where a key stands; InvalidInputError, with its kind, if repeated."""
    first = where_of.setdefault(key, where)
    if first != where:
        raise InvalidInputError(f"{where}: the {what} {key!r} is already in {first}.")


_MOST_DIGITS = 20  # Python refuses to parse some thousands.


def whole_number(
    text: str, where: str, what: str, low: int = 0, high: int = 2**31 - 1
) -> int:
    """Parses a field that is a whole number in low..high.

    Otherwise it raises InvalidInputError with `where`, "name:line", and `what` it is.
    """
    is_number = text.isdecimal() and len(text) <= _MOST_DIGITS
    if not (is_number and low <= int(text) <= high):
        found = f"the {what} {text!r}"
        raise InvalidInputError(f"{where}: {found} is not in {low}..{high}.")
    return int(text)


def write_npz(path: str | os.PathLike, arrays: Mapping[str, Any]) -> None:
    """Writes arrays by name into an .npz file with the bytes of `np.savez`.

    If the disk is full, `np.savez` leaves an archive object behind, which prints a
    second traceback when it is collected.

    Args:
        arrays: Arrays by name, without Python objects. Of a `models.ShardedMatrix` one
            block of rows at a time is in memory.

    Raises:
        OSError: If it cannot be written.
        ValueError: If an array holds Python objects.
    """
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                if hasattr(array, "row_blocks"):
                    _write_matrix(file, array)
                else:
                    np.lib.format.write_array(
                        file, np.asanyarray(array), allow_pickle=False
                    )


def _write_matrix(file: IO[bytes], matrix: Any) -> None:
    header = {
        "descr": np.dtype(np.float32).str,
        "fortran_order": False,
        "shape": matrix.shape,
    }
    np.lib.format.write_array_header_1_0(file, header)
    for block in matrix.row_blocks():
        file.write(np.ascontiguousarray(block).data)


class AppendedFile:
    """A file to which threads append texts, each whole or not at all."""

    def __init__(self, path: str | os.PathLike):
        """Opens the file.

        Raises:
            RunStoppedError: If it cannot be written.
        """
        self._path, self._lock = path, threading.Lock()
        with writing(path):
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def append(self, text: str) -> None:
        """Appends a text.

        Raises:
            RunStoppedError: If it cannot be written; the file is then unchanged.
        """
        data = memoryview(text.encode("utf-8"))
        with self._lock, writing(self._path):
            size = self._file.seek(0, os.SEEK_END)
            try:
                while data:  # A disk that becomes full may take a part.
                    data = data[self._file.write(data) :]
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(size)
                raise

    def sync(self) -> None:
        """Brings what was appended to the disk; RunStoppedError if it cannot."""
        with writing(self._path):
            os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class Lock:
    """A folder's lock, which is released when the process ends."""

    def __init__(self, path: str | os.PathLike, flags: int = os.O_RDWR | os.O_CREAT):
        """Takes the lock; BlockingIOError if another process has it.

        By os.O_RDONLY, the path may be the folder's own. Raises OSError if the
        file cannot be written, or its file system has no locks.
        """
        self._file = os.open(path, flags, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Releases the lock."""
        os.close(self._file)


def sha256(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file, in hexadecimal, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_sha256(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file, or that of all files in a folder and their names.

    Raises:
        OSError: If one cannot be read.
    """
    path = pathlib.Path(path)
    if path.is_file():
        return sha256(path)
    digest = hashlib.sha256()
    found = {p.relative_to(path).as_posix(): p for p in path.rglob("*") if p.is_file()}
    for name in sorted(found):
        digest.update(f"{sha256(found[name])}  {name}\n".encode())
    return digest.hexdigest()


def sync(folder: str | os.PathLike) -> None:
    """Flushes the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
