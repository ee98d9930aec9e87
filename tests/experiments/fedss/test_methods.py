"""A new method: it is added in one place, and every program and page knows it."""

import dataclasses
import signal

import pytest

from experiments.common import cells, program, sweep
from experiments.fedss import cells as fedss_cells
from experiments.fedss import compare, methods, pages, train
from tests.experiments import run_folders

TINY = dict(
    dataset="glyphs:num_classes=60",
    rounds=2,
    rounds_per_evaluation=1,
    clients_per_round=3,
    num_negatives=5,
    warm_start_epochs=0,
)


@pytest.fixture
def toy(monkeypatch):
    """FedSS by another name."""
    method = dataclasses.replace(
        methods.METHODS["fedss"],
        title="ToySoftmax",
        style=methods.plots.Style("#123456", "-", "o"),
    )
    monkeypatch.setitem(methods.METHODS, "toy", method)


def run(module, *arguments, **options):
    """Runs a program in this process, which knows the toy."""
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        program.run(module.main, module.Config(), ["program", *arguments], **options)
    signal.signal(signal.SIGTERM, handler)
    assert not end.value.code


def test_a_method_is_added_in_one_place(toy, capsys, tmp_path, monkeypatch):
    flags = [f"--{name}={value}" for name, value in TINY.items()]
    run(compare, *flags, "--methods=fedss,toy", f"--results_dir={tmp_path / 'both'}")
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    table = {first: rest for first, *rest in lines}
    assert table["ToySoftmax"] == table["FedSS"]
    assert (tmp_path / "both" / "toy.npz").exists()
    # A table of both.
    own = fedss_cells._drawing("glyphs", TINY, ["fedss", "toy"], [5])
    of_both = cells.table(
        "Toys",
        "experiments.fedss.train",
        own,
        "toys",
        seeds=(0,),
        **pages.of_paper(own),
    )
    monkeypatch.setitem(fedss_cells.TABLES, ("1", "mini"), of_both)
    runs = tmp_path / "runs"
    for name in of_both.cells:
        run(
            train,
            f"--cell=1/mini/{name}",
            f"--results_dir={runs / name / 'seed0'}",
            paper="fedss",
        )
    run(sweep, "1", f"--results_dir={runs}", takes_arguments=True)
    rows = run_folders.table_rows((runs / "table1.md").read_text())
    numbers = {row.split(" | ")[0]: row.split(" | ")[1:] for row in rows}
    assert numbers["| ToySoftmax"] == numbers["| FedSS"]
    assert numbers["| FedSS − ToySoftmax"] == ["+0.0 |"]
