"""Checks that a results folder is free, or belongs to the same run."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import run_files

LOCK = ".lock"


def check_flags(folder: pathlib.Path, flags: Mapping[str, str]) -> None:
    """Checks that a folder is free, or has the same flags.txt.

    Args:
        folder: It need not exist.
        flags: Name to value of all flags that decide the results.

    Raises:
        InvalidInputError: If it has other flags, holds something that is not a run, is
            a file, or its flags.txt is damaged.
        RunStoppedError: If it cannot be read.
    """
    name = f"results_dir={folder}"
    try:
        found = os.listdir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise files.io_error(error, name, "cannot be read") from error
    if (folder / run_files.FLAGS).exists():
        theirs = run_files.read_flags(folder / run_files.FLAGS)
        differences = [
            f"--{flag}={theirs.get(flag, '(unset)')} there, "
            f"--{flag}={flags.get(flag, '(unset)')} here"
            for flag in sorted({*theirs, *flags})
            if theirs.get(flag) != flags.get(flag)
        ]
        if differences:
            raise InvalidInputError(
                f"{name} belongs to a run with other flags: {'; '.join(differences)}. "
                "Name another folder, or remove it."
            )
    # What a kill in the very first write leaves is no one's.
    elif not {LOCK, f".{run_files.FLAGS}.tmp"}.issuperset(found):
        raise InvalidInputError(
            f"{name} holds files but no {run_files.FLAGS}, so it is not a run's "
            "folder. Name an empty or a new one."
        )


def check_data(folder: pathlib.Path, data: Mapping[str, Any]) -> None:
    """Checks that a folder has no data.json, or the same.

    Args:
        folder: Of the run.
        data: A fingerprint by the name of each input.

    Raises:
        InvalidInputError: If they differ, or data.json is damaged.
        RunStoppedError: If it cannot be read.
    """
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
    if differences:
        raise InvalidInputError(
            f"results_dir={folder} is of a run with other input: "
            f"{'; '.join(differences)}. Bring back what it had, or name another folder."
        )


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "nothing" if value is None else str(value)
