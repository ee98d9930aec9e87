"""Preparation of TFRecord files, which takes hours and may be stopped at any time.

A file is written under another name and renamed when it is whole, so that existing
files are finished. A killed program resumes where it stopped, and ends with the same
bytes as an uninterrupted one. `landmarks.preparation` and `imagenet21k.preparation` say
what is in the files.
"""

import concurrent.futures
import contextlib
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import tensorflow as tf

from tff_fedss import files
from tff_fedss.errors import InvalidInputError

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextlib.contextmanager
def open_folder(
    folder: pathlib.Path, run: Mapping[str, bytes], name: str | None = None
) -> Iterator[None]:
    """Makes a folder, or opens one to resume, and locks it.

    The files of `run` identify the folder's run, and are written first. Messages name
    the folder by `name`, or its path. Raises RunStoppedError if it cannot be written.
    """
    files.make_folder(folder, name)
    with files.writing(folder):
        try:
            lock = files.Lock(folder, os.O_RDONLY)
        except BlockingIOError as e:
            raise InvalidInputError(f"Another program writes to {folder}.") from e
    with contextlib.closing(lock):
        found = {file: files.read_if_there(folder / file) for file in run}
        for file, content in run.items():
            if found[file] not in (None, content):
                cure = "give the same input, or another `output_dir`"
                raise InvalidInputError(f"{folder / file} is of another run: {cure}.")
        for file, content in run.items():
            if found[file] is None:
                files.write(folder / file, content)
        yield


def write_records(path: pathlib.Path, payloads: Iterable[bytes]) -> list[int]:
    """Writes a TFRecord file, or nothing if `payloads` raises; returns their lengths.

    They are read one at a time. An existing file is replaced. Raises
    RunStoppedError if the disk is full or the system forbids to write.
    """
    lengths = []
    with files.replacing(path) as temporary:
        try:
            with tf.io.TFRecordWriter(str(temporary)) as writer:
                for payload in payloads:
                    writer.write(payload)
                    lengths.append(len(payload))
        except tf.errors.OpError as e:
            raise files.io_error(e, path, "cannot be written") from e
    return lengths


def example(features: Mapping[str, bytes | int]) -> bytes:
    """Serializes a `tf.train.Example` of single values, always the same bytes."""
    example = tf.train.Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        if isinstance(value, bytes):
            feature.bytes_list.value.append(value)
        else:
            feature.int64_list.value.append(value)
    # Without it the order of the features would vary from run to run.
    return example.SerializeToString(deterministic=True)


def in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None
) -> Iterator[tuple[Item, Result]]:
    """Processes several items at a time; starts none after an error.

    Reading, decoding and TFRecord's checksums release the GIL, so that threads
    suffice, by default two per core. Yields each item and its result, in the order
    of completion.
    """
    workers = workers or 2 * len(os.sched_getaffinity(0))
    waiting = {}
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting[pool.submit(work, item)] = item
                if len(waiting) == workers:
                    done, _ = concurrent.futures.wait(
                        waiting, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    for future in done:
                        yield waiting.pop(future), future.result()
            for future in concurrent.futures.as_completed(list(waiting)):
                yield waiting.pop(future), future.result()
        finally:
            pool.shutdown(cancel_futures=True)
