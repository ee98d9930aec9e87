import csv

import numpy as np
import pytest

from tests.experiments import program_server


@pytest.fixture(scope="module")
def run():
    """Runs the program in its own process: flags -> (exit code, stdout, stderr)."""
    with program_server.serve("experiments.leap_report") as run:
        yield run


def write_run(folder, top1, dataset="cifar10", is_done=True):
    """A run with evaluations after 10, 20, ... mini-batches."""
    folder.mkdir(parents=True)
    method = folder.parent.name
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            "method round steps loss top1 test_loss selected_share selected_classes "
            "embedding_loss".split()
        )
        writer.writerow([method, 0, "", "", 0.1, 2.5, "", "", ""])
        for i, value in enumerate(top1, start=1):
            writer.writerow([method, i, 10 * i, 2.0 / i, value, 1 / i, 0.5, 2.5, 0.9])
    (folder / "flags.txt").write_text(
        f"--dataset={dataset}\n--method={method}\n--seed={folder.name[4:]}\n"
    )
    if is_done:
        (folder / "done.json").write_text("{}")


def test_methods_stand_beside_the_papers_numbers(run, tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    write_run(runs / "mini/leap/seed0", [0.3, 0.52, 0.6])
    write_run(runs / "mini/leap/seed1", [0.3, 0.54, 0.7])
    write_run(runs / "mini/random/seed0", [0.2, 0.4, 0.51], is_done=False)
    write_run(runs / "mini/spld/seed0", [0.2, 0.3, 0.4])
    write_run(runs / "digits/spld/seed3", [0.5], dataset="mnist")
    generator = np.random.default_rng(0)
    np.savez(
        runs / "mini/leap/seed0/representations.npz",
        representations=generator.standard_normal([40, 3]).astype(np.float32),
        labels=np.arange(40) % 2,
        clusters=np.zeros(40),
        class_names=np.array(["cat", "dog"]),
    )
    code, output, errors = run(f"--results_dir={runs}", f"--output_dir={out}")
    assert code == 0, errors
    lines = (out / "table1.md").read_text().splitlines()
    assert lines[2:6] == [
        "| digits | SPLD | 10 | 1 | 50.00 |  | 99.20 ± 0.05 |",
        "| mini | LEAP | 30 | 2 | 65.00 ± 7.07 | 20 | 95.12 ± 0.16 |",
        "| mini | SPLD | 30 | 1 | 40.00 | not | 94.42 ± 0.21 |",
        "| mini | Random | 30 | 1 (1 unfinished) | 51.00 | 30 | 94.49 ± 0.12 |",
    ]
    assert lines[2] in output
    rows = list(csv.DictReader((out / "table1.csv").open()))
    assert rows[1]["top-1 %"] == "65.00 ± 7.07"
    names = {path.name for path in out.glob("*.png")}
    assert names == {
        "mini_curves.png",
        "mini_selection.png",
        "mini_embedding.png",
        "digits_curves.png",
        "digits_selection.png",
    }


def test_settings_that_mix_are_refused(run, tmp_path):
    write_run(tmp_path / "mini/leap/seed0", [0.3])
    write_run(tmp_path / "mini/random/seed0", [0.3], dataset="mnist")
    code, _, errors = run(f"--results_dir={tmp_path}", f"--output_dir={tmp_path}/out")
    assert code == 2 and "--dataset=mnist" in errors and "--dataset=cifar10" in errors


@pytest.mark.parametrize(
    "content, message",
    [(None, "holds no SETTING/METHOD/seedN"), ("round,loss\n1,x\n", "is damaged")],
)
def test_bad_input_is_one_clear_line(run, tmp_path, content, message):
    if content is not None:
        (tmp_path / "mini/leap/seed0").mkdir(parents=True)
        (tmp_path / "mini/leap/seed0/metrics.csv").write_text(content)
    code, _, errors = run(f"--results_dir={tmp_path}", f"--output_dir={tmp_path}/out")
    assert code == 2 and errors.count("\n") == 1
    assert message in errors


def test_damaged_representations_are_one_clear_line(run, tmp_path):
    write_run(tmp_path / "mini/leap/seed0", [0.3])
    (tmp_path / "mini/leap/seed0/representations.npz").write_bytes(b"PK\3\4")
    code, _, errors = run(f"--results_dir={tmp_path}", f"--output_dir={tmp_path}/out")
    assert code == 2 and errors.count("\n") == 1
    assert "representations.npz is damaged" in errors
