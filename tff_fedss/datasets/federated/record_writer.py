"""TFRecord files, written so that hours of work may be stopped at any time.

The work is a folder of files. Each is written under another name, renamed when it is
whole, and entered in a ledger, a CSV file. What the ledger has is not written again, if
it is to hold the same and has the size that it says. So a program that was killed goes
on where it stopped, and ends with the same bytes as an undisturbed one; and what became
too short since, or was lost, is written anew.

One program at a time writes to a folder, and none goes on with the folder of another
run. `landmarks.preparation` and `imagenet21k.preparation` say what is in the files.
"""

import concurrent.futures
import contextlib
import csv
import fcntl
import io
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import tensorflow as tf
import tqdm

from tff_fedss import files
from tff_fedss.errors import InvalidInputError

_COLUMNS = ("file", "images", "bytes", "rows_md5")
_COPY_BYTES = 1 << 20

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextlib.contextmanager
def open_folder(
    folder: str | os.PathLike,
    *,
    ledger: str,
    scratch: str,
    run: Mapping[str, bytes],
    refusal: Callable[[str], str | None],
    name: str | None = None,
) -> Iterator["RecordWriter"]:
    """Makes a folder, or opens one to go on, and keeps other programs out of it.

    Args:
        folder: What is written to.
        ledger: The ledger's file, relative to it.
        scratch: The folder of what is not whole yet, relative to it.
        run: By name, the files in the folder that say of which run it is. They are
            written first.
        refusal: Called with the name of a file of `run` that is there with another
            content. Returns why the folder is that of another run; None if it is not.
        name: How messages call the folder where it cannot be made; by default its path.

    Yields:
        What writes there.

    Raises:
        InvalidInputError: If the folder is another run's, cannot be made, or another
            program is writing there. Nothing in it is changed then.
        RunStoppedError: If the disk is full or the system forbids to write.
    """
    folder = pathlib.Path(folder)
    files.make_folder(folder, name)
    with _locked(folder):
        missing = []
        for file, content in run.items():
            found = files.read_if_there(folder / file)
            if found is None:
                missing.append(file)
            elif found != content and (problem := refusal(file)):
                raise InvalidInputError(problem)
        for file in missing:
            files.write(folder / file, run[file])
        with files.writing(folder / scratch):
            shutil.rmtree(folder / scratch, ignore_errors=True)
            os.makedirs(folder / scratch)
        writer = RecordWriter(folder, folder / ledger, folder / scratch)
        try:
            yield writer
        finally:
            writer.close()


class RecordWriter:
    """Writes the files of a folder; see `open_folder`. Several threads may use it."""

    def __init__(
        self, folder: pathlib.Path, ledger: pathlib.Path, scratch: pathlib.Path
    ):
        self._folder, self._ledger_path, self._scratch = folder, ledger, scratch
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._rows = _read_rows(ledger)
        for file in [f for f, row in self._rows.items() if row[2] != self._size(f)]:
            del self._rows[file]
        self._write_ledger()
        self._ledger = files.AppendedFile(ledger)

    def is_finished(self, file: str, digest: str) -> bool:
        """Whether a file is there, whole, and holds what it is to hold.

        Args:
            file: Its path, relative to the folder.
            digest: As for `enter`.
        """
        row = self._rows.get(file)
        return row is not None and row[2:] == (self._size(file), digest)

    def write(self, file: str, payloads: Iterable[bytes]) -> list[int]:
        """Writes a file of TFRecords, or nothing if `payloads` raises.

        Args:
            file: Its path, relative to the folder. What is there is replaced.
            payloads: Its records, read one at a time.

        Returns:
            The lengths of the payloads, in bytes.

        Raises:
            RunStoppedError: If the disk is full or the system forbids to write.
        """
        with self._replacing(file) as unfinished:
            try:
                return _write_records(unfinished, self._until_stopped(payloads))
            except tf.errors.OpError as e:
                raise files.io_error(e, unfinished, "cannot be written") from e

    def join(self, file: str, parts: Sequence[str]) -> bool:
        """Makes a file of others, one after the other, unless they hold nothing.

        Args:
            file: Its path, relative to the folder.
            parts: The others', likewise.

        Returns:
            Whether there is such a file now.
        """
        if not any((self._folder / part).stat().st_size for part in parts):
            return False
        with self._replacing(file) as unfinished, open(unfinished, "wb") as whole:
            for part in parts:
                with open(self._folder / part, "rb") as content:
                    shutil.copyfileobj(content, whole, _COPY_BYTES)
        return True

    def enter(self, file: str, num_records: int, digest: str) -> None:
        """Enters a file in the ledger: it need not be written again.

        Args:
            file: Its path, relative to the folder.
            num_records: How many records it has.
            digest: Of what follows its content, such as the list of its images.
        """
        row = (file, str(num_records), self._size(file), digest)
        with self._lock:
            self._rows[file] = row
            self._ledger.append(csv_text([row]))

    def run(
        self,
        work: Callable[[Item], Result],
        items: Iterable[Item],
        workers: int | None = None,
    ) -> Iterator[tuple[Item, Result]]:
        """Works on several pieces at a time, in threads; these suffice.

        Reading, decoding and TFRecord's checksums let go of the GIL. If anything fails,
        `write` ends in the other threads too, without a file.

        Args:
            work: Does one piece.
            items: The pieces, taken when there is room for one, so that they need not
                all be there at once.
            workers: How many at a time; None: two per core.

        Yields:
            A piece and what `work` returned, as they are done.
        """
        with in_threads(work, items, workers, self._stop) as results:
            yield from results

    def finish(self, whole: Sequence[str]) -> None:
        """Leaves some files alone in the ledger, and removes what is not whole.

        Args:
            whole: Their paths, in the order in which the ledger is to name them; those
                that are not in it are left out.
        """
        self._rows = {file: self._rows[file] for file in whole if file in self._rows}
        self.close()
        self._write_ledger()
        with files.writing(self._scratch):
            shutil.rmtree(self._scratch)

    def close(self) -> None:
        """Closes the ledger."""
        self._ledger.close()

    @contextlib.contextmanager
    def _replacing(self, file: str) -> Iterator[pathlib.Path]:
        target = self._folder / file
        unfinished = self._scratch / file.replace("/", "%")
        with files.writing(target):
            try:
                yield unfinished
                os.replace(unfinished, target)
            finally:
                unfinished.unlink(missing_ok=True)

    def _until_stopped(self, payloads: Iterable[bytes]) -> Iterator[bytes]:
        for payload in payloads:
            if self._stop.is_set():
                raise _StoppedError
            yield payload

    def _size(self, file: str) -> str | None:
        """A file's size, as the ledger has it; None if there is none."""
        try:
            return str((self._folder / file).stat().st_size)
        except (OSError, ValueError):  # The latter for a zero byte in a damaged ledger.
            return None

    def _write_ledger(self) -> None:
        text = csv_text([_COLUMNS, *self._rows.values()])
        files.write_text(self._ledger_path, text)


@contextlib.contextmanager
def in_threads(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Iterator[tuple[Item, Result]]]:
    """Works on several items at a time; ends soon, and not when all is done, on errors.

    Args:
        work: What to do with an item.
        items: The items, taken when there is room for one.
        workers: How many at a time; None: two per core.
        stop: Is set when anything fails, for `work` to look at.

    Yields:
        Pairs of an item and what `work` returned, as they are done.
    """
    workers = workers or 2 * len(os.sched_getaffinity(0))
    stop = stop or threading.Event()
    pool = concurrent.futures.ThreadPoolExecutor(workers)
    item_of = {}

    def unless_stopped(item: Item) -> Result:
        if stop.is_set():
            raise _StoppedError
        try:
            return work(item)
        except BaseException:
            # At once, so that nothing begins before the other thread has noticed.
            stop.set()
            raise

    def some() -> Iterator[tuple[Item, Result]]:
        done, _ = concurrent.futures.wait(
            item_of, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in done:
            item = item_of.pop(future)
            # Why it was stopped is what another one raises.
            if not isinstance(future.exception(), _StoppedError):
                yield item, future.result()

    def results() -> Iterator[tuple[Item, Result]]:
        for item in items:
            item_of[pool.submit(unless_stopped, item)] = item
            while len(item_of) > workers:
                yield from some()
        while item_of:
            yield from some()

    try:
        yield results()
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _StoppedError(Exception):
    """Ends a piece of work because another one has failed, or its user."""


class Progress:
    """A bar on a terminal: what is done, and the time left."""

    def __init__(self, what: str, total: int, unit: str, *, unit_scale: bool = False):
        """Makes it; it shows after two seconds.

        Args:
            what: What is being done.
            total: The sum of all steps.
            unit: What a step counts.
            unit_scale: Whether to shorten large numbers: MB, GB.
        """
        self._bar = tqdm.tqdm(
            desc=what,
            total=total,
            unit=unit,
            unit_scale=unit_scale,
            delay=2,
            smoothing=0.01,
            disable=None,
        )
        self._num_images = 0
        self._start = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def skip(self, step: int) -> None:
        """Goes on by what was done before, which says nothing about the speed."""
        if not self._bar.disable:
            self._bar.initial += step
            self._bar.n += step

    def add(self, step: int, num_images: int) -> None:
        """Goes on by what was done now, with so many images."""
        self._num_images += num_images
        rate = self._num_images / max(time.monotonic() - self._start, 1e-9)
        self._bar.set_postfix_str(
            f"{self._num_images:,} images, {rate:,.0f} images/s", refresh=False
        )
        self._bar.update(step)


def csv_text(rows: Iterable[Sequence]) -> str:
    """The lines of a CSV file."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _read_rows(ledger: pathlib.Path) -> dict[str, tuple[str, ...]]:
    """The rows of a ledger by file; those that a kill cut off are left out."""
    content = files.read_if_there(ledger) or b""
    lines = io.StringIO(content.decode(errors="replace"), newline="")
    try:
        rows = [tuple(row) for row in csv.reader(lines)]
    except csv.Error:  # Damaged: a field without an end.
        return {}
    return {row[0]: row for row in rows if len(row) == len(_COLUMNS)}


def _write_records(path: pathlib.Path, payloads: Iterable[bytes]) -> list[int]:
    lengths = []
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
            lengths.append(len(payload))
    return lengths


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Keeps a second program out; the lock ends with this one, however it ends."""
    with files.writing(folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise InvalidInputError(
                f"Another program is writing to {folder}; wait for its end."
            ) from e
        yield
    finally:
        os.close(descriptor)
