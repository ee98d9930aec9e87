"""What the tests of faults share: runs to begin with, and places."""

import os
import pathlib
import shutil
import tempfile

import pytest

from tests.faults import harness

_HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def templates(server):
    """Initial, stopped and finished runs of each program, made on request."""
    # Not pytest's folder: another user cannot enter that.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tff_fedss_faults_"))
    folder.chmod(0o755)
    yield harness.Templates(server, folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def place(server, templates):
    """A folder of its own for a case, that other users can enter, too."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tff_fedss_fault_"))
    folder.chmod(0o755)
    place = harness.Place(folder, server, templates)
    yield place
    place.unmount()
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and os.geteuid():
            path.chmod(0o755)
    shutil.rmtree(folder)
