"""Runs of a table's cells on the machines of a Ray cluster, each a Ray task.

The machines share only --data_dir: the files of a run are sent with its task and
returned with its result. Ray restarts the task of a lost machine.
"""

import ctypes
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from experiments.common.jobs import Job
from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.runtime import cluster_machines


def on_cluster(address: str) -> Callable[[Job, int], "_RemoteRun"]:
    """Returns a function that starts a job on a cluster, on a GPU if it has some.

    Raises:
        InvalidInputError: If it cannot be reached, or a machine has another version.
    """
    cluster_machines.connect(address)
    import ray

    if address != cluster_machines.LOCAL:
        _check_versions(ray, address)
    share = {"num_gpus": 1} if "GPU" in ray.cluster_resources() else {"num_cpus": 1}
    task = ray.remote(**share)(_run)
    return lambda job, slot: _RemoteRun(ray, task, job)


def _check_versions(ray: Any, address: str) -> None:
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
        sent, folders = _read(job.folder, "run"), ["--results_dir={folder}/run"]
        if job.start is not None:
            sent |= _read(job.start, "start")
            folders.append("--pretrained={folder}/start")
        name = hashlib.sha256(os.path.abspath(job.folder).encode()).hexdigest()[:20]
        command = ["-P", "-m", job.program, *job.arguments, *folders]
        self._result = task.remote(name, command, sent)

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
