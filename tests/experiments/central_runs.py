"""What the tests share of programs that train one thing centrally."""

import csv
import json

from tests.experiments import killing


def rows_of(folder):
    """The rows of metrics.csv."""
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def assert_explained(run, flags, folder, learned, metric):
    """The folder of a finished run has all files, and its flags.txt repeats it."""
    names = {path.name for path in folder.iterdir()}
    assert {"metrics.csv", "speed.csv", "curves.png", "run.json", *learned} <= names
    assert "checkpoints" not in names
    done = json.loads((folder / "done.json").read_text())
    assert done[metric] == float(rows_of(folder)[-1][metric])
    again = folder.with_name("again")
    code, _, errors = run(
        f"--flagfile={folder / 'flags.txt'}", f"--results_dir={again}"
    )
    assert code == 0, errors
    assert_same_bytes(folder, again, learned)
    code, output, _ = run(*flags, f"--results_dir={folder}")
    assert code == 0 and "Already done, nothing to run." in output
    code, _, errors = run(*flags, "--seed=7", f"--results_dir={folder}")
    assert code == 2 and "--seed=0 there, --seed=7 here" in errors


def assert_resumed(run, module, name, flags, folder, learned, rounds="?"):
    """A run that is killed ends with the bytes of one that is not."""
    whole, killed = folder / "whole", folder / "killed"
    code, _, errors = run(*flags, f"--results_dir={whole}")
    assert code == 0, errors
    killing.kill_after_a_checkpoint(module, name, flags, killed, rounds)
    code, output, errors = run(*flags, f"--results_dir={killed}")
    assert code == 0, errors
    assert f"{name}: resumes after" in output
    assert_same_bytes(whole, killed, learned)


def assert_same_bytes(first, second, learned):
    """Two runs have measured and learned the same."""
    for name in ("metrics.csv", *learned):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def assert_refused(run, flags, message, folder):
    """Bad input is one clear line, and leaves no folder."""
    code, _, errors = run(f"--results_dir={folder}", *flags)
    assert code == 2, errors
    assert errors.count("\n") == 1 and message in errors
    assert not folder.exists()
