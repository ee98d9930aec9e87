import functools

import numpy as np
import pytest
from matplotlib import pyplot as plt

from experiments.common import plots
from experiments.fedss import train


@pytest.fixture
def run_train(run_program):
    """Runs `train` in this process: flags -> an `Outcome`."""
    return functools.partial(run_program, train)


@pytest.fixture
def run_here(request, run_program):
    """Runs a module's HERE in this process: flags -> an `Outcome`."""
    return functools.partial(run_program, request.module.HERE)


@pytest.fixture(scope="module")
def run(request, server):
    """Runs a module's PROGRAM in a process: flags -> an `Outcome`."""
    return functools.partial(server.run, request.module.PROGRAM)


@pytest.fixture
def undrawn(monkeypatch):
    """Leaves figures empty: their numbers are the table's, and drawing takes long."""
    monkeypatch.setattr(plots, "draw_panel", lambda axes, panel: None)


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
