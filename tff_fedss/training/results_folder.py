"""The folder that a run leaves behind, and that explains it years later."""

import csv
import json
import os
import pathlib
import platform
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_fedss
from tff_fedss.errors import InvalidInputError
from tff_fedss.training.loop import Metrics

_FLAGS = "flags.txt"

# All columns of metrics.csv: a row leaves those empty that were not measured.
_COLUMNS = (
    "method",
    "round",
    "loss",
    "accuracy",
    "top1",
    "map_at_10",
    "num_examples",
    "num_clients",
    "classes_per_client",
    "positives_per_client",
    "rejected_clients",
    "round_seconds",
    "evaluation_seconds",
)


class ResultsFolder:
    """A folder that belongs to one set of flags.

    Files: `flags.txt` (a flagfile that repeats the run), `versions.json`,
    `metrics.csv` (a row per method and round, written as it is measured).

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: str, flags: Mapping[str, str]):
        """Checks that the folder is free, or belongs to these flags. Writes nothing.

        Args:
            path: The folder; it need not exist.
            flags: Name to value of all flags that decide the results.

        Raises:
            InvalidInputError: If the folder belongs to a run with other flags, or holds
                something that is not a run.
        """
        self.path = pathlib.Path(path)
        self._flags = dict(flags)
        self._csv: Any = None
        self._writer: csv.DictWriter | None = None
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

    def open(self) -> None:
        """Creates the folder and starts its files anew.

        Raises:
            InvalidInputError: If the folder cannot be created.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInputError(
                f"--results_dir={self.path} cannot be created: {error.strerror}."
            ) from error
        self.write_text(
            _FLAGS,
            "".join(f"--{name}={value}\n" for name, value in self._flags.items()),
        )
        self.write_text("versions.json", json.dumps(_versions(), indent=2) + "\n")
        self._csv = open(self.path / "metrics.csv", "w", newline="")  # noqa: SIM115
        self._writer = csv.DictWriter(self._csv, _COLUMNS)
        self._writer.writeheader()

    def release(self, metrics: Metrics) -> None:
        """Appends a row to metrics.csv. It is on disk when this returns.

        Args:
            metrics: From `train`.
        """
        self._writer.writerow(metrics)
        self._csv.flush()

    def write_text(self, name: str, text: str) -> None:
        """Writes a file, whole or not at all."""
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(text)
        os.replace(temporary, self.path / name)

    def write_weights(
        self, name: str, weights: tff.learning.models.ModelWeights
    ) -> None:
        """Writes a model as NumPy arrays phi_000, phi_001, ... and W ([n, d])."""
        *phi, classifier = weights.trainable
        arrays = {f"phi_{i:03d}": np.asarray(p) for i, p in enumerate(phi)}
        temporary = self.path / f".{name}.tmp.npz"
        np.savez(temporary, **arrays, W=np.asarray(classifier))
        os.replace(temporary, self.path / name)


def _parse_flagfile(text: str) -> dict[str, str]:
    pairs = (line[2:].partition("=") for line in text.splitlines() if line[:2] == "--")
    return {name: value for name, _, value in pairs}


def _versions() -> dict[str, Any]:
    return {
        "tff_fedss": tff_fedss.__version__,
        "tensorflow": tf.__version__,
        "tensorflow_federated": tff.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "command": sys.argv,
    }
