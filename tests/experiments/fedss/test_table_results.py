"""Reading run folders: whole ones, unfinished ones, and damaged ones."""

import json
import re

import numpy as np
import pytest
import tensorflow_federated as tff

from experiments.fedss import table_results
from experiments.fedss.table_results import Setting
from tests.experiments import run_folders
from tff_fedss import training
from tff_fedss.errors import InvalidInputError


def test_a_folder_that_a_run_wrote_is_read(tmp_path):
    """The generator of these tests could be wrong; this is the real thing."""
    flags = {
        "method": "fedss",
        "dataset": "glyphs",
        "task": "classification",
        "num_negatives": "5",
        "logit_correction": "none",
        "rounds": "2",
        "client_learning_rate": "0.1",
        "model": "small_cnn",
        "embedding_dim": "8",
        "seed": "3",
    }
    folder = training.ResultsFolder(tmp_path / "my_cell" / "seed3", flags)
    folder.open()
    folder.start({})
    for number, top1 in enumerate((0.1, None, 0.25)):
        row = {"method": "fedss", "round": number, "positives_per_client": 7.0}
        if top1 is not None:
            row["top1"] = top1
        folder.release(row, {"method": "fedss", "round": number, "round_seconds": 9.0})
        if number == 1:
            (run,) = table_results.read(tmp_path).runs
            assert not run.is_done and run.final("top1") is None
            assert run.curve("top1") == [(0, 10.0)]
    folder.write_weights(
        "fedss.npz", tff.learning.models.ModelWeights([np.ones(2), np.ones((3, 2))], [])
    )
    folder.finish(
        {"num_classes": 40, "outcomes": {"fedss": {"percent": 25.0}}, "metric": "top1"}
    )

    results = table_results.read(tmp_path)
    (run,) = results.runs
    assert run.is_done and run.cell == "my_cell" and run.seed == 3
    assert run.setting == Setting("fedss", 5, is_corrected=False)
    assert run.curve("top1") == [(0, 10.0), (2, 25.0)]
    assert run.final("top1") == 25.0
    assert run.hours == pytest.approx(3 * 9 / 3600)
    assert run.description["versions"]["tensorflow_federated"] == tff.__version__
    assert results.num_classes == 40
    assert results.class_set_size(run.setting) == 12
    assert results.dataset_title == "glyphs"


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("omniglot_fedss_m5", Setting("fedss", 5)),
        ("tiny_imagenet_neg_only_m800", Setting("neg_only", 800)),
        ("imagenet21k_fedss_m50_uncorrected", Setting("fedss", 50, False)),
        ("sop_pos_only", Setting("pos_only")),
        ("omniglot_full_softmax", Setting("full_softmax")),
        ("omniglot_fedss", None),
        ("omniglot_pos_only_m5", None),
        ("warm_starts", None),
    ],
)
def test_names_of_cells(name, setting):
    assert table_results.setting_of_name(name) == setting


def test_cells_and_seeds_are_found(tmp_path):
    run_folders.write_table(tmp_path)
    run_folders.write_run(tmp_path, "omniglot_fedss_m5_uncorrected", 0, 40.0)
    (tmp_path / "omniglot_fedss_m5" / "seed7").mkdir()  # begun by nobody
    (tmp_path / "omniglot_fedss_m5" / "seed0.log").write_text("noise")
    (tmp_path / "warm_starts").mkdir()
    results = table_results.read(tmp_path)
    assert len(results.cells) == len(run_folders.PERCENTS) + 1
    cell = results.cells[Setting("fedss", 5)]
    assert [run.seed for run in cell.runs] == [0, 1, 2]
    assert results.num_negatives("fedss") == [5, 20, 80]
    assert results.num_negatives("centralized") == []


def test_class_set_sizes(tmp_path):
    run_folders.write_table(tmp_path)
    results = table_results.read(tmp_path)
    assert results.mean_positives == pytest.approx(19.6)
    assert results.class_set_size(Setting("fedss", 80)) == 100
    assert results.class_set_size(Setting("pos_only")) == 20
    assert results.class_set_size(Setting("full_softmax")) == 659
    assert results.class_set_size(Setting("centralized")) is None


def test_n_of_unfinished_runs(tmp_path):
    run_folders.write_run(tmp_path, "omniglot_fedss_m5", 0, 50.0, rounds_done=2)
    assert table_results.read(tmp_path).num_classes is None
    run_folders.write_run(tmp_path, "omniglot_full_softmax", 0, 50.0, rounds_done=1)
    assert table_results.read(tmp_path).num_classes == 659


def test_the_first_folder_counts(tmp_path):
    run_folders.write_run(tmp_path / "a", "omniglot_fedss_m5", 0, 50.0)
    run_folders.write_run(tmp_path / "b", "omniglot_fedss_m5", 0, 60.0)
    run_folders.write_run(tmp_path / "b", "omniglot_neg_only_m24", 0, 20.0)
    results = table_results.read(tmp_path / "a", tmp_path / "b")
    assert {s: c.runs[0].final("top1") for s, c in results.cells.items()} == {
        Setting("fedss", 5): pytest.approx(50),
        Setting("neg_only", 24): pytest.approx(20),
    }


def test_half_a_row_of_a_killed_run_does_not_count(tmp_path):
    folder = run_folders.write_run(
        tmp_path, "omniglot_fedss_m5", 0, 50.0, rounds_done=2
    )
    with (folder / "metrics.csv").open("a") as file:
        file.write("fedss,3,0.2")
    (run,) = table_results.read(tmp_path).runs
    assert run.rows[-1]["round"] == 2


def test_common_rounds(tmp_path):
    for seed, done in enumerate((4, 2, 3)):
        run_folders.write_run(tmp_path, "omniglot_fedaws", seed, 50, rounds_done=done)
    runs = table_results.read(tmp_path).runs
    assert table_results.common_rounds(runs, "top1") == [0, 2]
    assert table_results.common_rounds(runs, "map_at_10") == []
    assert table_results.common_rounds([], "top1") == []


def refused(tmp_path, *parts):
    """Reads, and checks that the message has all the parts."""
    with pytest.raises(InvalidInputError) as error:
        table_results.read(tmp_path)
    for part in parts:
        assert part in str(error.value), str(error.value)


def test_no_folder_and_no_runs(tmp_path):
    refused(tmp_path / "nowhere", "nowhere is no folder")
    (tmp_path / "omniglot_fedss_m5" / "seed0").mkdir(parents=True)
    refused(tmp_path, "holds no run", "CELL/seedK/")


@pytest.fixture
def folder(tmp_path):
    return run_folders.write_run(tmp_path, "omniglot_fedss_m5", 0, 50.0)


def edit(path, pattern, replacement):
    text = path.read_text()
    changed = re.sub(pattern, replacement, text, count=1, flags=re.MULTILINE)
    assert changed != text
    path.write_text(changed)


@pytest.mark.parametrize(
    ("pattern", "replacement", "parts"),
    [
        (r"\A(?s:.*)\Z", '{"num', ["done.json:1: not JSON"]),
        (r'"num_classes": 659,\n', '"num_classes": 659\n', ["done.json:4: not JSON"]),
        (r'"num_classes"', '"n"', ["done.json", "missing: 'num_classes'"]),
        (r'"fedss"', '"pos_only"', ["done.json", "missing: 'fedss'"]),
        (r"50\.0", '"half"', ["done.json", "percent is 'half'"]),
        (r"50\.0", "51.0", ["metrics.csv:6: top1 is 50 %", "done.json says 51 %"]),
    ],
)
def test_damaged_done_json(tmp_path, folder, pattern, replacement, parts):
    edit(folder / "done.json", pattern, replacement)
    refused(tmp_path, *parts)


@pytest.mark.parametrize(
    ("pattern", "replacement", "parts"),
    [
        ("^method,round", "method,circle", ["metrics.csv:1", "no column 'round'"]),
        ("^fedss,2,", "fedss,2,,,,", ["metrics.csv:4: 18 cells, expected 15"]),
        ("^fedss,2,", "fedaws,2,", ["metrics.csv:4", "'fedaws', expected 'fedss'"]),
        ("^fedss,2,", "fedss,3,", ["metrics.csv:4: found round 3, expected 2"]),
        ("^fedss,2,", "fedss,x,", ["metrics.csv:4: round is 'x', expected a number"]),
        (r"^fedss,4,.*\n", "", ["metrics.csv:5: the last round is 3", "--rounds=4"]),
        (r"^(fedss,4,)0.25,,0.5", r"\1,,", ["last row has no top1"]),
        (r"\A(?s:.*)\Z", "", ["metrics.csv:1: the file is empty"]),
    ],
)
def test_damaged_metrics(tmp_path, folder, pattern, replacement, parts):
    edit(folder / "metrics.csv", pattern, replacement)
    refused(tmp_path, *parts)


def test_missing_metrics(tmp_path, folder):
    (folder / "metrics.csv").unlink()
    refused(tmp_path, "metrics.csv is missing, though the run is done")


def test_bytes_that_are_no_text(tmp_path, folder):
    (folder / "metrics.csv").write_bytes(b"method,round\n\xff\xfe\n")
    refused(tmp_path, "metrics.csv:2: this is not UTF-8")


@pytest.mark.parametrize(
    ("pattern", "replacement", "parts"),
    [
        ("^--seed=0", "--seed=1", ["flags.txt: --seed=1 in the folder seed0"]),
        ("^--method=fedss", "--methods=fedss", ["flags.txt: --method=(unset)"]),
        ("^--method=fedss", "--method=moco", ["flags.txt: --method=moco is none of"]),
        ("^--rounds=4", "--rounds=many", ["flags.txt: --rounds=many"]),
        ("^--dataset=omniglot", "dataset", ["flags.txt:2: found 'dataset'"]),
        (
            "^--num_negatives=5",
            "--num_negatives=10",
            ["named for FedSS (m = 5)", "FedSS (m = 10)"],
        ),
    ],
)
def test_wrong_flags(tmp_path, folder, pattern, replacement, parts):
    edit(folder / "flags.txt", pattern, replacement)
    refused(tmp_path, *parts)


def test_seeds_of_a_cell_must_have_the_same_flags(tmp_path, folder):
    run_folders.write_run(
        tmp_path, "omniglot_fedss_m5", 1, 50.0, flags={"client_learning_rate": 0.3}
    )
    refused(tmp_path, "seed1 has --client_learning_rate=0.3", "seed0", "=0.1")


def test_data_may_lie_elsewhere(tmp_path, folder):
    run_folders.write_run(
        tmp_path, "omniglot_fedss_m5", 1, 50.0, flags={"data_dir": "/mnt/data"}
    )
    assert len(table_results.read(tmp_path).runs) == 2


def test_cells_must_be_of_one_problem(tmp_path, folder):
    other = tmp_path / "omniglot_pos_only"
    run_folders.write_run(tmp_path, other.name, 0, 50.0, metric="map_at_10")
    refused(tmp_path, "One table cannot", "--task=retrieval", "--task=classification")
    edit(other / "seed0" / "flags.txt", "retrieval", "classification")
    edit(other / "seed0" / "metrics.csv", "top1,map_at_10", "map_at_10,top1")
    assert table_results.read(tmp_path).num_classes == 659
    edit(other / "seed0" / "done.json", "659", "658")
    refused(tmp_path, "n differ, 658 and 659")


def test_cells_differ_in_nothing_but_what_makes_them(tmp_path, folder):
    other = {"client_learning_rate": 0.3, "num_negatives": 9, "spreadout_weight": 2}
    write = run_folders.write_run
    write(tmp_path, "omniglot_fedaws", 0, 50.0, flags={**other, "train_top1": "true"})
    refused(tmp_path, "omniglot_fedss_m5/seed0 with --client_learning_rate=0.1 and")
    results = table_results.read(tmp_path, may_differ={"client_learning_rate"})
    assert len(results.cells) == 2


def test_pretrained_runs_do_not_go_with_those_from_scratch(tmp_path, folder):
    pretrained = {"pretrained": "imagenet.h5"}
    second = run_folders.write_run(
        tmp_path, "omniglot_fedss_m5", 1, 50.0, flags=pretrained
    )
    refused(tmp_path, "seed1 has --pretrained=imagenet.h5", "--pretrained=(unset)")
    second.rename(tmp_path / "seed1")
    run_folders.write_run(tmp_path, "omniglot_pos_only", 0, 50.0, flags=pretrained)
    refused(tmp_path, "One table cannot hold", "--pretrained=imagenet.h5", "(unset)")


def test_n_is_a_number_of_classes(tmp_path, folder):
    edit(folder / "done.json", "659", "659.5")
    refused(tmp_path, "done.json:1: num_classes is 659.5")


def test_collapsed_is_yes_or_no(tmp_path, folder):
    assert not table_results.read(tmp_path).runs[0].has_collapsed
    edit(folder / "done.json", '"percent"', '"collapsed": true, "percent"')
    assert table_results.read(tmp_path).runs[0].has_collapsed
    edit(folder / "done.json", "true", "1")
    refused(tmp_path, "done.json:1: collapsed is 1, expected true or false")


def test_two_cells_of_the_same_setting(tmp_path, folder):
    run_folders.write_run(tmp_path, "again", 0, 50.0, method="fedss", m=5)
    refused(tmp_path, "two cells of FedSS (m = 5)", "again", "omniglot_fedss_m5")


def test_damaged_run_json(tmp_path, folder):
    (folder / "run.json").write_text(json.dumps(["a list"]))
    refused(tmp_path, "run.json:1: expected a JSON object")
    (folder / "run.json").unlink()  # killed before it was written
    assert table_results.read(tmp_path).runs[0].description is None
