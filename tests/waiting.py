"""Waiting for what happens soon on an idle machine, and later on a busy one."""

import signal
import time

import psutil

# In seconds: no test passes or fails by how long anything takes, unless it never ends.
LIMIT = 600


def wait_until(condition, process=None, pause=0.02):
    """Waits for a condition.

    Args:
        condition: Returns whether it is fulfilled; asked again and again.
        process: A `subprocess.Popen` that must not end meanwhile, or None.
        pause: Seconds between two questions.
    """
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert process is None or process.poll() is None, "The process has ended."
        assert time.monotonic() < deadline, f"Not within {LIMIT} s."
        time.sleep(pause)


def is_alive(process, name=""):
    """Whether a `psutil.Process` runs, and has `name` in its name."""
    try:
        return (
            name in process.name()
            and process.is_running()
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return False


def take_ctrl_c():
    """For preexec_fn: a shell starts what runs in the background with it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
