"""Runs of a table's cells on the machines of a Ray cluster, each a Ray task.

The machines share nothing but --data_dir: the files of a run are sent with its task and
come back with its result. A task whose machine is lost is started again by Ray.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from experiments.common.jobs import Job, Process
from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.runtime import cluster_connection, cluster_machines

_PACKAGES = ("tff_fedss", "experiments")
_SECONDS_TO_END = 30.0


def on_cluster(address: str) -> Callable[[Job, int], Process]:
    """Returns a function that starts a job on a cluster, on a GPU if it has any.

    Args:
        address: See `cluster_connection.connect`.

    Raises:
        InvalidInputError: If the cluster cannot be reached, or one of its machines has
            another version of this project.
    """
    cluster_connection.connect(address)
    machines = cluster_machines.alive()
    versions = cluster_machines.Versions(address, _PACKAGES)
    if len(versions.usable(machines)) < len(machines):
        raise InvalidInputError(
            f"--cluster={address}: a machine has another version of this project; "
            "the warning above names it."
        )
    import ray

    has_gpus = bool(ray.cluster_resources().get("GPU"))
    task = ray.remote(num_cpus=0 if has_gpus else 1, num_gpus=int(has_gpus))(_run)
    return lambda job, slot: _RemoteRun(task, job)


def _sent_as_code() -> tuple[Callable[..., Any], Callable[..., dict[str, bytes]]]:
    """Returns functions that Ray sends as code, since they stand within another one.

    A machine then needs no import of this module, which takes seconds.
    """

    def read(folder, name):
        """Reads the files of a folder, by their paths below another name."""
        return {
            f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def run(name, command, sent):
        """Runs a program; returns its exit code, the files of its run, and its log."""
        import ctypes
        import os
        import pathlib
        import shutil
        import signal
        import subprocess
        import sys
        import tempfile

        # The same path whenever the run is started: flags.txt holds that of its start.
        folder = pathlib.Path(tempfile.gettempdir(), f"tff_fedss_{os.getuid()}_{name}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        for path, content in sent.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        process = subprocess.Popen(
            [sys.executable, *(word.format(folder=folder) for word in command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TF_NUM_INTRAOP_THREADS": "1"},
            # PR_SET_PDEATHSIG: the run ends with the task.
            preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
        )
        try:
            log, _ = process.communicate()
            return process.returncode, read(folder / "run", "run"), log
        finally:
            process.kill()
            shutil.rmtree(folder, ignore_errors=True)

    return run, read


_run, _read = _sent_as_code()


class _RemoteRun:
    """A run on the cluster, with the methods of `jobs.Process`."""

    def __init__(self, task: Any, job: Job):
        self._job = job
        sent = _read(job.folder, "run")
        folders = ["--results_dir={folder}/run"]
        if job.start is not None:
            sent |= _read(job.start, "start")
            folders.append("--pretrained={folder}/start")
        name = hashlib.sha256(str(job.folder.absolute()).encode()).hexdigest()[:20]
        command = ["-P", "-m", job.program, *job.arguments, *folders]
        self._result = task.remote(name, command, sent)

    def poll(self) -> int | None:
        import ray

        if not ray.wait([self._result], timeout=0)[0]:
            return None
        try:
            exit_code, found, log = ray.get(self._result)
        except ray.exceptions.RayError as error:
            exit_code, found, log = 1, {}, files.error_text(error)[:300].encode()
        # done.json last: whoever sees it finds the rest.
        for name in sorted(found, key=lambda name: (name == "run/done.json", name)):
            path = self._job.folder / name.removeprefix("run/")
            files.make_folder(path.parent)
            files.write(path, found[name])
        with open(self._job.log, "ab") as file:
            file.write(log)
        return exit_code

    def terminate(self) -> None:
        import ray

        ray.cancel(self._result)

    def wait(self) -> None:
        import ray

        ray.wait([self._result], timeout=_SECONDS_TO_END)
