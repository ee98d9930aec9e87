"""Results folder: a run's results and their provenance."""

import contextlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
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
_KEY = ("method", "round")


class ResultsFolder:
    """The results folder of a run, which belongs to one set of flags.

    Files: `flags.txt` (a flagfile that repeats the run), `run.json` (flags, versions,
    git commit, machine), `data.json` (fingerprints of the data), `metrics.csv` (a row
    for each method and round, written as it is measured, with the same bytes in every
    repetition of the run), `speed.csv` (speed), `tensorboard/` (the same numbers as
    event files), `checkpoints/` (until the run is done), and `done.json` (then).
    """

    def __init__(
        self,
        path: str,
        flags: Mapping[str, str],
        columns: Sequence[str] = (),
        examples: str = "images",
    ):
        """Checks that the folder is free, or belongs to these flags. Writes nothing.

        Args:
            path: The folder; it need not exist.
            flags: The flags that decide the results, name to value.
            columns: Columns of metrics.csv after method and round, empty in a row where
                they were not measured.
            examples: See `training.train`.

        Raises:
            InvalidInputError: If the folder belongs to a run with other flags, holds
                something that is not a run, or is damaged; or if a flag cannot be
                written to a flagfile.
            RunStoppedError: If the folder cannot be read.
        """
        self.path = pathlib.Path(path)
        self._flags = dict(flags)
        self._flagfile = run_files.as_flagfile(flags)
        rate = f"{examples}_per_second"
        self._columns = {
            run_files.METRICS: (*_KEY, *columns),
            run_files.SPEED: (*_KEY, "round_seconds", rate, "evaluation_seconds"),
        }
        self._rows: dict[str, list[Metrics]] = {name: [] for name in self._columns}
        self._files: dict[str, files.AppendedFile] = {}
        self._order: list[str] = []
        self._boards: dict[str, tf.summary.SummaryWriter] = {}
        self._lock: files.Lock | None = None
        _check_flags(self.path, self._flags)

    @property
    def rows(self) -> list[Metrics]:
        """The current rows of metrics.csv, with parsed numbers."""
        return self._rows[run_files.METRICS]

    @property
    def result(self) -> dict[str, Any] | None:
        """The result that `finish` wrote; None if the run has not finished.

        Raises InvalidInputError if the file is damaged, or its metrics.csv is gone.
        """
        result = run_files.read_json(self.path / run_files.DONE)
        if result is not None and not (self.path / run_files.METRICS).exists():
            raise run_files.missing(self.path / run_files.METRICS)
        return result

    def summary(self, key: str) -> str | None:
        """Returns the text to print for a finished run, with this part of `result`."""
        if (result := self.result) is None:
            return None
        return f"Already done, nothing to run.\n{result[key]}"

    def open(self, data: Mapping[str, Any] | None = None) -> None:
        """Locks the folder for this process, and records its flags and data.

        Args:
            data: The fingerprint of each input by name, for JSON, such as {"data":
                {"clients": 99, ...}}. The folder must not have other data.

        Raises:
            InvalidInputError: If there can be no such folder, another process uses it,
                or its run has other data. Nothing is written then.
            RunStoppedError: If it cannot be written.
        """
        name = f"results_dir={self.path}"
        files.make_folder(self.path, name)
        with files.doing(name, "cannot be locked"):
            try:
                self._lock = files.Lock(self.path / _LOCK)
            except BlockingIOError as error:
                message = f"{name} is in use by another process."
                raise InvalidInputError(message) from error
        try:
            # Checked again: the previous owner of the lock may have written here.
            _check_flags(self.path, self._flags)
            if self.result is not None:
                what = "another process has just finished this run: repeat the command"
                raise InvalidInputError(f"{name}: {what} to see its result.")
            data = data or {}
            _check_data(self.path, data)
            self.write_text(run_files.FLAGS, self._flagfile)
            if data and not (self.path / run_files.DATA).exists():
                self._write_json(run_files.DATA, data)
        except BaseException:
            self.close()
            raise

    def _checkpoints(self, method: str) -> Checkpoints:
        folder = self.path / _CHECKPOINTS / method
        return Checkpoints(folder, before_save=self._sync_rows)

    def _sync_rows(self) -> None:
        for file in self._files.values():
            file.sync()

    def resume(
        self, runs: Sequence[Run], unit: str = "round"
    ) -> dict[str, Checkpoints]:
        """Resumes runs from their checkpoints, and starts to record.

        Args:
            runs: New runs; those with a checkpoint here resume from it.
            unit: The word for a round.

        Returns:
            The checkpoints, by name of the run.

        Raises:
            InvalidInputError: If files are damaged, see `start` and
                `Checkpoints.restore`.
            RunStoppedError: If a file cannot be read.
        """
        self._order = [run.name for run in runs]
        checkpoints = {run.name: self._checkpoints(run.name) for run in runs}
        for run in runs:
            restored = checkpoints[run.name].restore(run.state)
            if restored is not None:
                run.resume(*restored)
        self.start({run.name: run.round_num for run in runs if run.round_num})
        for run in runs:
            if run.round_num:
                print(f"{run.name}: resumes after {unit} {run.round_num}.", flush=True)
        return checkpoints

    def start(self, rounds_done: Mapping[str, int]) -> None:
        """Starts to record, after the rows that previous processes have recorded.

        Args:
            rounds_done: For each method that resumes from a checkpoint, the number of
                its completed rounds. Rows of later rounds, and of other methods, are
                dropped, since these rounds are repeated.

        Raises:
            InvalidInputError: If a row of a completed round is missing or damaged. The
                files are then unchanged.
        """
        rows = {name: self._kept_rows(name, rounds_done) for name in self._columns}
        before = run_files.read_json(self.path / run_files.RUN)
        self._write_json(run_files.RUN, provenance.describe(self._flags, before))
        for name, columns in self._columns.items():
            self.write_text(name, run_files.as_csv(columns, rows[name]))
            self._files[name] = files.AppendedFile(self.path / name)
        self._rows = rows

    def _kept_rows(self, name: str, rounds_done: Mapping[str, int]) -> list[Metrics]:
        path = self.path / name
        content = files.read_if_there(path)
        rows = [
            row
            for row in run_files.parse_rows(content, path, is_done=False)
            if row["round"] <= rounds_done.get(row["method"], -1)
        ]
        for method, done in rounds_done.items():
            found = [row["round"] for row in rows if row["method"] == method]
            if sorted(found) != [*range(done + 1)]:
                raise InvalidInputError(
                    f"{path}: expected the rounds 0 to {done} of {method}, as in its "
                    f"checkpoint; found {len(found)} rows. Restore the file, or remove "
                    "the results folder."
                )
        return rows

    def release(self, metrics: Metrics, speed: Metrics) -> None:
        """Records a round's rows of metrics and speed, in the files when this returns.

        Raises RunStoppedError if a file cannot be written; it has then no partial row.
        """
        for name, row in ((run_files.SPEED, speed), (run_files.METRICS, metrics)):
            text = run_files.as_csv(self._columns[name], [row], header=False)
            self._files[name].append(text)
            self._rows[name].append(row)
        method = metrics["method"]
        folder = self.path / "tensorboard" / method
        try:
            if method not in self._boards:
                self._boards[method] = tf.summary.create_file_writer(str(folder))
            with self._boards[method].as_default(metrics["round"]):
                for name, value in {**metrics, **speed}.items():
                    if name not in _KEY:
                        # Beyond float32 it is infinite there, and not an error.
                        tf.summary.scalar(name, np.float64(value))
            self._boards[method].flush()
        except (OSError, tf.errors.OpError) as error:
            why = files.error_text(error)[:300]
            raise RunStoppedError(f"{folder} cannot be written: {why}") from error

    def finish(self, result: Mapping[str, Any]) -> None:
        """Records that the run is done, and its result, for JSON.

        Raises RunStoppedError if a file cannot be written; the run is then not done.
        """
        # Methods that resumed from different rounds were recorded in another order than
        # in an uninterrupted run.
        recorded = (row["method"] for row in self.rows)
        methods = list(dict.fromkeys([*self._order, *recorded]))
        for name, columns in self._columns.items():
            self._files.pop(name).close()
            rows = sorted(
                self._rows[name],
                key=lambda row: (row["round"], methods.index(row["method"])),
            )
            self.write_text(name, run_files.as_csv(columns, rows))
        self._write_json(run_files.DONE, result)
        for method in methods:
            self._checkpoints(method).clear()
        with contextlib.suppress(OSError):  # Fails if damaged ones are kept there.
            (self.path / _CHECKPOINTS).rmdir()
        self.close()

    def close(self) -> None:
        """Unlocks the folder; the end of the process also does."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write_text(self, name: str, text: str) -> None:
        """Writes a file, whole or not at all, see `files.write_text`."""
        files.write_text(self.path / name, text)

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def write_weights(
        self, name: str, weights: tff.learning.models.ModelWeights
    ) -> None:
        """Writes a model as NumPy arrays phi_000, phi_001, ... and W ([n, d]).

        W may be a `models.ShardedMatrix`, which is not assembled in memory.
        """
        *phi, classifier = weights.trainable
        arrays = {f"phi_{i:03d}": p for i, p in enumerate(phi)}
        self.write_arrays(name, {**arrays, "W": classifier})

    def write_arrays(
        self, name: str, arrays: Mapping[str, np.ndarray | models.ShardedMatrix]
    ) -> None:
        """Writes an .npz file, whole or not at all; RunStoppedError if it cannot."""
        with files.replacing(self.path / name) as temporary:
            files.write_npz(temporary, arrays)


def _check_flags(folder: pathlib.Path, flags: Mapping[str, str]) -> None:
    """Checks that a folder is free, missing, or has the same flags.txt."""
    found, name = [], f"results_dir={folder}"
    with files.doing(name, "cannot be read"), contextlib.suppress(FileNotFoundError):
        found = os.listdir(folder)
    if (folder / run_files.FLAGS).exists():
        theirs = run_files.read_flags(folder / run_files.FLAGS)
        differences = [
            f"--{flag}={theirs.get(flag, '(unset)')} there, "
            f"--{flag}={flags.get(flag, '(unset)')} here"
            for flag in sorted({*theirs, *flags})
            if theirs.get(flag) != flags.get(flag)
        ]
        _refuse(name, "flags", differences)
    # A kill in the first write leaves a folder that belongs to no run.
    elif not {_LOCK, f".{run_files.FLAGS}.tmp"}.issuperset(found):
        what = f"holds files but no {run_files.FLAGS}: give an empty or a new folder"
        raise InvalidInputError(f"{name} {what}.")


def _check_data(folder: pathlib.Path, data: Mapping[str, Any]) -> None:
    """Checks that a folder has no data.json, or the same fingerprint of each input."""
    theirs = run_files.read_json(folder / run_files.DATA)
    if theirs is None:
        return
    differences = [
        f"{what}: {_shown(there.get(what))} there, {_shown(here.get(what))} here"
        for name in data
        for there, here in [(theirs.get(name) or {}, data[name])]
        for what in dict.fromkeys([*there, *here])
        if there.get(what) != here.get(what)
    ]
    _refuse(f"results_dir={folder}", "input", differences)


def _refuse(folder: str, what: str, differences: Sequence[str]) -> None:
    if differences:
        found = f"{folder} is of a run with other {what}: {'; '.join(differences)}"
        raise InvalidInputError(f"{found}. Give another folder.")


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "nothing" if value is None else str(value)
