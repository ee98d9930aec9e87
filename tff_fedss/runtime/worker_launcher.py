"""A launcher of TFF's worker binary, which ends it with the program that started it.

Run as `python worker_launcher.py PARENT_PID WORKER_BINARY [ARG ...]`. The kernel kills
the worker as soon as its parent has ended, in any way: SIGKILL prevents other ways to
clean up. This is a separate program because the request must be made in the child, and
running Python code between fork and exec is unsafe in a parent with threads, such as
every TensorFlow program.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Asks the kernel for the parent's death signal and becomes the worker."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It died before the request, so no signal will come.
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
