"""What the tests of faults share: the process of programs, places, the summary."""

import os
import pathlib
import shutil
import tempfile

import pytest

from tests.experiments import program_server
from tests.faults import harness

_HERE = "tests/faults/"


def pytest_collection_modifyitems(items):
    for item in items:
        if pathlib.Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter):
    """Says how many cases were tried and how many failed, over all processes."""
    if not terminalreporter.config.getoption("--slow"):
        return
    ids = {
        outcome: {
            report.nodeid
            for report in terminalreporter.getreports(outcome)
            if _HERE in getattr(report, "nodeid", "")
        }
        for outcome in ("passed", "failed", "error", "skipped")
    }
    failed = ids["failed"] | ids["error"]
    tried = ids["passed"] | failed
    skipped = len(ids["skipped"] - tried)
    terminalreporter.write_sep("=", "faults")
    terminalreporter.write_line(
        f"tried {len(tried)} / failed {len(failed)}"
        + (f" / skipped {skipped}, see -rs" if skipped else "")
    )


@pytest.fixture(scope="session")
def server():
    """A process that runs any program."""
    server = program_server.Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def _templates():
    # Not pytest's folder: another user cannot enter that.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tff_fedss_faults_"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def templates(server, _templates):
    """Undisturbed, stopped and finished runs of each program, made when asked for."""
    return harness.Templates(server, _templates)


@pytest.fixture
def place(server, templates):
    """A folder of its own for a case, that other users can enter, too."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tff_fedss_fault_"))
    folder.chmod(0o755)
    place = harness.Place(folder, server, templates)
    yield place
    place.unmount()
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink() and os.geteuid():
            path.chmod(0o755)
    shutil.rmtree(folder)
