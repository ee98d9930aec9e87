"""The folder that a run leaves behind, and that explains it years later."""

import csv
import fcntl
import hashlib
import io
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_fedss
from tff_fedss import models
from tff_fedss.errors import InvalidInputError
from tff_fedss.training.checkpoints import Checkpoints, wait_for
from tff_fedss.training.loop import Metrics, Run
from tff_fedss.training.sharded_checkpoints import write_npy

_FLAGS = "flags.txt"
_METRICS = "metrics.csv"
_SPEED = "speed.csv"
_DONE = "done.json"

# All columns of metrics.csv and of speed.csv: a row leaves those empty that were not
# measured. The first file is the same, byte for byte, whenever the run is repeated.
_FEDERATED_COLUMNS = {
    _METRICS: (
        "method",
        "round",
        "loss",
        "accuracy",
        "top1",
        "map_at_10",
        "train_top1",
        "num_examples",
        "num_clients",
        "classes_per_client",
        "positives_per_client",
        "rejected_clients",
        "bytes_down",
        "bytes_up",
    ),
    _SPEED: (
        "method",
        "round",
        "round_seconds",
        "images_per_second",
        "evaluation_seconds",
    ),
}


class ResultsFolder:
    """A folder that belongs to one set of flags.

    Files: `flags.txt` (a flagfile that repeats the run), `run.json` (flags, versions,
    git commit, machine), `metrics.csv` (a row per method and round, written as it is
    measured), `speed.csv` (likewise, but different each time), `tensorboard/` (the
    same numbers as event files), `checkpoints/` (until the run is done), and
    `done.json` (once it is).

    Attributes:
        path: Where it is.
        rows: The rows of metrics.csv by now, with numbers as numbers.
    """

    def __init__(
        self,
        path: str,
        flags: Mapping[str, str],
        columns: Mapping[str, Sequence[str]] = _FEDERATED_COLUMNS,
    ):
        """Checks that the folder is free, or belongs to these flags. Writes nothing.

        Args:
            path: The folder; it need not exist.
            flags: Name to value of all flags that decide the results.
            columns: Those of metrics.csv and of speed.csv, method and round first. By
                default those of federated runs.

        Raises:
            InvalidInputError: If the folder belongs to a run with other flags, or holds
                something that is not a run.
        """
        self.path = pathlib.Path(path)
        self._flags = dict(flags)
        self._columns = columns
        self._files: dict[str, Any] = {}
        self._writers: dict[str, csv.DictWriter] = {}
        self._boards: dict[str, tff.program.TensorBoardReleaseManager] = {}
        self.rows: list[Metrics] = []
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInputError(f"--results_dir={path} is a file, not a folder.")
        if (self.path / _FLAGS).exists():
            theirs = _parse_flagfile((self.path / _FLAGS).read_text())
            differences = [
                f"--{name}={theirs.get(name, '(unset)')} there, "
                f"--{name}={self._flags.get(name, '(unset)')} here"
                for name in sorted({*theirs, *self._flags})
                if theirs.get(name) != self._flags.get(name)
            ]
            if differences:
                raise InvalidInputError(
                    f"--results_dir={path} belongs to a run with other flags: "
                    f"{'; '.join(differences)}. Name another folder, or remove it."
                )
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise InvalidInputError(
                f"--results_dir={path} holds files but no {_FLAGS}, so it is not a "
                "run's folder. Name an empty or a new one."
            )

    @property
    def result(self) -> dict[str, Any] | None:
        """What `finish` wrote; None if the run has not come to its end."""
        path = self.path / _DONE
        return json.loads(path.read_text()) if path.exists() else None

    def open(self) -> None:
        """Creates the folder, takes it for this process, and starts its files.

        Raises:
            InvalidInputError: If the folder cannot be created, or another process is
                at work in it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInputError(
                f"--results_dir={self.path} cannot be created: {error.strerror}."
            ) from error
        # The flags first: a folder with files but no flags is taken for someone else's.
        self.write_text(
            _FLAGS,
            "".join(f"--{name}={value}\n" for name, value in self._flags.items()),
        )
        # The lock goes with the process, however it ends.
        self._files["lock"] = open(self.path / ".lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self._files["lock"], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidInputError(
                f"--results_dir={self.path} is in use by another process."
            ) from error
        self.write_text("run.json", json.dumps(_describe(self._flags), indent=2) + "\n")

    def checkpoints(
        self, method: str, kind: type[Checkpoints] = Checkpoints
    ) -> Checkpoints:
        """Returns the place for a method's checkpoints in this folder."""
        return kind(self.path / "checkpoints" / method)

    def resume(
        self,
        runs: Sequence[Run],
        kind: type[Checkpoints] = Checkpoints,
        unit: str = "round",
    ) -> dict[str, Checkpoints]:
        """Brings runs to where a previous process has left them, and says so.

        Then begins to record, see `start`.

        Args:
            runs: New ones; those that have a checkpoint here go on from it.
            kind: Of checkpoint that suits their states.
            unit: What a round is called.

        Returns:
            By name of the run, the place for its checkpoints.
        """
        places = {run.name: self.checkpoints(run.name, kind) for run in runs}
        for run in runs:
            restored = places[run.name].restore(run.state)
            if restored is not None:
                run.resume(*restored)
                print(f"{run.name}: goes on after {unit} {run.round_num}.", flush=True)
        self.start({run.name: run.round_num for run in runs if run.round_num})
        return places

    def start(self, rounds_done: Mapping[str, int]) -> None:
        """Begins to record, after what a previous process has recorded.

        Args:
            rounds_done: For each method that goes on from a checkpoint, the number of
                its rounds that are done. Rows of later rounds, and of methods that
                start anew, are dropped: these rounds will be run again.
        """
        for name, columns in self._columns.items():
            path = self.path / name
            kept = [
                row
                for row in _read_rows(path)
                if int(row["round"]) <= rounds_done.get(row["method"], -1)
            ]
            self.write_text(name, _as_csv(columns, kept))
            self._files[name] = open(path, "a", newline="")  # noqa: SIM115
            self._writers[name] = csv.DictWriter(
                self._files[name], columns, lineterminator="\n"
            )
            if name == _METRICS:
                self.rows = [_with_numbers(row) for row in kept]

    def release(self, metrics: Metrics, speed: Metrics) -> None:
        """Records a round. It is in the files when this returns.

        Args:
            metrics: What was measured, from `train`.
            speed: How fast it was, likewise.
        """
        for name, row in ((_SPEED, speed), (_METRICS, metrics)):
            self._writers[name].writerow(row)
            self._files[name].flush()
        self.rows.append(metrics)
        method, round_num = metrics["method"], metrics["round"]
        if method not in self._boards:
            self._boards[method] = tff.program.TensorBoardReleaseManager(
                self.path / "tensorboard" / method
            )
        scalars = {
            key: value
            for key, value in {**metrics, **speed}.items()
            if key not in ("method", "round")
        }
        wait_for(self._boards[method].release(scalars, round_num))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes down that the run is done, and what came of it.

        Args:
            result: For JSON; `self.result` has it from now on.
        """
        # Methods that went on from different rounds were recorded in another order
        # than those of an undisturbed run.
        methods = list(dict.fromkeys(row["method"] for row in self.rows))
        for name, columns in self._columns.items():
            self._files.pop(name).close()
            rows = _read_rows(self.path / name)
            rows.sort(key=lambda row: (int(row["round"]), methods.index(row["method"])))
            self.write_text(name, _as_csv(columns, rows))
        self.write_text(_DONE, json.dumps(result, indent=2) + "\n")
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)

    def write_text(self, name: str, text: str) -> None:
        """Writes a file, whole or not at all."""
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(text)
        os.replace(temporary, self.path / name)

    def write_weights(
        self, name: str, weights: tff.learning.models.ModelWeights
    ) -> None:
        """Writes a model as NumPy arrays phi_000, phi_001, ... and W ([n, d]).

        W may be a `models.ShardedMatrix`, which is not put together in memory.
        """
        *phi, classifier = weights.trainable
        arrays = {f"phi_{i:03d}": p for i, p in enumerate(phi)}
        self.write_arrays(name, {**arrays, "W": classifier})

    def write_arrays(
        self, name: str, arrays: Mapping[str, np.ndarray | models.ShardedMatrix]
    ) -> None:
        """Writes arrays by name as an .npz file, whole or not at all."""
        sharded = {
            key: value
            for key, value in arrays.items()
            if isinstance(value, models.ShardedMatrix)
        }
        temporary = self.path / f".{name}.tmp.npz"
        np.savez(
            temporary,
            **{k: np.asarray(v) for k, v in arrays.items() if k not in sharded},
        )
        with zipfile.ZipFile(temporary, "a") as archive:
            for key, matrix in sharded.items():
                entry = zipfile.ZipInfo(f"{key}.npy")
                with archive.open(entry, "w", force_zip64=True) as file:
                    write_npy(file, matrix)
        os.replace(temporary, self.path / name)


def read_metrics(folder: str | os.PathLike) -> list[Metrics]:
    """Reads what a run, finished or not, has recorded by now.

    Args:
        folder: Of the run.

    Returns:
        The rows of its metrics.csv, with numbers as numbers; none if it has no file.

    Raises:
        InvalidInputError: If the file is damaged.
    """
    path = pathlib.Path(folder) / _METRICS
    try:
        return [_with_numbers(row) for row in _read_rows(path)]
    # A row may lack columns, or have text or nothing where a number belongs.
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError(f"{path} is damaged: {error!r}.") from error


def read_flags(folder: str | os.PathLike) -> dict[str, str]:
    """Reads the flags, name to value, that decided a run; none if it has no file."""
    path = pathlib.Path(folder) / _FLAGS
    return _parse_flagfile(path.read_text()) if path.exists() else {}


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads what `ResultsFolder.write_arrays` wrote.

    Args:
        path: The .npz file.

    Raises:
        InvalidInputError: If it is not there or damaged.
    """
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    # What NumPy raises on files that are no whole archive. TypeError: on one array.
    except (
        OSError,
        ValueError,
        TypeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise InvalidInputError(f"{path} is damaged: {error}.") from error


def _parse_flagfile(text: str) -> dict[str, str]:
    pairs = (line[2:].partition("=") for line in text.splitlines() if line[:2] == "--")
    return {name: value for name, _, value in pairs}


def _read_rows(path: pathlib.Path) -> list[dict[str, str]]:
    """Reads the whole rows of a file; a killed program may leave half of one."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    return list(csv.DictReader(io.StringIO(whole, newline="")))


def _as_csv(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _with_numbers(row: Mapping[str, str]) -> Metrics:
    """Turns a row back into what `release` was given."""
    values = Metrics(method=row["method"])
    for name, text in row.items():
        if name != "method" and text != "":
            value = float(text)
            is_whole = value.is_integer() and not set(text) & set(".e")
            values[name] = int(text) if is_whole else value
    return values


def _describe(flags: Mapping[str, str]) -> dict[str, Any]:
    text = json.dumps(dict(flags), sort_keys=True)
    return {
        "command": sys.argv,
        "flags": dict(flags),
        "fingerprint": hashlib.sha256(text.encode()).hexdigest(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {
            "tff_fedss": tff_fedss.__version__,
            "git_commit": _git_commit(),
            "tensorflow": tf.__version__,
            "tensorflow_federated": tff.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "platform": platform.platform(),
            "processor": processor(),
            "cpus": os.cpu_count(),
            "memory_gib": round(
                os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1
            ),
            "gpus": [gpu.name for gpu in tf.config.list_physical_devices("GPU")],
        },
    }


def _git_commit() -> str | None:
    """The commit of the checkout, with "+" if files differ from it; None if unknown."""
    root = pathlib.Path(tff_fedss.__file__).parent.parent
    try:
        commit, status = (
            subprocess.run(
                ["git", "-C", root, *arguments],
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            ).stdout.strip()
            for arguments in (
                ["rev-parse", "HEAD"],
                ["status", "--porcelain", "--untracked-files=no"],
            )
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if status else "")


def processor() -> str | None:
    """Returns the name of this machine's processor; None if unknown."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if "model name" in line)
    return next(names, None)
