"""A new data set: it is added in one place, and the command line trains on it."""

import csv
import signal

import pytest

from experiments.common import program
from experiments.fedss import train
from tff_fedss import tasks
from tff_fedss.datasets import synthetic


def load(*, image_size: int, num_letters: int = 26):
    """Letters.

    Args:
        image_size: In pixels.
        num_letters: How many classes.
    """
    return synthetic.glyphs(num_letters, image_size=image_size)


def test_a_data_set_is_added_in_one_place(capsys, tmp_path, monkeypatch):
    settings = tasks.Settings(
        rounds=1,
        clients_per_round=2,
        client_learning_rate=0.1,
        num_negatives=(5,),
        image_size=14,
        model="small_cnn",
    )
    spec = tasks.DatasetSpec("Toy letters", {"classification": settings}, load)
    monkeypatch.setitem(tasks.DATASETS, "toy", spec)

    def run(*flags):
        handler = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as end:
            program.run(train.main, train.Config(), ["train", *flags])
        signal.signal(signal.SIGTERM, handler)
        return end.value.code

    assert not run("--dataset=toy:num_letters=40", f"--results_dir={tmp_path}")
    assert "n=40 classes" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert [row["round"] for row in rows] == ["0", "1"]
    assert "--dataset=toy:num_letters=40" in (tmp_path / "flags.txt").read_text()
    assert run("--dataset=toy:letters=40", f"--results_dir={tmp_path}") == 2
    message = "has no option letters; it has num_letters; for example --dataset=toy:"
    assert message in capsys.readouterr().err
    assert not run("--help")
    assert "num_letters: How many classes. Default: 26." in capsys.readouterr().out
