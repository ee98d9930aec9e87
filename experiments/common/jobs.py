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
from collections.abc import Mapping, Sequence

import tqdm

from experiments.common import cells, cluster_jobs, output_files, results
from tff_fedss.errors import InvalidInputError

# Where runs of one table keep what they share, for programs with such a flag.
_SHARED = {"experiments.fedss.train": "warm_start_cache"}
_EXIT_BLOCKED = -1  # Of a run that was not begun: what it starts from has failed.
_SECONDS_BETWEEN_LINES = 60.0
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass
class Job:
    """One run of a cell with one seed.

    Attributes:
        table: The table.
        cell: The cell.
        arguments: Which give the program the cell's flags.
        seed: The seed.
        folder: Of the run.
        num_rounds: How many rounds it is to have.
        process: At work on it, or the last one that was.
        slot: Which cores, and which GPU, it has; or where in the cluster.
        exit_code: With which the process has ended.
    """

    table: cells.Table
    cell: cells.Cell
    arguments: Sequence[str]
    seed: int
    folder: pathlib.Path
    num_rounds: int
    process: subprocess.Popen | cluster_jobs.RemoteProcess | None = None
    slot: int | cluster_jobs.Slot | None = None
    exit_code: int | None = None

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{self.cell.name} seed {self.seed}"

    @property
    def start(self) -> pathlib.Path | None:
        """The folder of the run from which it starts."""
        if self.cell.start is None:
            return None
        parts = len(pathlib.PurePath(self.cell.name).parts)
        return self.folder.parents[parts] / self.cell.start / self.folder.name

    @property
    def log(self) -> pathlib.Path:
        """The file with what the run has printed."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def is_done(self) -> bool:
        """Whether the run has come to its end."""
        return _is_done(self.folder)

    def last_row(self) -> list[str]:
        """The newest whole row of metrics.csv: method, round, and so on."""
        with contextlib.suppress(OSError):
            text = (self.folder / "metrics.csv").read_text(errors="replace")
            return text[: text.rfind("\n")].rpartition("\n")[2].split(",")
        return []

    def rounds_done(self) -> int:
        """How many rounds are done."""
        row = self.last_row()
        return int(row[1]) if len(row) > 1 and row[1].isdecimal() else 0

    def why_failed(self) -> str:
        """The last thing that the log says."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
            return lines[-1][:300] if lines else "its log is empty"
        return "its log cannot be read"


def read(job: Job) -> results.Run:
    """Reads the run of a job.

    Raises:
        InvalidInputError: If a file of it is damaged.
    """
    report = job.table.report
    return results.read_run(job.folder, report.KIND, report.RUN)


def run_all(
    jobs: Sequence[Job],
    *,
    num_workers: int | None,
    gpus: Sequence[str],
    more_settings: Mapping[str, str],
    cluster: cluster_jobs.Cluster | None = None,
) -> None:
    """Keeps all slots at work until every job is done or has failed.

    Args:
        jobs: Those that are done are let be. A job waits for the one it starts from.
        num_workers: How many at once; None: one for each GPU, else for each core.
        gpus: Numbers of the GPUs; each job at work gets one. Where kernels must be
            compiled for them, the first job does that alone.
        more_settings: Flags for all jobs, --data_dir and --pretrained. A job that
            starts from another has its own --pretrained.
        cluster: Where they run; None: here.
    """
    num_slots = num_workers or len(gpus) or len(os.sched_getaffinity(0))
    waiting = [job for job in jobs if not job.is_done]
    running: list[Job] = []
    view = _View(jobs)
    alone = bool(gpus) and _has_no_kernels()
    try:
        while waiting or running:
            slots = range(num_slots) if cluster is None else cluster.slots(num_workers)
            used = [job.slot for job in running]
            free = [slot for slot in slots if slot not in used]
            while (
                free
                and not (alone and running)
                and (job := _next(waiting, jobs)) is not None
            ):
                waiting.remove(job)
                if job.start is not None and not _is_done(job.start):
                    job.exit_code = _EXIT_BLOCKED
                    view.blocked(job)
                    continue
                job.slot = free.pop(0)
                if cluster is None:
                    _start(job, num_slots, gpus, more_settings)
                else:
                    _start_remotely(job, more_settings)
                running.append(job)
            time.sleep(0.5)
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                job.exit_code = job.process.returncode
                view.ended(job)
            for job in [job for job in running if _is_lost(job)]:
                running.remove(job)
                waiting.insert(0, job)
            alone = alone and not any(job.rounds_done() for job in running)
            view.update(running)
    finally:
        # They save what they have.
        for job in running:
            job.process.terminate()
        for job in running:
            job.process.wait()
        view.close()


def _has_no_kernels() -> bool:
    """Whether GPU kernels have yet to be compiled: half an hour, in every process.

    Those of a GPU that is newer than TensorFlow are, once, if they are kept: `run.sh`
    says where.
    """
    folder = os.environ.get("CUDA_CACHE_PATH")
    return folder is not None and not any(pathlib.Path(folder).glob("*"))


def _is_done(folder: pathlib.Path) -> bool:
    return (folder / "done.json").exists()


def _next(waiting: Sequence[Job], jobs: Sequence[Job]) -> Job | None:
    """Returns the first job that has not to wait for another's result."""
    open_folders = {
        job.folder for job in jobs if not job.is_done and job.exit_code is None
    }
    return next((job for job in waiting if job.start not in open_folders), None)


def _start(
    job: Job, num_slots: int, gpus: Sequence[str], more_settings: Mapping[str, str]
) -> None:
    output_files.create_folder(job.folder.parent, "results_dir")
    settings = {"seed": job.seed, "results_dir": job.folder}
    parts = len(pathlib.PurePath(job.cell.name).parts)
    if shared := _SHARED.get(job.table.program):
        settings[shared] = job.folder.parents[parts] / "warm_starts"
    settings.update(more_settings)
    if job.start is not None:
        settings["pretrained"] = job.start
    arguments = [*job.arguments, *cells.as_arguments(settings)]
    command = [sys.executable, "-P", "-m", job.table.program, *arguments]
    environment = dict(os.environ)
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[job.slot % len(gpus)]
    cores = sorted(os.sched_getaffinity(0))
    share = cores[job.slot % len(cores) :: num_slots]

    def prepare() -> None:
        # TensorFlow makes as many threads as it may use cores.
        os.sched_setaffinity(0, share)
        # If this process is killed, its runs save what they have and end.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    with open(job.log, "a") as log:
        job.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=prepare,
            # Ctrl-C is for this process, which tells the runs.
            start_new_session=True,
        )


def _is_lost(job: Job) -> bool:
    """Whether the machine that it ran on is gone."""
    process = job.process
    return isinstance(process, cluster_jobs.RemoteProcess) and process.is_lost


def _start_remotely(job: Job, more_settings: Mapping[str, str]) -> None:
    output_files.create_folder(job.folder.parent, "results_dir")
    settings = {
        name: os.path.abspath(value) if os.path.exists(value) else value
        for name, value in more_settings.items()
    }
    if job.start is not None:
        settings.pop("pretrained", None)
    job.process = cluster_jobs.RemoteProcess(
        job.slot,
        job.table.program,
        job.arguments,
        {**settings, "seed": str(job.seed)},
        job.folder,
        job.log,
        job.start,
    )


class _View:
    """A progress bar over the rounds of all jobs; lines where there is no terminal."""

    def __init__(self, jobs: list[Job]):
        self._jobs = jobs
        self._last_line = time.monotonic()
        self._start = time.monotonic()
        self._before = sum(job.rounds_done() for job in jobs)
        self._bar = None
        if sys.stderr.isatty():
            total = sum(job.num_rounds for job in jobs)
            self._bar = tqdm.tqdm(
                total=total, initial=self._before, unit="round", dynamic_ncols=True
            )

    def ended(self, job: Job) -> None:
        """Says how a job ended."""
        if job.exit_code == 0:
            self._say(f"done: {job.name}: {_final(job)}")
        else:
            self._say(f"FAILED (exit {job.exit_code}): {job.name}; see {job.log}")

    def blocked(self, job: Job) -> None:
        """Says that a job cannot be begun."""
        self._say(f"not begun: {job.name}, which starts from {job.start}")

    def update(self, running: list[Job]) -> None:
        """Shows what is running, from time to time."""
        now = time.monotonic()
        if self._bar is None and now - self._last_line < _SECONDS_BETWEEN_LINES:
            return
        text = ", ".join(
            f"{job.name} round {job.rounds_done()}/{job.num_rounds}" for job in running
        )
        done = sum(job.rounds_done() for job in self._jobs)
        if self._bar is not None:
            self._bar.set_description_str(text, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        self._last_line = now
        left = sum(job.num_rounds for job in self._jobs) - done
        eta = "?"
        if done > self._before:
            seconds = (now - self._start) / (done - self._before) * left
            eta = tqdm.tqdm.format_interval(seconds)
        num_done = sum(job.is_done for job in self._jobs)
        self._say(f"{num_done}/{len(self._jobs)} done; {text}; ETA {eta}")

    def close(self) -> None:
        """Leaves the screen in order."""
        if self._bar is not None:
            self._bar.close()

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)


def _final(job: Job) -> str:
    try:
        return read(job).summary
    except InvalidInputError as error:  # No reason to stop the other runs.
        return f"damaged: {error}"


def status(jobs: Sequence[Job]) -> str:
    """A line per job that has begun, and how many there are."""
    lines = []
    for job in jobs:
        if job.is_done:
            lines.append(f"  {job.name}: done, {_final(job)}")
        elif job.exit_code == _EXIT_BLOCKED:
            lines.append(f"  {job.name}: not begun, {job.start} is not done")
        elif job.exit_code:
            lines.append(f"  {job.name}: FAILED, exit {job.exit_code}; see {job.log}")
        elif job.rounds_done():
            lines.append(f"  {job.name}: round {job.rounds_done()}/{job.num_rounds}")
    num_done = sum(job.is_done for job in jobs)
    return "\n".join([f"{num_done} of {len(jobs)} runs are done.", *lines])
