"""Kills a training program, as a crash of the machine would, or as a user does."""

import os
import signal
import subprocess
import sys

import psutil

from tests import waiting


def kill_when(process, is_time):
    """Kills a program at a moment of its life."""
    waiting.wait_until(is_time, process, pause=0.001)
    process.kill()
    process.communicate()


def kill_after_a_checkpoint(module, name, flags, folder, rounds="?"):
    """Starts a program and kills it once it has saved one of its first rounds.

    `rounds` is a pattern of the round's number; by default one of the first ten.
    """
    command = [sys.executable, "-m", module, *flags, f"--results_dir={folder}"]
    pattern = f"checkpoints/{name}/round_{rounds}.npz"
    process = subprocess.Popen(command)
    kill_when(process, lambda: list(folder.glob(pattern)))
    assert not (folder / "done.json").exists()


def interrupt_when(command, is_time):
    """Presses Ctrl-C at a moment of a program's life, as in a terminal.

    Returns (exit code, stderr, all processes that it had started by then).
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=waiting.take_ctrl_c,
    ) as process:
        waiting.wait_until(is_time, process)
        everything = psutil.Process(process.pid).children(recursive=True)
        # All of a terminal's processes get it.
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=waiting.LIMIT)
    return process.returncode, errors, everything
