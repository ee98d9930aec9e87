import csv

import pytest

from experiments.common import config, program
from experiments.fedss import paper_scale

PARAMETERS = {"mobilenet_v3_large": 4_284_016, "mobilenet_v3_paper": 3_677_016}


@pytest.fixture(autouse=True)
def known_sizes(monkeypatch):
    """To build the networks takes long; `test_phi_is_counted` does."""
    monkeypatch.setattr(
        paper_scale, "_phi_parameters", lambda model, _: PARAMETERS[model]
    )


@pytest.fixture
def rows():
    return list(paper_scale.count())


@pytest.mark.slow
def test_phi_is_counted(monkeypatch):
    monkeypatch.undo()
    for model, expected in PARAMETERS.items():
        assert paper_scale._phi_parameters(model, 64) == expected


def test_a_cell_is_counted_as_its_rounds_say(rows):
    """Table 1 (4.2): 5,000 rounds of 64 clients with 130 images and 170 classes."""
    (row,) = (r for r in rows if (r["table"], r["cell"]) == ("1", "FedSS, m = 80"))
    clients, phi, classes, d = 5_000 * 64, 4_284_016, 170, 64
    assert row["train_images"] == clients * 130
    assert row["test_images"] == 51 * 19_526
    assert row["phi_parameters"] == phi
    assert row["gb_down"] == pytest.approx(clients * 4 * (phi + classes * d) / 1e9)
    ids = clients * 4 * classes / 1e9
    assert row["gb_up"] == pytest.approx(row["gb_down"] + ids)
    images = row["train_images"] + row["test_images"] / 3
    assert paper_scale.hours(row, 1000) == pytest.approx(images / 3.6e6)


def test_full_softmax_moves_all_classes_and_centralized_nothing(rows):
    of_table_3 = {row["cell"]: row for row in rows if row["table"] == "3"}
    assert of_table_3["FullSoftmax"]["class_set"] == 21_841
    assert of_table_3["Centralized"]["gb_up"] == 0
    saved = (
        of_table_3["FedSS, m = 50"]["gb_down"] / of_table_3["FullSoftmax"]["gb_down"]
    )
    assert saved == pytest.approx((3_677_016 + 70 * 64) / (3_677_016 + 21_841 * 64))


def test_the_page_and_the_table_are_written(tmp_path):
    asked = config.parse(
        paper_scale.Config(),
        f"--output_dir={tmp_path}",
        "--images_per_second=100",
        "--gpus=1,2",
    )
    paper_scale.main(asked)
    page = (tmp_path / "paper_scale.md").read_text()
    assert "hours on 1 GPU " in page and "hours on 2 GPUs" in page
    with (tmp_path / "paper_scale.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 72


@pytest.mark.parametrize("flag", ["--images_per_second=0", "--gpus=two"])
def test_a_speed_that_is_none_is_refused(capsys, tmp_path, flag):
    with pytest.raises(SystemExit) as end:
        program.run(
            paper_scale.main,
            paper_scale.Config(),
            ["paper_scale", flag, f"--output_dir={tmp_path / 'x'}"],
        )
    assert end.value.code == 2
    assert f"{flag}: expected positive numbers" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
