"""Runs of a table's cells, several at once."""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from tff_fedss import files, progress

_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass
class Job:
    """One run of a cell with one seed.

    Attributes:
        name: The name of the cell and the seed, for messages.
        program: The module that trains.
        arguments: Its flags, without the two folders below.
        folder: The results folder of the run.
        start: The folder of the run from which it starts (--pretrained), if any.
        exit_code: The exit code of its process, after its end.
    """

    name: str
    program: str
    arguments: Sequence[str]
    folder: pathlib.Path
    start: pathlib.Path | None = None
    exit_code: int | None = None

    @property
    def log(self) -> pathlib.Path:
        """The file with the run's output."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def is_done(self) -> bool:
        """Whether the run has finished."""
        return (self.folder / "done.json").exists()

    @property
    def command(self) -> list[str]:
        """The command of the run, after the name of the Python interpreter."""
        folders = [f"--results_dir={self.folder}"]
        if self.start is not None:
            folders.append(f"--pretrained={self.start}")
        return ["-P", "-m", self.program, *self.arguments, *folders]

    def why_failed(self) -> str:
        """Returns the last line of the log."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else "its log is empty"
        return "its log cannot be read"


def run_all(
    jobs: Sequence[Job], num_slots: int, begin: Callable[[Job, int], subprocess.Popen]
) -> None:
    """Runs every job that is not done, `num_slots` at a time.

    A job that starts from another one waits for it. A failed job stops no other. If
    this process is stopped, the runs save their state and end. `begin` starts a job in
    a slot and returns a process, or an object with its methods.
    """
    waiting = [job for job in jobs if not job.is_done]
    running: dict[int, tuple[Job, subprocess.Popen]] = {}
    options = {"initial": len(jobs) - len(waiting), "delay": 0}
    bar = progress.bar("Runs", len(jobs), "runs", **options)
    try:
        while waiting or running:
            for slot in set(range(num_slots)) - running.keys():
                unfinished = [*waiting, *(job for job, _ in running.values())]
                if (job := next_job(waiting, unfinished)) is not None:
                    waiting.remove(job)
                    files.make_folder(
                        job.folder.parent, f"--results_dir={job.folder.parent}"
                    )
                    running[slot] = job, begin(job, slot)
            time.sleep(0.5)
            for slot, (job, process) in list(running.items()):
                job.exit_code = process.poll()
                if job.exit_code is not None:
                    del running[slot]
                    outcome = f"FAILED, see {job.log}" if job.exit_code else "done"
                    bar.write(f"{job.name}: {outcome}", file=sys.stderr)
                    bar.update()
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait()
        bar.close()


def next_job(waiting: Sequence[Job], unfinished: Sequence[Job]) -> Job | None:
    """Returns the first job whose start, if it has one, is done or has failed."""
    open_folders = {job.folder for job in unfinished}
    return next((job for job in waiting if job.start not in open_folders), None)


def local(
    num_slots: int, gpus: Sequence[str]
) -> Callable[[Job, int], subprocess.Popen]:
    """Returns a function that starts a job in a slot of this machine.

    Each slot has an equal share of the cores and, if there are any, one of the GPUs.
    """
    cores = sorted(os.sched_getaffinity(0))

    def begin(job: Job, slot: int) -> subprocess.Popen:
        share = cores[slot % len(cores) :: num_slots]

        def prepare() -> None:
            # TensorFlow makes one thread for each core that it may use.
            os.sched_setaffinity(0, share)
            # If this process is killed, its runs save their state and end.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

        environment = dict(os.environ)
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
        with open(job.log, "a") as log:
            return subprocess.Popen(
                [sys.executable, *job.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=prepare,
                # This process handles Ctrl-C and terminates the runs.
                start_new_session=True,
            )

    return begin


def status(jobs: Sequence[Job]) -> str:
    """Returns how many jobs are done, and a line for each that is done or failed."""
    lines = [f"{sum(job.is_done for job in jobs)} of {len(jobs)} runs are done."]
    for job in jobs:
        if job.is_done:
            lines.append(f"  {job.name}: done")
        elif job.exit_code:
            lines.append(f"  {job.name}: FAILED, exit {job.exit_code}; see {job.log}")
    return "\n".join(lines)
