"""Kills a training program, as a crash of the machine would."""

import subprocess
import sys
import time


def kill_after_a_checkpoint(module, name, flags, folder, seconds):
    """Starts a program and kills it once it has saved one of its first ten rounds.

    Args:
        module: The program, as `python -m` takes it.
        name: Of the run that saves.
        flags: Of the program, without its results folder.
        folder: The results folder.
        seconds: How long it may take to get there.
    """
    command = [sys.executable, "-m", module, *flags, f"--results_dir={folder}"]
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + seconds
        while not list(folder.glob(f"checkpoints/{name}/round_?")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    assert not (folder / "done.json").exists()
