import csv
import json

import numpy as np
import pytest

from experiments.common import archive, cells
from experiments.moco import report as moco_report
from tests.experiments import run_folders
from tff_fedss.errors import InvalidInputError

LOSSES = {"a": "plain", "b": "plain", "c": "clustered", "d": "filtered"}


def write_run(
    folder, cell, seed, accuracy, losses=None, flags=None, sha256=None, **more
):
    experiment, _, gamma = cell.partition("_gamma")
    own = {"seed": seed, "gamma": float(gamma or 0), "loss": LOSSES.get(experiment)}
    if cell == "untrained":
        own["loss"] = "plain"
    elif experiment != "a":
        own["pretrained"] = f"runs/a_gamma0/seed{seed}"
    rows = [{"steps": 10 * i, "linear_accuracy": accuracy} for i in range(3)]
    path = run_folders.write_own_run(
        folder / cell / f"seed{seed}",
        "moco",
        "moco",
        rows[:1] if cell == "untrained" else rows,
        flags={**own, **(flags or {})},
        **more,
    )
    if sha256 is not None:
        data = {"data": {}, "pretrained": {"sha256": sha256}}
        (path / "data.json").write_text(json.dumps(data))
    if losses is not None:
        np.savez(path / "losses.npz", **losses)
    return path


def some_losses(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "plain": rng.uniform(1, 3, 50),
        "clustered": np.full(50, 0.25),
        "filtered": rng.uniform(0, 1, 50),
    }


@pytest.fixture
def runs(tmp_path):
    for seed, accuracy in enumerate((0.5, 0.52, 0.51)):
        write_run(tmp_path / "runs", "a_gamma0", seed, accuracy, some_losses(seed))
    write_run(tmp_path / "runs", "d_gamma0.5", 0, 0.5625, sha256="abc")
    write_run(tmp_path / "runs", "d_gamma0.5", 1, 0.99, is_done=False)
    write_run(tmp_path / "runs", "untrained", 0, 0.4)
    return tmp_path / "runs"


def test_tables_stand_beside_the_paper_s(runs, tmp_path):
    out = tmp_path / "out"
    text = moco_report.write(runs, out)
    lines = run_folders.unpadded(text)
    assert "| 0 | 81.7 | 51.00 ± 1.00 | 3 |" in lines
    assert "| 0.5 | 84.9 | 56.25 | 1 |" in lines
    assert "| 2 | 85.0 | | |" in lines  # Not run: blank.
    assert "Random encoder, not trained: 40.00 %." in lines
    assert "Table 2" not in text and "Table 4" in text
    assert "| clustered | 4 | 0.25 | 0.25 | 100.0 |" in lines
    assert (out / "linear_accuracy.md").read_text() == text
    rows = {
        row["cell"]: row for row in csv.DictReader((out / "linear_accuracy.csv").open())
    }
    assert len(rows) == 17
    written = {key: float(rows["a_gamma0"][key]) for key in ("mean", "deviation")}
    assert written == pytest.approx({"mean": 51, "deviation": 1}, abs=1e-9)
    assert (rows["a_gamma0"]["paper"], rows["a_gamma0"]["seeds"]) == ("81.7", "3")
    run_folders.check_figure(out / "losses.png")


def test_packed_runs_make_the_same_tables(tmp_path):
    for seed, accuracy in enumerate((0.5, 0.52)):
        write_run(tmp_path / "runs", "d_gamma1", seed, accuracy)
    write_run(tmp_path / "runs", "a_gamma0", 0, 0.5, some_losses())
    (tmp_path / "packed").mkdir()
    archive.write_runs(tmp_path / "packed" / archive.NAME, tmp_path / "runs")
    ours, packed = (
        moco_report.write(tmp_path / x, tmp_path / f"{x}_out")
        for x in ("runs", "packed")
    )
    # The losses of examples are not packed.
    assert ours.startswith(packed) and "Loss of each example" not in packed
    assert "| 1 | 85.1 | 51.00 ± 1.41 | 2 |" in run_folders.unpadded(packed)
    assert "- Commit: c0ffee\n" in packed
    assert not (tmp_path / "packed_out/losses.png").exists()


def test_without_the_measured_model_there_is_no_figure(tmp_path):
    write_run(tmp_path / "runs", "b_gamma1", 0, 0.5)
    text = moco_report.write(tmp_path / "runs", tmp_path / "out")
    assert "Table 2" in text and "Loss of each example" not in text
    assert not (tmp_path / "out/losses.png").exists()


def refused(runs, *parts):
    out = runs.parent / "out"
    with pytest.raises(InvalidInputError) as error:
        moco_report.write(runs, out)
    for part in parts:
        assert part in str(error.value), str(error.value)
    assert not out.exists()


@pytest.mark.parametrize("cell, seed", [("a_gamma0", 3), ("c_gamma0", 0)])
@pytest.mark.parametrize(
    "flags", [{"dataset": "svhn_cropped"}, {"learning_rate": 0.6}, {"epochs": 3}]
)
def test_runs_that_do_not_belong_together(runs, cell, seed, flags):
    write_run(runs, cell, seed, 0.9, flags=flags, is_done=False)
    if cell == "c_gamma0":  # Only finished runs of other cells are in the table.
        moco_report.write(runs, runs.parent / "out2")
        return
    ((name, value),) = flags.items()
    was = {"epochs": 2}.get(name, run_folders.FLAGS["moco"].get(name))
    refused(runs, f"--{name}={value}", f"--{name}={was}", "a_gamma0/seed3")


def test_cells_must_have_the_same_settings(runs):
    write_run(runs, "c_gamma0", 0, 0.9, flags={"learning_rate": 0.6})
    refused(runs, "One table cannot hold", "--learning_rate=0.6", "a_gamma0/seed0")


@pytest.mark.parametrize(
    "cell, flags, parts",
    [
        ("a_gamma1", {"gamma": 2.0}, ["--gamma=2.0", "a_gamma1 has --loss=plain"]),
        ("a_gamma1", {"pretrained": "x"}, ["--pretrained=x", "no --pretrained"]),
        ("b_gamma1", {"pretrained": None}, ["(unset)", "above 0 and --pretrained."]),
        ("c_gamma1", {"loss": "filtered"}, ["--loss=filtered", "--loss=clustered"]),
        ("untrained", {"pretrained": "x"}, ["--epochs=0 and no --pretrained"]),
    ],
)
def test_folders_are_named_for_their_runs(tmp_path, cell, flags, parts):
    write_run(tmp_path / "runs", cell, 0, 0.5, flags=flags)
    refused(tmp_path / "runs", f"{cell}/seed0 has --loss", *parts)


def test_post_training_of_a_seed_starts_from_one_model(runs):
    write_run(runs, "d_gamma1", 1, 0.9, sha256="def")  # Another seed's own.
    moco_report.write(runs, runs.parent / "out2")
    write_run(runs, "d_gamma1", 0, 0.9, sha256="def")
    refused(runs, "d_gamma1/seed0/data.json", "sha256 is 'def'", "there 'abc'")


def test_what_cannot_be_read_is_named(runs, tmp_path):
    with pytest.raises(InvalidInputError, match=r"none is no folder"):
        moco_report.write(tmp_path / "none", tmp_path / "out")
    write_run(tmp_path / "other", "a_gamma7", 0, 0.5)
    with pytest.raises(InvalidInputError, match=r"other holds no finished run in CELL"):
        moco_report.write(tmp_path / "other", tmp_path / "out")
    path = runs / "a_gamma0/seed1/losses.npz"
    path.write_bytes(path.read_bytes()[:500])
    refused(runs, "seed1/losses.npz is damaged")
    for plain in (np.full(50, np.nan), np.zeros(0), np.zeros([2, 2]), np.arange(3)):
        np.savez(path, **{**some_losses(), "plain": plain})
        refused(runs, "seed1/losses.npz is damaged: expected plain as a finite")
    np.savez(path, plain=np.ones(3))
    refused(runs, "seed1/losses.npz is damaged: it has no clustered")
    path.unlink()
    refused(runs, "seed1/losses.npz is damaged")
    (runs / "d_gamma0.5/seed0/done.json").write_text("{")
    refused(runs, "seed0/done.json:1: not JSON")


def test_a_comparison_says_how_far_ahead_and_how_pure(tmp_path):
    key = ("oracle", "mini")
    table = cells.tables_of("moco")[key]
    for seed, (base, ahead) in enumerate(((0.5, 0.53), (0.52, 0.56), (0.51, 0.6))):
        own = {"seed": seed, "gamma": 0.0, "loss": "plain"}
        for cell, accuracy, flags, more in (
            ("b_gamma0", base, {}, {}),
            (
                "oracle_gamma0",
                ahead,
                {"loss": "filtered", "clusters": "labels"},
                {"cluster_purity": 1.0},
            ),
        ):
            rows = [
                {"steps": 10 * i, "linear_accuracy": accuracy, **more} for i in range(3)
            ]
            run_folders.write_own_run(
                tmp_path / cell / f"seed{seed}",
                "moco",
                "moco",
                rows,
                flags={**own, **flags},
            )
    text = moco_report.write_table(key, table, tmp_path, 3, ["./run.sh"])
    assert (tmp_path / "oracle.md").read_text() == text
    lines = run_folders.unpadded(text)
    # 3, 4 and 9 points: mean 5.33, deviation 3.21, t 4.303.
    expected = "| Filtered by labels, gamma = 0 | 3/3 | 56.33 ± 3.51 | +5.33 ± 7.99 |"
    assert f"{expected} | 1.00 |" in lines
    assert "| Experiment B, post-training | 3/3 | 51.00 ± 1.00 | | | |" in lines
    assert "| Experiment D, filtered by k-means, gamma = 0 | 0/3 | | | | |" in lines
    # The CSV has all digits: who rounds 5.33 again may be off by one.
    *_, last = csv.DictReader((tmp_path / "oracle.csv").open())
    assert float(last["linear top-1, %"]) == pytest.approx(169 / 3, abs=1e-9)
    assert float(last["ahead of B"]) == pytest.approx(16 / 3, abs=1e-9)
    assert float(last["half of 95 %"]) == pytest.approx(7.9858, abs=1e-3)
    (tmp_path / "none").mkdir()
    with pytest.raises(InvalidInputError, match="holds no run"):
        moco_report.write_table(key, table, tmp_path / "none", 3, [])
