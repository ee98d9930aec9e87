import json
import re
import shutil
import subprocess

import pytest

from experiments.common import config, jobs
from experiments.fedss import run_config, train, tune
from tests.experiments import central_runs, killing, program_server, run_folders
from tff_fedss.training import run_files

HERE = tune
SMALL = (
    *central_runs.GLYPHS,
    "--clients_per_round=2",
    "--rounds=3",
    "--rounds_per_evaluation=3",
    "--rounds_per_checkpoint=1",
    "--validation_share=0.25",
)


@pytest.fixture
def made_up(monkeypatch):
    """Lets runs end at once: percent by rate, or the last line of the log."""
    begun = []

    def run_all(some, *_):
        for job in some:
            if job.is_done:
                continue
            begun.append(job.name)
            flags = flags_of(job)
            end = ends[float(flags["client_learning_rate"])]
            folder = run_folders.write_run(
                job.folder.parents[1],
                job.folder.parent.name,
                int(flags["seed"]),
                end if isinstance(end, float) else 1.0,
                rounds_done=None if isinstance(end, float) else 1,
                flags=flags,
            )
            (folder / "data.json").write_text('{"data": {"test images": 400}}')
            if not isinstance(end, float):
                job.log.write_text(f"phi: small_cnn\n{end}\n")
                job.exit_code = 1

    ends = {}
    monkeypatch.setattr(jobs, "run_all", run_all)
    return ends, begun


def flags_of(job):
    """All flags with which a job begins."""
    given = config.parse(train.Config(), *job.command[3:])
    return run_config.with_defaults(given).deciding()


DIVERGED = "error: fedss has diverged in round 2: a weight is not finite."


def test_each_rate_and_m_has_an_ordinary_run(run_here, made_up, tmp_path):
    ends, begun = made_up
    ends |= {0.1: 50.0, 0.3: 60.0}
    output, _ = run_here(
        "--client_learning_rates=0.3,0.1",
        "--num_negatives_grid=10,5",
        "--dataset=glyphs:num_classes=40",
        "--seed=7",
        f"--results_dir={tmp_path}",
    ).ok()
    names = [f"m{m}_rate_{rate}" for m in (5, 10) for rate in (0.1, 0.3)]
    assert begun == [f"{name} seed 7" for name in names]
    for name in names:
        flags = run_files.read_flags(tmp_path / name / "seed7" / "flags.txt")
        assert name == f"m{flags['num_negatives']}_rate_{flags['client_learning_rate']}"
        assert flags["on_validation"] == "true" and flags["validation_share"] == "0.1"
        # A quarter of those of glyphs.
        assert flags["rounds"] == "25"
        # What `train` would have.
        assert flags["clients_per_round"] == "16" and flags["method"] == "fedss"
    assert "Taken: --client_learning_rate=0.3 --num_negatives=5" in output


def test_runs_of_another_search_are_not_taken(run_here, made_up, tmp_path):
    ends, begun = made_up
    ends |= {0.1: 50.0, 0.3: 60.0}
    flags = (*SMALL, f"--results_dir={tmp_path}", "--client_learning_rates=0.1")
    run_here("--method=neg_only", *flags).ok()
    code, _, errors = run_here(*flags)
    assert code == 2 and "--method=neg_only there, --method=fedss here" in errors
    # More rates are more of the same search.
    more = (*flags[:-1], "--client_learning_rates=0.1,0.3")
    run_here("--method=neg_only", *more).ok()
    assert len(begun) == 2


def test_a_diverged_run_counts_and_is_not_begun_again(run_here, made_up, tmp_path):
    ends, begun = made_up
    ends |= {0.1: 50.0, 0.3: 60.0, 1.0: DIVERGED}
    flags = (*SMALL, "--client_learning_rates=0.1,0.3,1", f"--results_dir={tmp_path}")
    for _ in range(2):
        output, _ = run_here(*flags).ok()
        assert re.search(r"\| rate_1.0 +\| +0/1 \| +- \|", output)
        assert "Taken: --client_learning_rate=0.3" in output
        assert len(begun) == 3


def test_all_diverged_is_an_error(run_here, made_up, tmp_path):
    ends, _ = made_up
    ends |= {0.1: DIVERGED, 1.0: DIVERGED}
    code, output, errors = run_here(
        *SMALL, "--client_learning_rates=0.1,1", f"--results_dir={tmp_path}"
    )
    assert code == 1
    assert "all runs have diverged: give smaller --client_learning_rates" in errors
    assert output.startswith("0 of 2 runs are done.")
    assert not (tmp_path / "tuned.flags").exists()


def test_another_failure_is_no_divergence(run_here, made_up, tmp_path):
    ends, begun = made_up
    ends |= {0.1: 50.0, 0.3: "error: No space left on device."}
    flags = (*SMALL, "--client_learning_rates=0.1,0.3", f"--results_dir={tmp_path}")
    code, output, errors = run_here(*flags)
    assert code == 1
    assert "FAILED: rate_0.3 seed 0" in errors and "No space left" in errors
    assert "1 of 2 runs have failed, and not by diverging" in errors
    assert not (tmp_path / "tuned.flags").exists()
    # The same command tries it again, and only that.
    shutil.rmtree(tmp_path / "rate_0.3")
    ends[0.3] = 60.0
    output, _ = run_here(*flags).ok()
    assert begun == ["rate_0.1 seed 0", "rate_0.3 seed 0", "rate_0.3 seed 0"]
    assert "Taken: --client_learning_rate=0.3" in output


def test_the_highest_metric_is_taken(run_here, made_up, tmp_path):
    ends, _ = made_up
    ends |= {0.01: 40.0, 0.03: 61.0, 0.1: 50.0}
    flags = (*SMALL, "--client_learning_rates=0.1,0.01,0.03")
    output, _ = run_here(*flags, f"--results_dir={tmp_path}").ok()
    # sqrt(0.61 * 0.39 / 400)
    taken = "Taken: --client_learning_rate=0.03, the highest top-1 %: 61.00, with a "
    assert taken + "standard error of 2.44 on 400 images" in output
    assert "Before training: top-1 % " in output and "rate_0.01 +" in output
    assert (tmp_path / "tuning.md").read_text() in output
    flags = run_files.read_flags(tmp_path / "tuned.flags")
    assert flags == {"client_learning_rate": "0.03"}
    percents = [
        100 * float(row["top1"]) for row in central_runs.rows_of(tmp_path, "tuning.csv")
    ]
    assert percents == pytest.approx([40.0, 61.0, 50.0], abs=1e-9)
    assert (tmp_path / "tuning.png").read_bytes()[:4] == b"\x89PNG"


def test_where_nothing_gains_it_says_not_to_train(run_here, made_up, tmp_path):
    ends, _ = made_up
    ends |= {0.01: 40.0, 0.03: 61.0}
    flags = (*SMALL, "--client_learning_rates=0.01,0.03", f"--results_dir={tmp_path}")
    run_here(*flags).ok()
    for path in tmp_path.glob("*/*/metrics.csv"):
        start = "\nfedss,0,0.0,"
        assert start in path.read_text()
        path.write_text(path.read_text().replace(start, "\nfedss,0,0.9,"))
    output, _ = run_here(*flags).ok()
    assert "Gain in points: rate_0.01 -50.0; rate_0.03 -29.0." in output
    assert "Do not train with these flags: no run ends above the start." in output


def test_of_equal_ones_the_first_is_taken(run_here, made_up, tmp_path):
    ends, _ = made_up
    ends |= {0.01: 50.0, 0.1: 50.0}
    grids = ("--client_learning_rates=0.1,0.01", "--num_negatives_grid=10,5")
    small = [flag for flag in SMALL if "negatives" not in flag]
    run_here(*small, *grids, f"--results_dir={tmp_path}").ok()
    assert run_files.read_flags(tmp_path / "tuned.flags") == {
        "client_learning_rate": "0.01",
        "num_negatives": "5",
    }


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--client_learning_rates=0"], "--client_learning_rates=0: expected"),
        (["--num_negatives_grid=2.5"], "--num_negatives_grid=2.5: expected"),
        (["--num_negatives_grid=5", "--num_negatives=5"], "give one of them"),
        (["--num_negatives_grid=5", "--method=pos_only"], "draws no negatives"),
        # Searched, or always so.
        (["--client_learning_rate=0.1"], "client_learning_rate"),
        (["--noon_validation"], "on_validation"),
        (["--validation_share=0"], "--validation_share=0"),
    ],
)
def test_bad_flags_are_refused_before_anything_is_written(
    run_here, tmp_path, flags, message
):
    central_runs.assert_refused(run_here, flags, message, tmp_path / "new")


@pytest.mark.slow
def test_a_killed_search_resumes_to_the_same_choice(tmp_path):
    """And `train` takes what was chosen."""
    unbroken, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    module = "experiments.fedss.tune"
    flags = (*SMALL, "--client_learning_rates=0.1,0.3,1e30")
    resumed = (*flags, f"--results_dir={killed}")
    program_server.run_alone(module, *flags, f"--results_dir={unbroken}").ok()
    with subprocess.Popen(program_server.command(module, resumed)) as process:
        killing.kill_when(
            process,
            lambda: list(killed.glob("rate_0.1/seed0/checkpoints/fedss/round_?.npz")),
        )
    assert not (killed / "tuned.flags").exists()
    program_server.run_alone(module, *resumed).ok()
    for name in ("tuned.flags", "rate_0.1/seed0/metrics.csv"):
        assert (killed / name).read_bytes() == (unbroken / name).read_bytes(), name
    rows = central_runs.rows_of(killed, "tuning.csv")
    assert [row["is_done"] for row in rows] == ["True", "True", "False"]
    taken = max(rows, key=lambda row: float(row["top1"] or 0))
    program_server.run_alone(
        "experiments.fedss.train",
        *SMALL,
        f"--flagfile={killed / 'tuned.flags'}",
        f"--results_dir={tmp_path / 'run'}",
    ).ok()
    flags = run_files.read_flags(tmp_path / "run" / "flags.txt")
    assert f"rate {flags['client_learning_rate']}" == taken["row"]
    # On the test now, and the validation clients stay apart as they were asked to.
    data = json.loads((tmp_path / "run" / "data.json").read_text())["data"]
    assert data["measured on"] == "the test"
