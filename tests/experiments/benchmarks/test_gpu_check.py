"""The check of GPUs: what it looks at here, and what it says of the rest."""

import json
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from experiments.benchmarks import gpu_check, small_runs
from tests.experiments import program_server


def config(tmp_path, *parts):
    return gpu_check.Config(output=str(tmp_path / "new" / "x.json"), parts=parts)


def test_without_a_gpu_it_says_so_and_ends_well(tmp_path, capsys):
    gpu_check.main(config(tmp_path, "machine"))
    printed = capsys.readouterr().out
    assert "[1/1] machine: devices, driver and libraries ... done" in printed
    assert "NOT checked: anything on a GPU" in printed
    assert "NOT checked: --parts=speed" in printed
    told = json.loads((tmp_path / "new" / "x.json").read_text())
    assert told["device"].startswith("CPU")
    assert told["versions"]["tensorflow"] == tf.__version__
    (check,) = told["checks"]
    assert check["found"]["gpus"] == 0 and check["error"] is None
    assert len(told["not_checked"]) == len(gpu_check.PARTS)


def test_a_check_that_fails_stops_no_other(tmp_path, monkeypatch, capsys):
    def fail():
        raise ValueError("no such kernel")

    operations = {
        "a sum": lambda: lambda: [tf.constant(1.0)],
        "a hole": lambda: fail,
        "a draw": lambda: lambda: [tf.constant(next(draws))],
    }
    draws = iter([1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(gpu_check, "_OPERATIONS", operations)
    with pytest.raises(SystemExit) as end:
        gpu_check.main(config(tmp_path, "operations"))
    assert end.value.code == 1
    checks = json.loads((tmp_path / "new" / "x.json").read_text())["checks"]
    assert [check["ok"] for check in checks] == [True, False, False]
    assert "ValueError: no such kernel" in checks[1]["error"]
    assert checks[2]["found"]["difference"] > 0.1
    errors = capsys.readouterr().err
    assert "FAILED: operations, a hole: ValueError: no such kernel" in errors
    assert "a draw" in errors and "a sum" not in errors


def rounds(*values):
    return [[np.float32([value, 1.0 + value])] for value in values]


@pytest.mark.parametrize(
    "theirs, ours, exact, is_right",
    [
        (rounds(0, 1), rounds(0, 1, 2, 3), True, True),
        (rounds(0, 1), rounds(0, 1.00001, 2, 3), True, True),
        (rounds(0, 1), rounds(0, 1.01, 2, 3), True, False),
        (rounds(0, 1), rounds(0, 1.01, 2, 3), False, True),  # TF32, say.
        (rounds(0, 1), rounds(0, 1, 2, np.nan), False, False),
        (rounds(0, 1), rounds(0, 1, 2, 0), True, False),  # Nothing has moved.
    ],
)
def test_what_counts_as_right(monkeypatch, theirs, ours, exact, is_right):
    monkeypatch.setattr(
        gpu_check, "_run", lambda name, device, **_: theirs if "CPU" in device else ours
    )
    ok, found = gpu_check._trains("fedss", "GPU:0", exact)
    assert ok == is_right
    json.dumps(found)


def test_a_small_run_is_the_same_each_time():
    first, second = (small_runs.central("centralized", "CPU:0") for _ in range(2))
    assert len(first) == 1 + small_runs.ROUNDS
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert all((a != b).any() for a, b in zip(first[0], first[-1], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--nodeterministic", "--deterministic"])
def test_everything_passes_on_logical_devices(tmp_path, flag):
    flags = (f"--output={tmp_path / 'x.json'}", "--models=cnn", "--rounds=1", flag)
    command = program_server.command("experiments.benchmarks.gpu_check", flags)
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    checks = json.loads((tmp_path / "x.json").read_text())["checks"]
    names = {check["name"] for check in checks if check["part"] == "algorithms"}
    assert names == {*small_runs.FEDERATED, *small_runs.CENTRAL}
    # The second logical device computes what the first one does.
    assert {c["found"]["difference"] for c in checks if c["name"] in names} == {0.0}
