"""Twenty kills of each program at random moments: the bytes of an undisturbed run."""

import re
import subprocess

import pytest

from tests.experiments import program_server
from tests.faults import processes, programs

KILLS = 20

# Long enough for so many kills: flags after the usual ones.
_LONG = {
    "train": ["--rounds=400"],
    "rf_softmax": ["--rounds=1500", "--rounds_per_evaluation=50"],
    "partial_fc": ["--rounds=600", "--rounds_per_evaluation=50", "--num_devices=2"],
    "leap": ["--rounds=600", "--rounds_per_evaluation=50"],
    "moco": ["--epochs=250", "--epochs_per_evaluation=50"],
}


@pytest.mark.parametrize("program", programs.TRAINING)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(program, place):
    place.begin(program, "new")
    known = programs.PROGRAMS[program]
    flags = [flag for flag in known.flags if not flag.startswith("--results_dir")]
    command = program_server.command(
        "experiments.common.check_resume",
        [
            f"--program={program}",
            f"--results_dir={place.root / 'resume'}",
            f"--kills={KILLS}",
            "--max_seconds=1.5",
            "--in_checkpoint=0.3",
            "--",
            *flags,
            *_LONG[program],
        ],
    )
    with open(place.root / "output.txt", "w") as output:
        outcome = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=place.root,
            timeout=6 * processes.SECONDS,
        )
    said = (place.root / "output.txt").read_text()
    log = place.root / "resume/killed.log"
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    assert outcome.returncode == 0, said + tail
    assert f"THE SAME after {KILLS} kills: metrics.csv, " in said, said + tail
    assert len(re.findall(r"kill +\d+, in a checkpoint", said)) >= 2, said
    assert len(re.findall(r"s after the start", said)) >= 1, said
    assert "Traceback" not in tail
