"""What the measuring programs share: processes, their memory, and the files written."""

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import pathlib
import re

import pandas as pd

from experiments.common import config
from tff_fedss import files


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """The flags of a measuring program."""

    output_dir: str = config.flag("results/benchmarks", "The output folder.")

    def folder(self) -> pathlib.Path:
        """Makes the folder and returns it.

        Raises:
            InvalidInputError: If there can be no such folder.
        """
        return files.make_folder(self.output_dir, f"--output_dir={self.output_dir}")


def write(folder: pathlib.Path, name: str, rows: pd.DataFrame, text: str) -> None:
    """Writes all digits of rows as NAME.csv, and a text and their table as NAME.md."""
    shown = rows.round(3).astype(object).where(rows.notna(), "")
    table = shown.to_markdown(index=False)
    files.write_text(folder / f"{name}.csv", rows.to_csv(index=False))
    files.write_text(folder / f"{name}.md", f"{text}\n\n{table}\n")


def show(folder: pathlib.Path, name: str) -> None:
    """Prints what `write` has written last."""
    print((folder / f"{name}.md").read_text())
    print(f"Written to {folder}/{name}.csv and .md")


def process() -> concurrent.futures.ProcessPoolExecutor:
    """Makes a process for what is submitted to it, with a peak of memory of its own."""
    # Not forked, since TensorFlow's threads would be missing.
    return concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn")
    )


def memory_bytes(what: str, pid: int | str = "self") -> int:
    """Returns a process's resident memory in bytes; 0 if the process is gone.

    Args:
        what: "VmHWM": the peak since it began its program (getrusage would also count
            the parent's memory before); "VmRSS": now.
    """
    with contextlib.suppress(OSError):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        if match := re.search(rf"{what}:\s+(\d+) kB", status):
            return 1024 * int(match.group(1))
    return 0
