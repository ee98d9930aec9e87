import csv

import pytest

from tests.experiments import program_server


@pytest.fixture(scope="module")
def run():
    """Runs the program in its own process: flags -> (exit code, stdout, stderr)."""
    with program_server.serve("experiments.rf_softmax_report") as run:
        yield run


def write_run(folder, name, rows):
    (folder / name).mkdir(parents=True)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with (folder / name / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["method", *columns])
        writer.writeheader()
        writer.writerows({"method": name, **row} for row in rows)


def test_runs_are_put_side_by_side(run, tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    for name, final in (("full", 200.25), ("rff", 300.0)):
        write_run(
            runs,
            name,
            [
                {"round": 0, "perplexity": 1000.0},
                {"round": 1, "steps": 100, "loss": 6.5},
                {"round": 2, "steps": 200, "loss": 6.0, "perplexity": final},
                {"round": 3, "steps": 300, "loss": 5.5},
            ],
        )
    code, _, errors = run(f"--results_dir={runs}", f"--output_dir={out}", "--name=ptb")
    assert code == 0, errors
    lines = (out / "ptb.md").read_text().splitlines()
    assert lines[2:] == ["| rff | 200 | 300.0 |  |", "| full | 200 | 200.2 |  |"]
    rows = list(csv.reader((out / "ptb.csv").open()))
    assert rows[0] == ["sampler", "steps", "perplexity"]
    assert rows[1:3] == [["rff", "0", "1000.0"], ["rff", "200", "300.0"]]
    assert (out / "ptb.png").read_bytes().startswith(b"\x89PNG")


def test_precision_stands_beside_the_posters(run, tmp_path):
    precision = {f"precision_at_{k}": 0.5 / k for k in (1, 3, 5)}
    write_run(
        tmp_path / "runs",
        "exp",
        [{"round": 1, "steps": 100, "loss": 2.5, **precision, "clipped_share": 0.25}],
    )
    code, output, errors = run(
        f"--results_dir={tmp_path / 'runs'}", f"--output_dir={tmp_path / 'out'}"
    )
    assert code == 0, errors
    assert "| exp | 100 | 0.500 | 0.167 | 0.100 | 25.0% |" in output
    assert "| Delicious-200k (n = 205,443) | rff | 0.41 | 0.37 | 0.36 |" in output


@pytest.mark.parametrize(
    "content, message",
    [(None, "holds no SAMPLER/metrics.csv"), ("round,loss\n1,x\n", "is damaged")],
)
def test_bad_input_is_one_clear_line(run, tmp_path, content, message):
    if content is not None:
        (tmp_path / "rff").mkdir()
        (tmp_path / "rff/metrics.csv").write_text(content)
    code, _, errors = run(f"--results_dir={tmp_path}", f"--output_dir={tmp_path}/out")
    assert code == 2 and errors.count("\n") == 1
    assert message in errors
