"""A run of a cell on another machine: the actor that starts it there and reports.

Imported by Ray's processes, so it imports nothing but Python's own.
"""

import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 120


class Look(NamedTuple):
    """How a run is getting on.

    Attributes:
        exit_code: With which it has ended; None while it is at work.
        changed: What has changed in its folder since the last look, by path.
        there: The paths of all files in its folder.
        log: What it has printed since the last look.
    """

    exit_code: int | None
    changed: dict[str, bytes]
    there: frozenset[str]
    log: bytes


class Runner:
    """A run on this machine."""

    def __init__(
        self,
        place: str,
        module: str,
        arguments: Sequence[str],
        files: Mapping[str, bytes],
        slot: int,
        num_slots: int,
    ):
        """Starts the run.

        Args:
            place: A name for where it is on this machine, the same whenever it is begun
                again: what a run starts from is a part of its flags.
            module: The program.
            arguments: Its flags; {place} stands for the folder.
            files: By path below the folder, what is to be there; nothing else will be.
            slot: Which of the shares of this machine's cores it gets.
            num_slots: How many there are.
        """
        root = pathlib.Path(tempfile.gettempdir(), f"tff_fedss_{os.getuid()}")
        root.mkdir(mode=0o700, exist_ok=True)
        if root.is_symlink() or root.stat().st_uid != os.getuid():
            raise PermissionError(f"{root} is somebody else's.")
        self._folder = root / place
        shutil.rmtree(self._folder, ignore_errors=True)
        for name, content in files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stamps: dict[str, tuple[int, int]] = {}
        self._logged = 0
        cores = sorted(os.sched_getaffinity(0))
        share = cores[slot % len(cores) :: num_slots]

        def prepare() -> None:
            os.sched_setaffinity(0, share)
            # If this process is killed, the run saves what it has, and ends.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

        arguments = [a.replace("{place}", str(self._folder)) for a in arguments]
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=prepare,
                start_new_session=True,
            )

    def look(self) -> Look:
        """Says what has happened since the last look."""
        exit_code = self._process.poll()  # First: what it leaves is there then.
        before = self._files()
        changed = {}
        # Checkpoints first: there are never fewer rows in metrics.csv than they need.
        for name in sorted(before, key=lambda n: (not n.startswith("checkpoints"), n)):
            if self._stamps.get(name) != before[name]:
                try:
                    changed[name] = (self._folder / "run" / name).read_bytes()
                except OSError:  # Gone meanwhile.
                    continue
        after = self._files()
        changed = {name: content for name, content in changed.items() if name in after}
        self._stamps.update((name, before[name]) for name in changed)
        with open(self._folder / "log", "rb") as log:
            log.seek(self._logged)
            text = log.read()
        self._logged += len(text)
        if exit_code is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        return Look(exit_code, changed, frozenset(after), text)

    def stop(self) -> Look:
        """Tells the run to save what it has and to end, and waits for that."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return self.look()

    def _files(self) -> dict[str, tuple[int, int]]:
        """When the files of the run's folder were written, and how long they are."""
        root = self._folder / "run"
        found = {}
        for folder, _, names in os.walk(root):
            for name in names:
                path = pathlib.Path(folder, name)
                try:
                    status = path.stat()
                except OSError:
                    continue
                stamp = status.st_mtime_ns, status.st_size
                found[path.relative_to(root).as_posix()] = stamp
        return found
