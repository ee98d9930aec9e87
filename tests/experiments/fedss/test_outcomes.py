import csv
import io

import pytest

from experiments.fedss import outcomes, run_config, run_methods, train
from tests.experiments import run_folders
from tff_fedss import tasks

OUTCOMES = [
    outcomes.Outcome("FedSS", 51.26, 8.38, 10_880, 43_520, 44_200),
    outcomes.Outcome("FullSoftmax", 56.8, 100.0, 129_792, 519_168, 519_168),
]


def test_csv_keeps_all_digits():
    first, second = csv.DictReader(io.StringIO(outcomes.as_csv(OUTCOMES, "top1")))
    assert first["method"] == "FedSS" and first["top1_percent"] == "51.26"
    assert second["classifier_bytes_down"] == "519168"


def test_text_lines_up():
    text = outcomes.as_text(OUTCOMES, "top-1", num_classes=2028, chance=1 / 2028)
    lines = text.splitlines()
    assert len({len(line) for line in lines[:6]}) == 1
    assert lines[3].split() == ["FedSS", "51.3", "8.4", "10,880", "43,520", "44,200"]
    assert lines[4].split()[-1] == "519,168"
    assert "chance: 0.049 %" in text


def row(method, round_num, **metrics):
    return {"method": method, "round": round_num, **metrics}


def test_curves_are_drawn(tmp_path):
    rows = [
        row("fedss", 0, top1=0.0),
        row("full_softmax", 0, top1=0.0),
        row("fedss", 1, loss=3.0),
        row("full_softmax", 1, loss=2.0, top1=0.5),
    ]
    outcomes.plot(rows, tasks.Classification, tmp_path / "curves.png")
    run_folders.check_figure(tmp_path / "curves.png")
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["curves.pdf", "curves.png"]


@pytest.mark.parametrize("rows", [[], [row("fedss", 0, top1=0.0)]])
def test_little_or_nothing_to_draw_is_no_error(tmp_path, rows):
    outcomes.plot(rows, tasks.Classification, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").exists() == bool(rows)


@pytest.mark.parametrize(
    "losses, warning",
    [((0.0, 0.0, 0.0), "in 3 of 3 rounds"), ((0.0, 0.0, 2.5), "in 2 of 3 rounds")],
)
def test_a_run_whose_spreadout_has_nothing_to_do_says_so(losses, warning):
    config = train.Config(method="fedaws:margin=0.5")
    rows = [{"method": "pos_only", "round": 1}, {"method": "fedaws", "round": 0}]
    rows += [{"method": "fedaws", "spreadout_loss": loss} for loss in losses]
    text = run_methods._tell_spreadout(config, rows)
    assert warning in text and "the margin of 0.5" in text


def test_a_run_whose_spreadout_pushes_does_not():
    rows = [{"spreadout_loss": loss} for loss in (0.0, 1.0, 0.5)]
    assert run_methods._tell_spreadout(run_config.RunConfig(), rows) == ""
    assert run_methods._tell_spreadout(run_config.RunConfig(), [{"round": 1}]) == ""
