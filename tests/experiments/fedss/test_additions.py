"""A new method, a new data set: added in one place, and all programs know it."""

import dataclasses

import pytest

from experiments.common import sweep
from experiments.fedss import cell_rows, compare, methods, pages, train
from experiments.fedss import cells as fedss_cells
from tests.experiments import central_runs, run_folders
from tff_fedss import tasks
from tff_fedss.datasets import synthetic

pytestmark = pytest.mark.usefixtures("one_layer")
TINY = dict(
    dataset="glyphs:num_classes=60",
    rounds=2,
    rounds_per_evaluation=1,
    clients_per_round=3,
    num_negatives=5,
    warm_start_epochs=0,
)


def test_a_method_is_added_in_one_place(run_program, tmp_path, monkeypatch):
    # FedSS by another name.
    toy = dataclasses.replace(
        methods.METHODS["fedss"],
        title="ToySoftmax",
        style=methods.plots.Style("#123456", "-", "o"),
    )
    monkeypatch.setitem(methods.METHODS, "toy", toy)

    def run(*arguments, **options):
        output, _ = run_program(*arguments, **options).ok()
        return output

    flags = [f"--{name}={value}" for name, value in TINY.items()]
    both = tmp_path / "both"
    output = run(compare, *flags, "--methods=fedss,toy", f"--results_dir={both}")
    lines = [line.split() for line in output.splitlines() if line]
    table = {first: rest for first, *rest in lines}
    assert table["ToySoftmax"] == table["FedSS"]
    assert (both / "toy.npz").exists()
    # A table of both.
    own = cell_rows.of_methods("glyphs", TINY, {"fedss": [5], "toy": [5]})
    of_both = pages.of_paper("Toys", own, "toys")
    monkeypatch.setitem(fedss_cells.TABLES, ("1", "mini"), of_both)
    runs = tmp_path / "runs"
    for name in of_both.cells:
        run(
            train,
            f"--cell=1/mini/{name}",
            f"--results_dir={runs / name / 'seed0'}",
            paper="fedss",
        )
    run(sweep, "1", "--seeds=0", f"--results_dir={runs}", takes_arguments=True)
    rows = run_folders.table_rows((runs / "table1.md").read_text())
    numbers = {row.split(" | ")[0]: row.split(" | ")[1:] for row in rows}
    assert numbers["| ToySoftmax"] == numbers["| FedSS"]
    assert numbers["| FedSS − ToySoftmax"] == ["+0.0 |"]


def load(*, image_size: int, num_letters: int = 26):
    """Letters.

    Args:
        image_size: In pixels.
        num_letters: How many classes.
    """
    return synthetic.glyphs(num_letters, image_size=image_size)


def test_a_data_set_is_added_in_one_place(run_train, tmp_path, monkeypatch):
    settings = tasks.Settings(
        rounds=1,
        clients_per_round=2,
        client_learning_rate=0.1,
        num_negatives=5,
        image_size=14,
        model="small_cnn",
    )
    spec = tasks.DatasetSpec("Toy letters", {"classification": settings}, load)
    monkeypatch.setitem(tasks.DATASETS, "toy", spec)

    output, _ = run_train(
        "--dataset=toy:num_letters=40", f"--results_dir={tmp_path}"
    ).ok()
    assert "n=40 classes" in output
    rows = central_runs.rows_of(tmp_path)
    assert [row["round"] for row in rows] == ["0", "1"]
    assert "--dataset=toy:num_letters=40" in (tmp_path / "flags.txt").read_text()
    run_train("--dataset=toy:letters=40", f"--results_dir={tmp_path}").refused(
        "has no option letters; it has num_letters; for example --dataset=toy:"
    )
    _, output, _ = run_train("--help")
    assert "num_letters: How many classes. Default: 26." in output
