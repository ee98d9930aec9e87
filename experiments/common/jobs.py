"""Runs of a table's cells, several at once: on this machine, or on a Ray cluster.

The machines of a cluster share only --data_dir: each run is a Ray task, and its files
are sent with the task and returned with its result. Ray restarts the task of a lost
machine.
"""

import contextlib
import ctypes
import dataclasses
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from tff_fedss import files, progress
from tff_fedss.errors import InvalidInputError

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
        """Returns the signal that has killed it, or else the last line of the log."""
        if self.exit_code is not None and self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else "its log is empty"
        return "its log cannot be read"


def run(
    jobs: Sequence[Job],
    workers: int | None = None,
    gpus: Sequence[str] = (),
    cluster: str | None = None,
    skips: Callable[[Job], bool] = lambda job: False,
) -> None:
    """Runs jobs and prints which are done and which have failed.

    Args:
        jobs: The jobs; those that are done are not run again.
        workers: How many at once; by default one for each of the GPUs, else one for
            each core, or on a cluster as many as fit.
        gpus: Numbers of this machine's GPUs.
        cluster: The address of a Ray cluster; None: this machine.
        skips: Whether a job is not run, although it is not done.

    Raises:
        InvalidInputError: If the cluster cannot be reached.
    """
    if cluster is None:
        num_slots = workers or len(gpus) or len(os.sched_getaffinity(0))
        begin = _local(num_slots, gpus)
    else:
        num_slots, begin = workers or len(jobs), _on_cluster(cluster)
    try:
        run_all([job for job in jobs if not skips(job)], num_slots, begin)
    finally:
        lines = [f"  {job.name}: done" for job in jobs if job.is_done]
        lines.insert(0, f"{len(lines)} of {len(jobs)} runs are done.")
        print("\n".join(lines), flush=True)
    for job in jobs:
        if job.exit_code:
            why = job.why_failed()
            print(f"FAILED: {job.name} ({job.log}): {why}", file=sys.stderr)


def run_all(
    jobs: Sequence[Job], num_slots: int, begin: Callable[[Job, int], subprocess.Popen]
) -> None:
    """Runs every job that is not done, `num_slots` at a time.

    A job that starts from another one waits for it. A failed job stops no other. If
    this process is stopped, the runs of this machine save their state and end; those
    of a cluster are lost. `begin` starts a job in a slot and returns a process, or an
    object with its methods.
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


def _local(
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

        environment, command = dict(os.environ), job.command
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
            command.append("--num_gpus=1")  # Without that GPU the run fails.
        with open(job.log, "a") as log:
            return subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=prepare,
                # This process handles Ctrl-C and terminates the runs.
                start_new_session=True,
            )

    return begin


# --- On a Ray cluster -------------------------------------------------------------


def _on_cluster(address: str) -> Callable[[Job, int], "_RemoteRun"]:
    """Returns a function that starts a job on a cluster, on a GPU if it has some.

    Raises:
        InvalidInputError: If it cannot be reached, or a machine has another version.
    """
    # Ray takes a second to import.
    from tff_fedss.runtime import cluster_machines

    cluster_machines.connect(address)
    import ray

    if address != cluster_machines.LOCAL:
        _check_versions(ray, address)
    share = {"num_gpus": 1} if "GPU" in ray.cluster_resources() else {"num_cpus": 1}
    task = ray.remote(**share)(_run)
    return lambda job, slot: _RemoteRun(ray, task, job)


def _check_versions(ray: Any, address: str) -> None:
    from tff_fedss.runtime import cluster_machines

    packages = ("tff_fedss", "experiments")
    ours, nodes = cluster_machines.versions(packages), cluster_machines.alive()
    asked = [
        cluster_machines.remote(cluster_machines.versions, key, 0, 0).remote(packages)
        for key in nodes
    ]
    for node, answer in zip(nodes.values(), asked, strict=True):
        try:
            theirs = ray.get(answer)
        except ray.exceptions.RayError as error:
            theirs = cluster_machines.last_line(error)
        if theirs != ours:
            raise InvalidInputError(
                f"--cluster={address}: {cluster_machines.name_of(node)} has another "
                f"version: {theirs} instead of {ours}."
            )


def _sent_as_code() -> tuple[Callable[..., Any], Callable[..., dict[str, bytes]]]:
    """Returns functions that Ray sends as code: no machine imports this module."""

    def read(folder, name):
        """Reads the files of a folder, by their paths below another name."""
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {f"{name}/{p.relative_to(folder)}": p.read_bytes() for p in paths}

    def run(name, command, sent):
        """Runs a program; returns its exit code, the files of its run, and its log."""
        # The same path at every start: flags.txt has the path of the first one.
        folder = pathlib.Path(tempfile.gettempdir(), f"tff_fedss_{os.getuid()}_{name}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        for path, content in sent.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        try:
            done = subprocess.run(
                [
                    sys.executable,
                    *(a.replace("{folder}", str(folder)) for a in command),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TF_NUM_INTRAOP_THREADS": "1"},
                # PR_SET_PDEATHSIG ends the run with the task.
                preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
            )
            return done.returncode, read(folder / "run", "run"), done.stdout
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return run, read


_run, _read = _sent_as_code()


class _RemoteRun:
    """A run on the cluster, with the methods of a `subprocess.Popen`."""

    def __init__(self, ray: Any, task: Any, job: Job):
        self._ray, self._job = ray, job
        sent, there = _read(job.folder, "run"), pathlib.Path("{folder}")
        job_there = dataclasses.replace(job, folder=there / "run")
        if job.start is not None:
            sent |= _read(job.start, "start")
            job_there.start = there / "start"
        name = hashlib.sha256(os.path.abspath(job.folder).encode()).hexdigest()[:20]
        self._result = task.remote(name, job_there.command, sent)

    def poll(self) -> int | None:
        if not self._ray.wait([self._result], timeout=0)[0]:
            return None
        try:
            code, found, log = self._ray.get(self._result)
        except self._ray.exceptions.RayError as error:
            code, found, log = 1, {}, files.error_text(error)[:300].encode()
        # done.json last, so that all other files exist when it does.
        for name in sorted(found, key=lambda name: (name == "run/done.json", name)):
            path = self._job.folder / name.removeprefix("run/")
            files.make_folder(path.parent)
            files.write(path, found[name])
        with open(self._job.log, "ab") as file:
            file.write(log)
        return code

    def terminate(self) -> None:
        self._ray.cancel(self._result)

    def wait(self) -> None:
        self._ray.wait([self._result], timeout=30.0)
