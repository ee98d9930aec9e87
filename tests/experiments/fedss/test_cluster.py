"""Whole runs on a cluster: the same bytes on any."""

import pytest

from tests import waiting
from tests.experiments import central_runs, program_server
from tests.experiments.killing import interrupt_when, kill_after_a_checkpoint
from tests.runtime.test_cluster import RAY_FOLDER

pytest.importorskip("ray")

pytestmark = pytest.mark.slow
METHODS = ("fedss", "fedaws", "full_softmax")
WEIGHTS = [f"{name}.npz" for name in METHODS]
FLAGS = (
    "--dataset=omniglot",
    f"--methods={','.join(METHODS)}",
    "--num_negatives=20",
    # Three parts, the last one short.
    "--clients_per_round=19",
    "--rounds=4",
    "--warm_start_epochs=0",
    "--rounds_per_evaluation=2",
    "--rounds_per_checkpoint=1",
)


@pytest.fixture
def flags(test_data, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", RAY_FOLDER)
    return (*FLAGS, f"--data_dir={test_data / 'omniglot28'}")


def compare(*flags):
    _, errors = program_server.run_alone("experiments.fedss.compare", *flags).ok()
    return errors


def test_any_number_of_actors_gives_the_same_bytes(flags, tmp_path, monkeypatch):
    two, here = tmp_path / "2", tmp_path / "here"
    for actors in (2, 1, 3):
        folder = tmp_path / str(actors)
        where = ("--cluster=local", f"--actors={actors}")
        errors = compare(*flags, *where, f"--results_dir={folder}")
        assert "cannot read" not in errors  # The actors have the data themselves.
        central_runs.assert_same_bytes(folder, two, WEIGHTS)
    # One process adds in the same order; an operation there gets a thread, too.
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    compare(*flags, f"--results_dir={here}")
    for name in WEIGHTS:
        assert (here / name).read_bytes() == (two / name).read_bytes(), name
    # So does the evaluation, which is the training process's own on a cluster, too.
    rows = map(central_runs.rows_of, (here, two))
    for row, theirs in zip(*rows, strict=True):
        cosines = [float(r.pop("mean_cosine") or 0) for r in (row, theirs)]
        assert cosines[0] == pytest.approx(cosines[1], rel=1e-9)
        assert row == theirs
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS")
    # A run that was killed resumes on another number of actors.
    folder = tmp_path / "killed"
    module = "experiments.fedss.compare"
    where = ("--cluster=local", "--actors=2")
    kill_after_a_checkpoint(module, "fedss", (*flags, *where), folder)
    errors = compare(*flags, "--cluster=local", "--actors=1", f"--results_dir={folder}")
    central_runs.assert_same_bytes(folder, two, WEIGHTS)


def test_ctrl_c_ends_a_run_and_its_actors(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", RAY_FOLDER)
    flags = (
        *central_runs.GLYPHS,
        "--clients_per_round=2",
        "--rounds=100000",
        "--rounds_per_checkpoint=1",
        "--cluster=local",
        "--actors=1",
        f"--results_dir={tmp_path}",
    )
    checkpoints = tmp_path / "checkpoints" / "fedss"
    code, errors, everything = interrupt_when(
        program_server.command("experiments.fedss.train", flags),
        lambda: list(checkpoints.glob("round_*.npz")),
    )
    assert len(everything) > 2  # Ray's and the actor.
    assert code == 130, errors
    assert errors.endswith("\nInterrupted.\n") and "Traceback" not in errors, errors
    assert "Lost an actor" not in errors, errors
    waiting.wait_until(lambda: not any(map(waiting.is_alive, everything)))
