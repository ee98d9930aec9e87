import functools
import signal

import numpy as np
import pytest
from matplotlib import pyplot as plt

from experiments.common import program
from experiments.fedss import train


@pytest.fixture
def run_program(capsys):
    """Runs a program in this process: module, flags -> (exit code, stdout, stderr)."""

    def run(module, *flags, **options):
        handler = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as end:
            program.run(
                module.main, module.Config(), [module.__name__, *flags], **options
            )
        signal.signal(signal.SIGTERM, handler)
        return (end.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def run_train(run_program):
    """Runs `train` in this process: flags -> (exit code, stdout, stderr)."""
    return functools.partial(run_program, train)


@pytest.fixture(scope="module")
def run(request, server):
    """Runs a module's PROGRAM in a process: flags -> (exit code, stdout, stderr)."""
    return functools.partial(server.run, request.module.PROGRAM)


@pytest.fixture
def drawn(monkeypatch):
    """Keeps the panels of the figures that are drawn."""
    panels = []
    subplots = plt.subplots

    def spy(*args, **kwargs):
        figure, axes = subplots(*args, **kwargs)
        panels.extend(np.ravel(axes))
        return figure, axes

    monkeypatch.setattr(plt, "subplots", spy)
    return panels
