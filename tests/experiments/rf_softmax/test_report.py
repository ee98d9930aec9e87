import csv

import pytest

from experiments.common import archive
from experiments.rf_softmax import report as rf_softmax_report
from tests.experiments import run_folders
from tff_fedss.errors import InvalidInputError

PRECISION = {f"precision_at_{k}": 0.5 / k for k in (1, 3, 5)}


def write_run(folder, sampler, rows, flags=None, **options):
    flags = {"sampler": sampler, **(flags or {})}
    return run_folders.write_own_run(
        folder / sampler, "rf_softmax", flags["sampler"], rows, flags=flags, **options
    )


def perplexities(last):
    return [
        {"perplexity": 1000.0},
        {"steps": 100, "loss": 6.5},
        {"steps": 200, "loss": 6.0, "perplexity": last},
        {"steps": 300, "loss": 5.5},
    ]


def test_runs_are_put_side_by_side(tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    write_run(runs, "full", perplexities(200.25)[:3], {"nu": 1.0})
    write_run(runs, "rff", perplexities(300.0), {"rounds": 2}, is_done=False)
    write_run(runs, "exp", [], {"rounds": 2}, is_done=False)  # Nothing measured yet.
    text = rf_softmax_report.write(runs, out, "ptb")
    assert (out / "ptb.md").read_text() == text
    assert run_folders.table_rows(text)[1:] == [
        "| rff | 200 (unfinished) | 300.0 | |",
        "| full | 200 | 200.2 | |",
    ]
    rows = list(csv.reader((out / "ptb.csv").open()))
    assert rows[0] == ["sampler", "seed", "steps", "perplexity"]
    assert rows[1:3] == [["rff", "0", "0", "1000.0"], ["rff", "0", "200", "300.0"]]
    run_folders.check_figure(out / "ptb.png")


def test_precision_stands_beside_the_posters(tmp_path):
    rows = [{}, {"steps": 100, "loss": 2.5, "clipped_share": 0.25, **PRECISION}]
    write_run(tmp_path / "runs", "exp", rows)
    text = rf_softmax_report.write(tmp_path / "runs", tmp_path / "out", "curves")
    lines = run_folders.unpadded(text)
    assert "| exp | 100 | 0.500 | 0.167 | 0.100 | 25.0% |" in lines
    assert "| Delicious-200k (n = 205,443) | rff | 0.41 | 0.37 | 0.36 |" in lines


def test_samplers_are_compared_seed_by_seed(tmp_path):
    for sampler, ends in {"rff": (300.0, 310.0), "uniform": (400.0, 412.0)}.items():
        for seed, end in enumerate(ends):
            run = write_run(tmp_path, sampler, perplexities(end)[:3], {"seed": seed})
            (tmp_path / f"runs/{sampler}").mkdir(parents=True, exist_ok=True)
            run.rename(tmp_path / f"runs/{sampler}/seed{seed}")
    text = rf_softmax_report.write(tmp_path / "runs", tmp_path / "out", "ptb")
    _, caption, table = text.partition("Differences in perplexity (less is better)")
    assert caption
    assert run_folders.table_rows(table) == [
        "| | rff − uniform |",
        # -100 and -102; 12.706 standard errors.
        "| validation perplexity | **-101.0 ± 12.7** |",
    ]


def test_packed_runs_make_the_same_table(tmp_path):
    for seed in (0, 1):
        rows = perplexities(200.0 + seed)[:3]
        rows[-1] |= {"clipped_share": 0.1 * (seed + 1), "effective_samples": 4.0 + seed}
        rows[-1] |= {"clipped_mass": 0.25}
        run = write_run(tmp_path, "exp", rows, {"seed": seed})
        (tmp_path / "runs/exp").mkdir(parents=True, exist_ok=True)
        run.rename(tmp_path / f"runs/exp/seed{seed}")
    (tmp_path / "packed").mkdir()
    archive.write_runs(tmp_path / "packed" / archive.NAME, tmp_path / "runs")
    texts = [
        rf_softmax_report.write(tmp_path / x, tmp_path / "out", x)
        for x in ("runs", "packed")
    ]
    assert texts[0] == texts[1] and "- Commit: c0ffee\n" in texts[0]
    row = "| exp | 200 | 200.5 ± 0.7 | 15.0% | 4.5 | 25.0% |"
    assert row in run_folders.unpadded(texts[1])
    lasts = list(csv.reader((tmp_path / "out/packed.csv").open()))[2::2]
    assert lasts == [["exp", "0", "200", "200.0"], ["exp", "1", "200", "201.0"]]


def refused(tmp_path, *parts, name="ptb"):
    with pytest.raises(InvalidInputError) as error:
        rf_softmax_report.write(tmp_path, tmp_path / "out", name)
    for part in parts:
        assert part in str(error.value), str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags, parts",
    [
        ({"task": "extreme"}, ["--task=extreme", "--task=ptb"]),
        ({"learning_rate": 0.1}, ["--learning_rate=0.1", "--learning_rate=0.05"]),
        ({"seed": 1, "num_negatives": 10}, ["--num_negatives=10"]),
        ({"sampler": "exp"}, ["full is named for the sampler full", "--sampler=exp"]),
        ({"sampler": "best"}, ["--sampler=best is none of", "./run.sh rf_softmax"]),
    ],
)
def test_runs_that_do_not_belong_together(tmp_path, flags, parts):
    write_run(tmp_path, "rff", perplexities(300.0))
    write_run(
        tmp_path, "full", perplexities(200.0)[:3], {"rounds": 3, **flags}, is_done=False
    )
    refused(tmp_path, "full", *parts)


def test_a_measurement_with_a_hole(tmp_path):
    write_run(tmp_path, "full", [{"precision_at_1": 0.1}, {"steps": 9, **PRECISION}])
    refused(tmp_path, "metrics.csv:2: precision_at_1 without precision_at_3, precision")


def test_no_runs(tmp_path):
    refused(tmp_path, "holds no run: expected folders CELL/")
    refused(tmp_path / "nowhere", "nowhere is no folder")
    write_run(tmp_path / "other", "exp", [{}], is_done=False)
    refused(tmp_path / "other", "other holds no run with a measurement")
    (tmp_path / "rff").mkdir()
    (tmp_path / "rff" / "metrics.csv").write_text("round,loss\n1,x\n")
    refused(tmp_path, "rff/flags.txt is missing")


@pytest.mark.parametrize("name", ["", "a/b", "../a"])
def test_a_name_is_no_path(tmp_path, name):
    write_run(tmp_path, "rff", perplexities(300.0))
    refused(tmp_path, f"--name={name} must be a file's name", name=name)
