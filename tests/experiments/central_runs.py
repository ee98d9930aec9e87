"""What tests of programs that train share."""

import csv
import json

from tests.experiments import killing

# Of a small federated training.
GLYPHS = (
    "--dataset=glyphs:num_classes=40",
    "--num_negatives=5",
    "--warm_start_epochs=0",
)


def rows_of(folder, name="metrics.csv"):
    """The rows of a CSV file."""
    with (folder / name).open() as file:
        return list(csv.DictReader(file))


def assert_explained(run, flags, folder, learned, metric):
    """The folder of a finished run has all files, and can be repeated from them."""
    names = {path.name for path in folder.iterdir()}
    assert {"metrics.csv", "speed.csv", "curves.png", "run.json", *learned} <= names
    assert "checkpoints" not in names
    done = json.loads((folder / "done.json").read_text())
    assert done[metric] == float(rows_of(folder)[-1][metric])
    assert_repeated(run, flags, folder, learned)


def assert_repeated(run, flags, folder, learned):
    """A run's flags.txt repeats it; its own command finds it done, others do not."""
    again = folder.with_name("again")
    run(f"--flagfile={folder / 'flags.txt'}", f"--results_dir={again}").ok()
    assert_same_bytes(folder, again, learned)
    output, _ = run(*flags, f"--results_dir={folder}").ok()
    assert "Already done, nothing to run." in output
    other = run(*flags, "--seed=7", f"--results_dir={folder}")
    other.refused("other flags: --seed=0 there, --seed=7 here")
    assert_same_bytes(folder, again, learned)


def assert_resumed(run, module, name, flags, folder, learned, rounds="?"):
    """A run that is killed ends with the bytes of one that is not."""
    whole, killed = folder / "whole", folder / "killed"
    run(*flags, f"--results_dir={whole}").ok()
    killing.kill_after_a_checkpoint(module, name, flags, killed, rounds)
    output, _ = run(*flags, f"--results_dir={killed}").ok()
    assert f"{name}: resumes after" in output
    assert_same_bytes(whole, killed, learned)


def assert_same_bytes(first, second, learned):
    """Two runs have measured and learned the same."""
    for name in ("metrics.csv", *learned):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def assert_refused(run, flags, message, folder, **options):
    """Bad input is one clear line, which is returned, and leaves no folder."""
    line = run(f"--results_dir={folder}", *flags).refused(message, **options)
    assert not folder.exists()
    return line
