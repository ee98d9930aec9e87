import csv

import pytest

from experiments.common import archive
from experiments.partial_fc import report as partial_fc_report
from tests.experiments import run_folders
from tff_fedss.errors import InvalidInputError


def write_run(folder, seed, tar, ca_pcc, sampling="pprn", rate=0.1, flags=None, **more):
    name = "full" if rate == 1 else f"{sampling}_{rate:g}"
    rows = [
        {"tar_at_far": 0.01},
        {"steps": 50, "loss": 4.0, "ca_pcc": ca_pcc / 2, "trained_share": 1.0},
        {"steps": 100, "loss": 3.0, "ca_pcc": ca_pcc, "trained_share": 1.0},
    ]
    if tar is None:
        rows.pop()
    else:
        rows[-1]["tar_at_far"] = tar
    return run_folders.write_own_run(
        folder / name / f"seed{seed}",
        "partial_fc",
        name,
        rows,
        flags={
            "seed": seed,
            "sampling": sampling,
            "sample_rate": rate,
            **(flags or {}),
        },
        **more,
    )


def test_seeds_are_put_together(tmp_path):
    runs = tmp_path / "runs"
    write_run(runs, 0, 0.5, 0.4)
    write_run(runs, 1, 0.7, 0.6)
    write_run(runs, 5, 0.8, 0.7, rate=1.0)
    write_run(runs, 0, 0.6, 0.2, "all_random", 0.5)
    write_run(runs, 1, None, 0.4, "all_random", 0.5, {"rounds": 2}, is_done=False)
    text = partial_fc_report.write(runs, tmp_path / "out", "omniglot")
    assert (tmp_path / "out" / "omniglot.md").read_text() == text
    lines = run_folders.table_rows(text)
    assert lines[0].startswith("| run | seeds | steps | TAR@FAR=0.001 | CA_pcc |")
    assert lines[1:] == [
        "| full | 1 | 100 | 0.800 | 0.700 | 1.000 |",
        # At the last step that both have: 0.1 and 0.2, not 0.2 and 0.2.
        "| all_random_0.5 | 2 (1 unfinished) | 50 | 0.010 ± 0.000 | 0.150 ± 0.071 | "
        "1.000 ± 0.000 |",
        "| pprn_0.1 | 2 | 100 | 0.600 ± 0.141 | 0.500 ± 0.141 | 1.000 ± 0.000 |",
    ]
    with (tmp_path / "out" / "omniglot.csv").open() as file:
        rows = list(csv.DictReader(file))
    curve = [(r["steps"], r["ca_pcc"]) for r in rows if r["run"] == "full"]
    assert curve == [("0.0", ""), ("50.0", "0.35"), ("100.0", "0.7")]
    run_folders.check_figure(tmp_path / "out" / "omniglot.png")


def test_differences_are_of_runs_of_the_same_seed(tmp_path):
    for seed, (full, kept, dropped) in enumerate([(0.9, 0.8, 0.3), (0.8, 0.75, 0.05)]):
        write_run(tmp_path, seed, full, 0.5, rate=1.0)
        write_run(tmp_path, seed, kept, 0.5)
        write_run(tmp_path, seed, dropped, 0.5, "all_random")
    text = partial_fc_report.write(tmp_path, tmp_path / "out", "omniglot")
    lines = run_folders.table_rows(text.partition("Differences in points")[2])
    assert lines == [
        "| | all_random_0.1 − full | pprn_0.1 − full | pprn_0.1 − all_random_0.1 |",
        # Half an interval of two is 12.706 times half of what lies between them:
        # of -60 and -75, of -10 and -5, and of 50 and 70.
        "| TAR@FAR=0.001 | -67.5 ± 95.3 | -7.5 ± 31.8 | +60.0 ± 127.1 |",
    ]


def test_a_flag_that_is_meant_to_differ_is_shown(tmp_path):
    write_run(tmp_path, 0, 0.9, 0.6, rate=1.0, flags={"learning_rate": 0.003})
    write_run(tmp_path, 0, 0.8, 0.5, flags={"learning_rate": 0.001})
    differing = {"sample_rate", "learning_rate"}
    text = partial_fc_report.write(
        tmp_path, tmp_path / "out", "own_rates", may_differ=differing
    )
    lines = run_folders.table_rows(text.partition("Differences in points")[0])
    assert lines[0].startswith(
        "| run | learning rate | seeds | steps | TAR@FAR=0.001 |"
    )
    assert [line.split(" | ")[:3] for line in lines[1:]] == [
        ["| full", "0.003", "1"],
        ["| pprn_0.1", "0.001", "1"],
    ]


def test_packed_runs_make_the_same_table(tmp_path):
    for seed in (0, 1):
        run = write_run(tmp_path / "new", seed, 0.5, 0.4 + seed / 10)
        run.rename(tmp_path / "new" / f"seed{seed}")
    (tmp_path / "runs").mkdir()
    (tmp_path / "new").rename(tmp_path / "runs" / "pprn")
    (tmp_path / "packed").mkdir()
    archive.write_runs(tmp_path / "packed" / archive.NAME, tmp_path / "runs")
    texts = [
        partial_fc_report.write(tmp_path / x, tmp_path / "out", x)
        for x in ("runs", "packed")
    ]
    assert texts[0] == texts[1] and "- Commit: c0ffee\n" in texts[0]
    (row,) = run_folders.table_rows(texts[1])[1:]
    assert row.startswith("| pprn_0.1 | 2 | 100 | 0.500 ± 0.000 | 0.450 ± 0.071 |")


def refused(tmp_path, *parts):
    with pytest.raises(InvalidInputError) as error:
        partial_fc_report.write(tmp_path, tmp_path / "out", "omniglot")
    for part in parts:
        assert part in str(error.value), str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize(
    "flags", [{"dataset": "faces"}, {"learning_rate": 0.01}, {"margin": "arcface"}]
)
def test_runs_that_do_not_belong_together(tmp_path, rate, flags):
    """Neither in a cell (the same rate) nor in a table."""
    write_run(tmp_path, 0, 0.1, 0.4)
    write_run(tmp_path, 1, 0.9, 0.6, rate=rate, flags=flags)
    ((name, value),) = flags.items()
    was = run_folders.FLAGS["partial_fc"].get(name, "(unset)")
    refused(tmp_path, f"--{name}={value}", f"--{name}={was}", "seed0", "seed1")


def test_a_run_that_is_there_twice(tmp_path):
    write_run(tmp_path / "a", 0, 0.1, 0.4)
    write_run(tmp_path / "b", 0, 0.1, 0.4)
    refused(tmp_path, "both have --seed=0")


def test_what_is_not_there_is_named(tmp_path):
    refused(tmp_path, "holds no RUN/metrics.csv")
    refused(tmp_path / "nowhere", "nowhere is no folder")
    path = write_run(tmp_path, 0, 0.8, 0.7) / "metrics.csv"
    path.write_text(path.read_text().replace("3.0", "three"))
    refused(tmp_path, "metrics.csv:4: loss is 'three', expected a number")


def test_another_programs_run(tmp_path):
    run_folders.write_own_run(tmp_path / "a", "leap", "leap", [{"top1": 0.1}])
    refused(tmp_path, "--sampling=(unset) is none of", "./run.sh partial_fc")
