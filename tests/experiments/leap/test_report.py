import csv
import json

import numpy as np
import pytest
from scipy import stats

from experiments.common import archive
from experiments.leap import figures as leap_figures
from experiments.leap import report as leap_report
from tests.experiments import run_folders
from tff_fedss.errors import InvalidInputError


def write_run(folder, top1, flags=None, **options):
    """A run with evaluations after 10, 20, ... mini-batches."""
    method, seed = folder.parent.name, int(folder.name[4:])
    rows = [
        {"top1": 0.1, "test_loss": 2.5},
        *(
            {
                "steps": 10 * i,
                "loss": 2.0 / i,
                "test_loss": 1 / i,
                "selected_share": 0.5,
                "selected_classes": 2.5,
                "embedding_loss": 0.9,
                "top1": value,
            }
            for i, value in enumerate(top1, 1)
        ),
    ]
    return run_folders.write_own_run(
        folder,
        "leap",
        method,
        rows,
        flags={"method": method, "seed": seed, **(flags or {})},
        **options,
    )


def write_representations(folder, **changes):
    generator = np.random.default_rng(0)
    arrays = {
        "representations": generator.standard_normal([40, 3]).astype(np.float32),
        "labels": np.arange(40) % 2,
        "class_names": np.array(["cat", "dog"]),
        **changes,
    }
    np.savez(folder / "representations.npz", **arrays)


def test_methods_stand_beside_the_papers_numbers(tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    write_representations(write_run(runs / "mini/leap/seed0", [0.3, 0.52, 0.6]))
    write_run(runs / "mini/leap/seed1", [0.3, 0.54, 0.7])
    write_run(
        runs / "mini/random/seed0", [0.2, 0.4, 0.51], {"rounds": 3}, is_done=False
    )
    write_run(runs / "mini/spld/seed0", [0.2, 0.3, 0.4])
    write_run(runs / "digits/spld/seed3", [0.5], {"dataset": "mnist"})
    text = leap_report.write(runs, out)
    assert (out / "table1.md").read_text() == text
    assert run_folders.table_rows(text)[1:5] == [
        "| digits | SPLD | 10 | 1 | 50.00 | | 99.20 ± 0.05 |",
        "| mini | LEAP | 30 | 2 | 65.00 ± 7.07 | 20 | 95.12 ± 0.16 |",
        "| mini | SPLD | 30 | 1 | 40.00 | not | 94.42 ± 0.21 |",
        "| mini | Random | 30 | 1 (1 unfinished) | 51.00 | 30 | 94.49 ± 0.12 |",
    ]
    rows = list(csv.DictReader((out / "table1.csv").open()))
    # With all digits: who rounds 7.07 again may be off by one.
    assert float(rows[1]["top-1 %"]) == pytest.approx(65, abs=1e-9)
    assert float(rows[1]["std"]) == pytest.approx(50**0.5, abs=1e-9)
    run_folders.check_figure(out / "mini_curves.png")
    names = {path.name for path in out.glob("*.png")}
    assert names == {
        "mini_curves.png",
        "mini_selection.png",
        "mini_embedding.png",
        "digits_curves.png",
        "digits_selection.png",
    }


def test_wrong_labels_have_their_columns(tmp_path):
    for method, accuracies, shares in (
        ("spl", [0.5, 0.7], [0.4, 0.1]),
        ("random", [0.8, 0.6], [0.4, 0.4]),
    ):
        rows = [{"top1": 0.1}]
        rows += [
            {"steps": 10 * i, "loss": 1.0, "top1": a, "mislabelled_share": s}
            for i, (a, s) in enumerate(zip(accuracies, shares), 1)
        ]
        run_folders.write_own_run(
            tmp_path / f"runs/noisy/{method}/seed0",
            "leap",
            method,
            rows,
            flags={"method": method, "seed": 0, "label_noise": 0.4},
        )
    text = leap_report.write(tmp_path / "runs", tmp_path / "out")
    assert run_folders.table_rows(text)[1:3] == [
        "| noisy | SPL | 20 | 1 | 70.00 | 70.00 (20) | 10.0 | 20 |",
        "| noisy | Random | 20 | 1 | 60.00 | 80.00 (10) | 40.0 | 10 |",
    ]


def test_runs_are_compared_seed_by_seed(tmp_path):
    accuracies = {"leap": [60.0, 63.0, 61.0], "spl": [55.0, 59.0], "random": [62.0] * 3}
    for method, values in accuracies.items():
        for seed, percent in enumerate(values):
            top1 = percent / 100
            own = {"embedding_warmup": 7} if method == "leap" else {}
            run_folders.write_own_run(
                tmp_path / f"runs/tail/{method}/seed{seed}",
                "leap",
                method,
                [
                    {"top1": 0.1},
                    dict(steps=10, loss=1.0, top1=top1, rare_top1=top1 / 2)
                    | dict(rare_share=0.25 if method == "leap" else 0.125),
                ],
                flags={"method": method, "seed": seed, **own},
            )
    text = leap_report.write(tmp_path / "runs", tmp_path / "out")
    rows = run_folders.table_rows(text)
    assert rows[0].startswith(
        "| setting | method | mini-batches | seeds | top-1 % | be"
    )
    assert (
        "| tail | SPL | 10 | 2 | 57.00 ± 2.83 | 57.00 (10) | 28.5 | 12.5 |" in rows[2]
    )
    spl = np.subtract(accuracies["leap"][:2], accuracies["spl"])
    random = np.subtract(accuracies["leap"], 62)

    def interval(values):
        error = stats.sem(values)
        half = stats.t.interval(0.95, len(values) - 1, 0, error)[1]
        return f"{np.mean(values):+.1f} ± {half:.1f}"

    lines = run_folders.unpadded(text)
    for what, share in (("tail", 1), ("tail, rare", 0.5)):
        own = f"{interval(share * random)} | {interval(share * spl)} |"
        assert any(line.startswith(f"| {what} | {own}") for line in lines)


def test_hard_data_differ_from_seed_to_seed(tmp_path):
    for seed in (0, 1):
        for method in ("leap", "random"):
            folder = write_run(
                tmp_path / f"runs/noisy/{method}/seed{seed}",
                [0.5, 0.6 + 0.1 * seed],
                {"label_noise": 0.2},
            )
            origin = {"data": {"labels of training images": f"of seed {seed}"}}
            (folder / "data.json").write_text(json.dumps(origin))
    text = leap_report.write(tmp_path / "runs", tmp_path / "out")
    assert "| noisy | LEAP | 20 | 2 | 65.00 ± 7.07 |" in "".join(
        run_folders.table_rows(text)
    )
    origin["data"]["labels of training images"] = "others"
    (folder / "data.json").write_text(json.dumps(origin))
    refused(tmp_path / "runs", "labels of training images is 'others'", "there 'of see")


def test_packed_runs_make_the_same_table(tmp_path):
    for method, accuracies in {"leap": [0.3, 0.6], "random": [0.2, 0.5]}.items():
        write_run(tmp_path / f"runs/mini/{method}/seed0", accuracies)
    (tmp_path / "packed").mkdir()
    archive.write_runs(tmp_path / "packed" / archive.NAME, tmp_path / "runs")
    texts = [leap_report.write(tmp_path / x, tmp_path / x) for x in ("runs", "packed")]
    assert texts[0] == texts[1] and "- Commit: c0ffee\n" in texts[0]
    assert "| mini | LEAP | 20 | 1 | 60.00 | 20 |" in "".join(
        run_folders.table_rows(texts[1])
    )


@pytest.mark.parametrize("shape", [(4, 1), (5, 2), (9, 40)])
@pytest.mark.parametrize("is_constant", [False, True])
def test_any_representations_can_be_laid_out(shape, is_constant):
    points = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if is_constant:
        points[:] = 1
    assert np.isfinite(leap_figures.t_sne(points, 0)).all()


def refused(tmp_path, *parts):
    with pytest.raises(InvalidInputError) as error:
        leap_report.write(tmp_path, tmp_path / "out")
    for part in parts:
        assert part in str(error.value), str(error.value)


@pytest.mark.parametrize("second", ["leap/seed1", "random/seed0"])
@pytest.mark.parametrize(
    "flags", [{"dataset": "mnist"}, {"rounds": 9}, {"learning_rate": 0.2}]
)
def test_settings_that_mix_are_refused(tmp_path, second, flags):
    write_run(tmp_path / "mini/leap/seed0", [0.3])
    write_run(tmp_path / "mini" / second, [0.3], flags, is_done=False)
    ((name, value),) = flags.items()
    was = {"rounds": 1}.get(name, run_folders.FLAGS["leap"][name])
    refused(tmp_path, f"--{name}={value}", f"--{name}={was}", "leap/seed0", second)
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_is_named(tmp_path):
    refused(tmp_path, "holds no run: expected folders PART/CELL/seedK/")
    refused(tmp_path / "nowhere", "nowhere is no folder")
    folder = write_run(tmp_path / "mini/leap/seed0", [0.3])
    path = folder / "metrics.csv"
    whole = path.read_text()
    path.write_text("round,loss\n1,x\n")
    refused(tmp_path, "leap/seed0/metrics.csv:1: no column 'method'")
    path.write_text(whole.replace("leap,0,0.1,", "leap,0,,"))
    refused(tmp_path, "leap/seed0/metrics.csv:2: there is no top1")
    path.write_text(whole)
    folder.parent.rename(tmp_path / "mini/spld")
    refused(tmp_path, "spld/seed0 has --method=leap, in the folder spld")


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": np.arange(39) % 2},
        {"labels": np.full(40, 2)},
        {"labels": np.full(40, 0.5)},
        {"representations": np.full([40, 3], np.nan)},
        {"representations": np.full(40, 1.0)},
        {"representations": np.ones([3, 3]), "labels": np.zeros(3, int)},
        {"class_names": np.array("cat")},
    ],
)
def test_damaged_representations(tmp_path, changes):
    folder = write_run(tmp_path / "mini/leap/seed0", [0.3])
    write_representations(folder, **changes)
    refused(tmp_path, "representations.npz is damaged: expected")


def test_representations_that_are_no_archive(tmp_path):
    path = write_run(tmp_path / "mini/leap/seed0", [0.3]) / "representations.npz"
    path.write_bytes(b"PK\3\4")
    refused(tmp_path, "representations.npz is damaged")
    np.savez(path, labels=np.zeros(3))
    refused(tmp_path, "representations.npz is damaged: it has no representations")
