"""The folder that a run leaves behind, and that explains it years later."""

import asyncio
import contextlib
import json
import os
import pathlib
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import files, models
from tff_fedss.errors import InvalidInputError, RunStoppedError
from tff_fedss.training import provenance, run_files
from tff_fedss.training.checkpoints import Checkpoints
from tff_fedss.training.run import Metrics, Run

_CHECKPOINTS = "checkpoints"
_LOCK = ".lock"

# All columns of metrics.csv and of speed.csv: a row leaves those empty that were not
# measured. The first file is the same, byte for byte, whenever the run is repeated.
_FEDERATED_COLUMNS = {
    run_files.METRICS: (
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
        "mean_cosine",
        "r_precision",
        "tar_at_far",
    ),
    run_files.SPEED: (
        "method",
        "round",
        "round_seconds",
        "images_per_second",
        "evaluation_seconds",
    ),
}


def federated_columns(*more: str) -> Mapping[str, Sequence[str]]:
    """Returns the columns of metrics.csv and of speed.csv of federated runs.

    Args:
        *more: Further ones of metrics.csv, of what only some runs measure.
    """
    own = _FEDERATED_COLUMNS[run_files.METRICS]
    return {**_FEDERATED_COLUMNS, run_files.METRICS: (*own, *more)}


class ResultsFolder:
    """A folder that belongs to one set of flags.

    Files: `flags.txt` (a flagfile that repeats the run), `run.json` (flags, versions,
    git commit, machine), `data.json` (what the data were), `metrics.csv` (a row per
    method and round, written as it is measured), `speed.csv` (likewise, but different
    each time), `tensorboard/` (the same numbers as event files), `checkpoints/` (until
    the run is done), and `done.json` (once it is).

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
            InvalidInputError: If the folder belongs to a run with other flags, holds
                something that is not a run, or is damaged; or if a flagfile cannot hold
                a flag.
            RunStoppedError: If the folder cannot be read.
        """
        self.path = pathlib.Path(path)
        self._flags = dict(flags)
        self._columns = columns
        self._lock: files.Lock | None = None
        self._files: dict[str, files.AppendedFile] = {}
        self._boards: dict[str, tff.program.TensorBoardReleaseManager] = {}
        self.rows: list[Metrics] = []
        self._description: dict[str, Any] = {}
        for name, value in self._flags.items():
            run_files.check_for_flagfile(name, value)
        self._check_flags()

    def _check_flags(self) -> None:
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return
        except NotADirectoryError as error:
            raise InvalidInputError(
                f"results_dir={self.path} is a file, not a folder."
            ) from error
        except OSError as error:
            raise files.io_error(
                error, f"results_dir={self.path}", "cannot be read"
            ) from error
        text = files.read_text(self.path / run_files.FLAGS)
        if text is not None:
            theirs = run_files.parse_flags(text, self.path / run_files.FLAGS)
            differences = [
                f"--{name}={theirs.get(name, '(unset)')} there, "
                f"--{name}={self._flags.get(name, '(unset)')} here"
                for name in sorted({*theirs, *self._flags})
                if theirs.get(name) != self._flags.get(name)
            ]
            if differences:
                raise InvalidInputError(
                    f"results_dir={self.path} belongs to a run with other flags: "
                    f"{'; '.join(differences)}. Name another folder, or remove it."
                )
        # What a kill in the very first write leaves is no one's.
        elif any(name not in (_LOCK, f".{run_files.FLAGS}.tmp") for name in names):
            raise InvalidInputError(
                f"results_dir={self.path} holds files but no {run_files.FLAGS}, so "
                "it is not a run's folder. Name an empty or a new one."
            )

    @property
    def result(self) -> dict[str, Any] | None:
        """What `finish` wrote; None if the run has not come to its end.

        Raises:
            InvalidInputError: If the file is damaged, or its metrics.csv is gone.
        """
        path = self.path / run_files.DONE
        result = run_files.read_json(path)
        if result is not None and not (self.path / run_files.METRICS).exists():
            raise InvalidInputError(
                f"{self.path / run_files.METRICS} is missing, though {path.name} says "
                "that the run is done. Bring it back, or remove the results folder."
            )
        return result

    def told(self, key: str) -> str | None:
        """Returns what a finished run says of itself; None if it is not finished.

        Args:
            key: Of its result.

        Raises:
            InvalidInputError: If the result is damaged, or has no such text.
        """
        result = self.result
        if result is None:
            return None
        if not isinstance(result.get(key), str):
            raise InvalidInputError(
                f"{self.path / run_files.DONE} is damaged: it has no text {key!r}. "
                "Bring it back, or remove the results folder to do the run again."
            )
        return f"Done before, nothing to run.\n{result[key]}"

    def result_text(self, key: str) -> str:
        """Returns a text of `result`, of a run that is done.

        Raises:
            InvalidInputError: If the file has no such text.
        """
        text = (self.result or {}).get(key)
        if not isinstance(text, str):
            raise InvalidInputError(
                f"{self.path / run_files.DONE} has no {key!r}, so it is not of this "
                "program. Bring the file back, or remove the results folder."
            )
        return text

    def open(self, data: Mapping[str, Any] | None = None) -> None:
        """Takes the folder for this process, and writes down what it is of.

        Args:
            data: What the run reads, for JSON: a fingerprint by the name of each input,
                such as {"data": {"clients": 99, ...}}. A folder that was begun with
                others is refused.

        Raises:
            InvalidInputError: If there can be no such folder, another process is at
                work in it, or it was begun with other data. Nothing is written then.
            RunStoppedError: If it cannot be written.
        """
        files.make_folder(self.path, f"results_dir={self.path}")
        try:
            self._lock = files.Lock(self.path / _LOCK)
        except BlockingIOError as error:
            raise InvalidInputError(
                f"results_dir={self.path} is in use by another process."
            ) from error
        except OSError as error:
            raise files.io_error(
                error, f"results_dir={self.path}", f"cannot be locked by {_LOCK}"
            ) from error
        try:
            self._begin(data or {})
        except BaseException:
            self.close()
            raise

    def _begin(self, data: Mapping[str, Any]) -> None:
        # Now that nobody else can change it: who had the lock until now may have.
        self._check_flags()
        if self.result is not None:
            raise InvalidInputError(
                f"results_dir={self.path}: another process has just finished this "
                "run. The same command again shows what came of it."
            )
        self._check_data(data)
        self.write_text(run_files.FLAGS, run_files.as_flagfile(self._flags))
        if data and not (self.path / run_files.DATA).exists():
            self.write_text(run_files.DATA, json.dumps(data, indent=2) + "\n")
        self._description = self._describe()

    def _check_data(self, data: Mapping[str, Any]) -> None:
        theirs = run_files.read_json(self.path / run_files.DATA)
        if theirs is None:
            return
        differences = [
            f"{what}: {_shown(there.get(what))} there, {_shown(here.get(what))} here"
            for name in data
            for there, here in [(theirs.get(name) or {}, data[name])]
            for what in dict.fromkeys([*there, *here])
            if there.get(what) != here.get(what)
        ]
        if differences:
            raise InvalidInputError(
                f"results_dir={self.path} was begun with other input: "
                f"{'; '.join(differences)}. Bring back what it was begun with, or name "
                "another folder."
            )

    def _describe(self) -> dict[str, Any]:
        """Returns what run.json is to say: how the run began, and was gone on with."""
        described = provenance.describe(self._flags)
        before = run_files.read_json(self.path / run_files.RUN)
        if before is not None:
            continued = {key: described[key] for key in ("command", "started")}
            continued["git_commit"] = described["versions"]["git_commit"]
            described = {
                **before,
                "continued": [*before.get("continued", []), continued],
            }
        return described

    def checkpoints(self, method: str) -> Checkpoints:
        """Returns a method's checkpoints in this folder."""
        return Checkpoints(self.path / _CHECKPOINTS / method)

    def resume(
        self, runs: Sequence[Run], unit: str = "round"
    ) -> dict[str, Checkpoints]:
        """Brings runs to where a previous process has left them, and says so.

        Then begins to record, see `start`.

        Args:
            runs: New ones; those that have a checkpoint here go on from it.
            unit: What a round is called.

        Returns:
            By name of the run, the place for its checkpoints.

        Raises:
            InvalidInputError: If what is there is damaged, see `start` and
                `Checkpoints.restore`.
            RunStoppedError: If it cannot be read.
        """
        places = {run.name: self.checkpoints(run.name) for run in runs}
        for run in runs:
            restored = places[run.name].restore(run.state)
            if restored is not None:
                run.resume(*restored)
        self.start({run.name: run.round_num for run in runs if run.round_num})
        for run in runs:
            if run.round_num:
                print(f"{run.name}: goes on after {unit} {run.round_num}.", flush=True)
        return places

    def start(self, rounds_done: Mapping[str, int]) -> None:
        """Begins to record, after what a previous process has recorded.

        Args:
            rounds_done: For each method that goes on from a checkpoint, the number of
                its rounds that are done. Rows of later rounds, and of methods that
                start anew, are dropped: these rounds will be run again.

        Raises:
            InvalidInputError: If a row of the rounds that are done is missing, or one
                is damaged. The files are as they were then.
        """
        kept = {}
        for name in self._columns:
            rows = [
                row
                for row in self._read_rows(name)
                if row["round"] <= rounds_done.get(row["method"], -1)
            ]
            for method, done in rounds_done.items():
                found = [row["round"] for row in rows if row["method"] == method]
                missing = sorted({*range(done + 1)} - {*found})
                if missing or len(found) > done + 1:
                    what = (
                        f"lacks round {missing[0]}"
                        if missing
                        else f"has {len(found)} rows for the rounds 0 to {done}"
                    )
                    raise InvalidInputError(
                        f"{self.path / name} {what} of {method}, whose checkpoint is "
                        f"of round {done}. Bring the file back, or remove the results "
                        "folder to begin anew."
                    )
            kept[name] = rows
        if self._description:  # Not before: a start that is refused leaves no trace.
            text = json.dumps(self._description, indent=2) + "\n"
            self.write_text(run_files.RUN, text)
        for name, columns in self._columns.items():
            self.write_text(name, run_files.as_csv(columns, kept[name]))
            self._files[name] = files.AppendedFile(self.path / name)
        self.rows = kept[run_files.METRICS]

    def _read_rows(self, name: str) -> list[Metrics]:
        path = self.path / name
        return run_files.parse_rows(
            run_files.whole_table(files.read_text(path), path, is_done=False)
        )

    def release(self, metrics: Metrics, speed: Metrics) -> None:
        """Records a round. It is in the files when this returns.

        Args:
            metrics: What was measured, from `train`.
            speed: How fast it was, likewise.

        Raises:
            RunStoppedError: If a file cannot be written; no half of a row is in it.
        """
        for name, row in ((run_files.SPEED, speed), (run_files.METRICS, metrics)):
            text = run_files.as_csv(self._columns[name], [row], header=False)
            self._files[name].append(text)
        self.rows.append(metrics)
        method, round_num = metrics["method"], metrics["round"]
        with np.errstate(over="ignore"):
            scalars = {
                # As event files keep them: a larger double is no error, but infinite.
                key: np.float32(value)
                for key, value in {**metrics, **speed}.items()
                if key not in ("method", "round")
            }
        place = self.path / "tensorboard" / method
        try:
            if method not in self._boards:
                self._boards[method] = tff.program.TensorBoardReleaseManager(place)
            _wait_for(self._boards[method].release(scalars, round_num))
        except (OSError, tf.errors.OpError) as error:
            raise RunStoppedError(
                f"{place} cannot be written: {' '.join(str(error).split())[:300]}"
            ) from error

    def last_row(self, method: str) -> Metrics:
        """Returns the row of a method's last round by now."""
        return next(row for row in reversed(self.rows) if row["method"] == method)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes down that the run is done, and what came of it.

        Args:
            result: For JSON; `self.result` has it from now on.

        Raises:
            RunStoppedError: If a file cannot be written; the run is not done then.
        """
        # Methods that went on from different rounds were recorded in another order
        # than those of an undisturbed run.
        methods = list(dict.fromkeys(row["method"] for row in self.rows))
        for name, columns in self._columns.items():
            self._files.pop(name).close()
            rows = self._read_rows(name)
            rows.sort(key=lambda row: (row["round"], methods.index(row["method"])))
            self.write_text(name, run_files.as_csv(columns, rows))
        self.write_text(run_files.DONE, json.dumps(result, indent=2) + "\n")
        for method in methods:
            self.checkpoints(method).clear()
        with contextlib.suppress(OSError):  # Unless something was put aside there.
            (self.path / _CHECKPOINTS).rmdir()
        self.close()

    def close(self) -> None:
        """Gives the folder back, for others to open; the end of the process does so."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write_text(self, name: str, text: str) -> None:
        """Writes a file, whole or not at all, see `files.write_text`."""
        files.write_text(self.path / name, text)

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
        """Writes arrays by name as an .npz file, whole or not at all.

        Raises:
            RunStoppedError: If it cannot be written.
        """
        with files.replacing(self.path / name) as temporary:
            files.write_npz(temporary, arrays)


def _wait_for(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Runs one of TFF's coroutines to its end.

    `asyncio.run` would leave the thread without an event loop, and TFF's synchronous
    functions ask for the one of the thread.
    """
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "nothing" if value is None else str(value)
