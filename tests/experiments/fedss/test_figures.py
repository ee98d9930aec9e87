"""When there is nothing to draw."""

import pytest

from experiments.fedss import figures, table_results
from tests.experiments import run_folders


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7, 10])
def test_nothing_to_draw(tmp_path, number):
    with pytest.raises(figures.NothingToDraw, match="needs the results"):
        figures.draw(number, tmp_path / "x.png")
    run_folders.write_run(
        tmp_path / "runs", "omniglot_centralized", 0, 1, rounds_done=0
    )
    (tmp_path / "runs/omniglot_centralized/seed0/metrics.csv").unlink()
    results = table_results.read(tmp_path / "runs")
    with pytest.raises(figures.NothingToDraw):
        figures.draw(number, tmp_path / "x.png", results)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
