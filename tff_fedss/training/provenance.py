"""Provenance of results: the command, versions, commit and machine of a run."""

import hashlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_fedss

_ROOT = pathlib.Path(tff_fedss.__file__).parent.parent


def describe(
    flags: Mapping[str, str], before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describes a run by its deciding flags, for its run.json.

    It has the command, flags and their fingerprint, start, versions, commit and
    machine; for a resumed run those of its start, with a list of the resumptions.
    """
    if before is not None:
        again = {
            "command": _command(),
            "started": _now(),
            "git_commit": _git_commit(),
        }
        return {**before, "continued": [*before.get("continued", []), again]}
    text = json.dumps(dict(flags), sort_keys=True)
    return {
        "command": _command(),
        "flags": dict(flags),
        "fingerprint": hashlib.sha256(text.encode()).hexdigest(),
        "started": _now(),
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
            "gpus": [gpu.name for gpu in tf.config.get_visible_devices("GPU")],
        },
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _command() -> list[str]:
    """Returns the program, by its path in the project if possible, and arguments."""
    program, *arguments = sys.argv
    path = pathlib.Path(program)
    if path.is_relative_to(_ROOT):
        program = path.relative_to(_ROOT).as_posix()
    return [program, *arguments]


def _git_commit() -> str | None:
    """Returns the checkout's commit, with "+" if files differ; None if unknown."""
    try:
        commit, status = (
            subprocess.run(
                ["git", "-C", _ROOT, *arguments],
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            ).stdout.strip()
            for arguments in (
                ["rev-parse", "--show-prefix", "HEAD"],
                ["status", "--porcelain", "--untracked-files=no"],
            )
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if "\n" in commit:  # Of another repository, which has this folder within.
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
