"""Runs of a table's cells on the machines of a Ray cluster.

A run needs no folder that the machines share, but for its data: what it leaves is
brought here as it goes along, and what it had left before it was lost is brought to the
machine that goes on with it.
"""

import dataclasses
import hashlib
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from experiments.common import remote_run
from tff_fedss import files
from tff_fedss.runtime import cluster_connection, cluster_machines

_SECONDS_BETWEEN_LOOKS = 5.0
_PACKAGES = ("tff_fedss", "experiments")


@dataclasses.dataclass(frozen=True)
class Slot:
    """A share of a machine: a GPU or, where there is none, a core.

    Attributes:
        node: The machine's id.
        host: Its name.
        number: Which share it is.
        of: How many there are.
        gpus: How many GPUs the share has, 0 or 1.
    """

    node: str
    host: str
    number: int
    of: int
    gpus: int


class Cluster:
    """The machines, and what they can do at once."""

    def __init__(self, address: str):
        """Connects to a cluster.

        Args:
            address: See `cluster_connection.connect`.

        Raises:
            InvalidInputError: If it cannot be reached, or its machines have another
                version of this project.
        """
        cluster_connection.connect(address)
        self._versions = cluster_machines.Versions(address, _PACKAGES)

    def slots(self, most: int | None = None) -> list[Slot]:
        """What there is now; machines may come and go.

        Args:
            most: How many at most.
        """
        nodes = self._versions.usable(cluster_machines.alive())
        has_gpus = any(node["Resources"].get("GPU") for node in nodes.values())
        found = []
        for key, node in nodes.items():
            number = int(node["Resources"].get("GPU" if has_gpus else "CPU", 0))
            host = node["NodeManagerHostname"]
            found += [Slot(key, host, k, number, int(has_gpus)) for k in range(number)]
        return found[:most]


class RemoteProcess:
    """A run on a machine of the cluster, as `subprocess.Popen` shows one here.

    Attributes:
        returncode: With which it has ended; None while it is at work.
        is_lost: Whether its machine is gone, or the process there that looked after it.
    """

    def __init__(
        self,
        slot: Slot,
        module: str,
        arguments: Sequence[str],
        settings: Mapping[str, str],
        folder: pathlib.Path,
        log: pathlib.Path,
        start: pathlib.Path | None,
    ):
        """Starts it.

        Args:
            slot: Where.
            module: The program.
            arguments: What gives it the flags of its cell.
            settings: More flags, without the folders below; paths are absolute.
            folder: Of the run, here.
            log: The file, here, that gets what it prints.
            start: The folder of the run that it starts from.
        """
        sent = _tree(folder, "run")
        arguments = list(arguments)
        for k, argument in enumerate(arguments):
            name, _, path = argument.partition("=")
            if name == "--flagfile":
                sent["flagfile"] = pathlib.Path(path).read_bytes()
                arguments[k] = f"{name}={{place}}/flagfile"
        more = {**settings, "results_dir": "{place}/run"}
        if start is not None:
            sent.update(_tree(start, "start"))
            more["pretrained"] = "{place}/start"
        arguments += [f"--{name}={value}" for name, value in more.items()]
        place = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:20]
        self._folder, self._log = folder, log
        self.returncode: int | None = None
        self.is_lost = False
        cpus = 0 if slot.gpus else 1
        runner = cluster_machines.remote(remote_run.Runner, slot.node, cpus, slot.gpus)
        self._runner = runner.remote(
            place, module, arguments, sent, slot.number, slot.of
        )
        self._looking = self._runner.look.remote()
        self._next_look = 0.0

    def poll(self) -> int | None:
        """Takes what has come in; returns `returncode`."""
        import ray

        if self.returncode is not None or self.is_lost:
            return self.returncode
        if self._looking is None and time.monotonic() >= self._next_look:
            self._looking = self._runner.look.remote()
        if self._looking is not None:
            done, _ = ray.wait([self._looking], timeout=0)
            if done:
                self._take(self._looking)
        return self.returncode

    def terminate(self) -> None:
        """Tells the run to save what it has and to end."""
        if self.returncode is None and not self.is_lost:
            self._looking = self._runner.stop.remote()

    def wait(self) -> None:
        """Waits for the end of a run that was told to end."""
        if self.returncode is None and not self.is_lost:
            self._take(self._looking)

    def _take(self, reference: Any) -> None:
        import ray

        self._looking = None
        self._next_look = time.monotonic() + _SECONDS_BETWEEN_LOOKS
        try:
            look: remote_run.Look = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            logging.warning(
                "%s is lost: %s", self._folder, files.error_text(error)[:300]
            )
            self.is_lost = True
            return
        with open(self._log, "ab") as log:
            log.write(look.log)
        self._bring(look)
        self.returncode = look.exit_code

    def _bring(self, look: remote_run.Look) -> None:
        """Makes the folder here like the one there; a run could go on from it always.

        So what checkpoints need comes before them, and before the old ones go; and that
        the run is done is told last.
        """

        def order(name: str) -> tuple[bool, bool]:
            return name == "done.json", name.startswith("checkpoints/")

        for name in sorted(look.changed, key=order):
            path = self._folder / name
            files.make_folder(path.parent)
            files.write(path, look.changed[name])
        for name in _tree(self._folder, "").keys() - look.there:
            path = self._folder / name
            path.unlink()
            while path.parent != self._folder and not any(path.parent.iterdir()):
                path = path.parent
                path.rmdir()


def _tree(folder: pathlib.Path, name: str) -> dict[str, bytes]:
    """The files of a folder, by their path below another of a name."""
    return {
        (pathlib.PurePosixPath(name) / path.relative_to(folder)).as_posix(): (
            path.read_bytes()
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
