"""Twenty kills of each program at random moments: the bytes of an undisturbed run."""

import pytest

from tests.faults import killing, programs

# Twenty kills: four after a start, four in a checkpoint, twelve in the rounds.
KINDS = [*("start", "round", "checkpoint", "round", "round") * 4]

# Long enough for so many kills: flags after the usual ones.
_LONG = {
    "train": ["--rounds=800"],
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
    flags += _LONG[program]
    undisturbed, killed = place.root / "undisturbed", place.root / "killed"
    log = place.root / "output.txt"
    options = {"cwd": place.root, "log": log}
    assert killing.attempt(known.module, flags, undisturbed, **options) == 0
    killing.kill_repeatedly(
        known.module,
        flags,
        killed,
        **options,
        kinds=KINDS,
        max_seconds=0.8,
    )
    code = killing.attempt(known.module, flags, killed, **options)
    said = log.read_text(errors="replace")
    assert code == 0 and "Traceback" not in said, said[-2000:]
    names = ["metrics.csv", *sorted(path.name for path in undisturbed.glob("*.npz"))]
    assert len(names) > 1
    for name in names:
        assert (killed / name).read_bytes() == (undisturbed / name).read_bytes(), name
