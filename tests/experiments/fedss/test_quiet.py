"""No warning of TensorFlow's or TFF's in the output of a program."""

import subprocess
import sys

import pytest

from tests.datasets.images import own_images


def output_of(module, *flags):
    outcome = subprocess.run(
        [sys.executable, "-P", "-m", module, *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout[-2000:]
    return outcome.stdout
