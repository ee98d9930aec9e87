"""Waiting for what happens soon on an idle machine, and later on a busy one."""

import time

# In seconds: no test passes or fails by how long anything takes, unless it never ends.
LIMIT = 600


def wait_until(condition, process=None):
    """Waits for a condition.

    Args:
        condition: Returns whether it is fulfilled; asked again and again.
        process: A `subprocess.Popen` that must not end meanwhile, or None.
    """
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert process is None or process.poll() is None, "The process has ended."
        assert time.monotonic() < deadline, f"Not within {LIMIT} s."
        time.sleep(0.02)
