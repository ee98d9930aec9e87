"""Current and peak memory of a process."""

import contextlib
import pathlib
import re


def peak_bytes(pid: int | None = None) -> int:
    """Returns the peak of a process's resident memory, since it began its program.

    getrusage would also count the parent's memory before the program began.

    Returns:
        Bytes; 0 if the process is gone.
    """
    return _read("VmHWM", pid)


def resident_bytes(pid: int | None = None) -> int:
    """Returns a process's resident memory now, in bytes; 0 if the process is gone."""
    return _read("VmRSS", pid)


def _read(name: str, pid: int | None) -> int:
    with contextlib.suppress(OSError):
        status = pathlib.Path(f"/proc/{pid or 'self'}/status").read_text()
        if match := re.search(rf"{name}:\s+(\d+) kB", status):
            return 1024 * int(match.group(1))
    return 0
