"""`./run.sh defence_table`."""

import contextlib
import functools
import json
import types

import numpy as np
import pytest

from experiments.common import config
from experiments.privacy import defence_table, measured
from tff_fedss import files, metrics

SMALL = (
    "--num_classes=60",
    "--sizes=10",
    "--rounds=2",
    "--clients_per_round=3",
    "--warm_start_epochs=0",
    "--attacked_clients=2",
    "--attacked_updates=1",
    "--most_updates=2",
    "--participations=1,2",
)


@pytest.fixture
def run(run_program):
    """Runs the program in this process: flags -> (exit code, stdout, stderr)."""
    return functools.partial(run_program, defence_table)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--negatives=memoised"], "--negatives has no effect here: the rows"),
        (["--dp=gaussian"], "--dp has no effect here: the rows"),
        (["--sizes=5,x"], "--sizes=5,x: expected positive whole numbers"),
        (["--participations=0"], "--participations=0: expected positive whole"),
        (["--trainings=all"], "--trainings=['all']"),
        (["--pool_factor=9"], "--pool_size=90: expected a number from"),
        (["--status"], "has no finished training to make a table of"),
    ],
)
def test_bad_flags_are_told_in_a_line(run, tmp_path, flags, message):
    code, _, errors = run(*SMALL, *flags, f"--results_dir={tmp_path}")
    assert code == 2
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert message in errors


def test_attacks_are_on_what_is_seen():
    by_title = {view.title: set(view.attacks) for view in defence_table.VIEWS}
    assert by_title["fresh (the paper)"] == {"requests", "update", "phi", "sums"}
    assert by_title["secure"] == {"requests", "sums"}
    assert by_title["secure, all"] == {"sums"}
    names = {view.training for view in defence_table.VIEWS}
    assert names == set(defence_table.TRAININGS)


def fake(flags, precision, metric=0.5):
    """What a training leaves; `requests` is right more often the longer it looks."""
    attacks = [
        {"attack": name, "control": "", "x": x, "chance": 0.1, "precision_at": value}
        for name, x, value in (
            ("requests", 1, precision),
            ("requests", 2, precision + 0.1),
            ("unions", 2, 0.15),
            ("update", 1, 0.9),
            ("phi", 1, 0.3),
            ("traced, no request", 2, 0.25),
            ("traced through the noise, no request", 2, 0.35),
        )
    ]
    own = {
        "metric": metric,
        "classes_per_client": 20.0,
        "union": 33.0,
        "share_trained": 1.0,
        "num_rounds": 2,
        "epsilon": None,
    }
    return json.dumps({"flags": flags, "measured": own, "attacks": attacks})


def test_the_table_is_made_of_what_is_there(run, tmp_path):
    asked = config.parse(
        defence_table.Config(),
        *SMALL,
        f"--results_dir={tmp_path}",
    )
    full = defence_table.run_config.with_defaults(asked)
    for seed, metric in ((0, 0.5), (1, 0.7)):
        cell = defence_table._settings(full, 10, "fresh", seed)
        folder = tmp_path / "m10" / "fresh" / f"seed{seed}"
        folder.mkdir(parents=True)
        # Where the data are is not written down.
        flags = {k: v for k, v in cell.deciding().items() if k != "data_dir"}
        done = fake(flags, 0.4, metric)
        (folder / "done.json").write_text(done)
    flags = (*SMALL, "--num_seeds=2", "--status", f"--results_dir={tmp_path}")
    code, output, errors = run(*flags)
    assert code == 0, errors
    lines = {
        cells[2]: cells[3:-1]
        for line in output.splitlines()
        if line.startswith("| 10")
        for cells in [[cell.strip() for cell in line.split("|")]]
    }
    assert list(lines) == [
        "fresh (the paper)",
        "secure",
        "secure, union",
        "secure, all",
    ]
    fresh = lines["fresh (the paper)"]
    assert fresh[0] == "60.0 ± 14.1"
    assert fresh[3:7] == ["100", "none", "0.40 / 0.50", "0.90"] and fresh[-2:] == [
        "0.90",
        "0.90",
    ]
    assert lines["secure"][-2:] == ["0.40", "0.50"]
    # The better one of two attacks on sums.
    assert lines["secure, all"][-1] == "0.35"
    # Unions are seen after two participations alone; before that there are sums.
    assert lines["secure, union"][6] == "not seen"
    traffic = metrics.classifier_traffic(
        20, 64, protocol=metrics.Protocol(True, "union", "secure"), rows_per_client=33
    )
    assert lines["secure, union"][1:3] == [
        f"{traffic.bytes_down:,.0f}",
        f"{traffic.bytes_up:,.0f}",
    ]
    for end in ("md", "csv", "png", "pdf"):
        assert (tmp_path / f"defences.{end}").exists()
    # Of other flags it is not.
    code, _, errors = run(*flags, "--batch_size=7")
    assert code == 2 and "is of other flags: --batch_size=32 there, 7 here" in errors


def test_measurements_of_other_rounds_are_not_averaged():
    # 16 of 99 clients a round: 30 participations are 186 rounds, and 200 are 32.3.
    records = [
        {
            "attack": "traced, no request",
            "control": "",
            "x": rounds,
            "chance": 0.03,
            "precision_at": precision,
        }
        for rounds, precision in ((6, 0.1), (186, 0.54), (200, 0.57))
    ]
    own = json.loads(fake({}, 0.4))["measured"]
    task = types.SimpleNamespace(
        dataset=types.SimpleNamespace(num_classes=659, num_clients=99)
    )
    row = defence_table._row(
        defence_table.Config(clients_per_round=16, embedding_dim=64),
        task,
        next(v for v in defence_table.VIEWS if v.title == "secure, all"),
        20,
        [measured.Measured(**own, attacks=tuple(records))],
        (1, 30, 300),
    )
    assert row["success"]["sums"] == {1: 0.1, 30: 0.54, 32.3: 0.57}
    assert [defence_table.best(row, t) for t in (1, 30, 300)] == [0.1, 0.54, 0.57]


@pytest.mark.slow
def test_a_training_of_another_process_is_left_to_it(run, tmp_path):
    place = tmp_path / "m10" / "fresh" / "seed0"
    place.mkdir(parents=True)
    with contextlib.closing(files.Lock(place / ".lock")):
        code, output, errors = run(
            *SMALL, "--trainings=fresh", f"--results_dir={tmp_path}"
        )
    assert code == 2 and "has no finished training" in errors
    assert "Another process is training that." in output
    assert not (place / "done.json").exists()


def test_trainings_are_attacked_and_kept(run, tmp_path):
    flags = (*SMALL, "--trainings=fresh,threshold", f"--results_dir={tmp_path}")
    code, output, errors = run(*flags)
    assert code == 0, errors
    assert "secure, all, t = 3" in output
    found = {}
    for name in ("fresh", "threshold"):
        folder = tmp_path / "m10" / name / "seed0"
        found[name] = json.loads((folder / "done.json").read_text())
        assert (folder / "attacks.csv").exists() and (folder / "metrics.csv").exists()
    # The same seeds ask for the same classes, and the process counts their union.
    fresh, threshold = (found[name]["measured"] for name in ("fresh", "threshold"))
    assert fresh["union"] == threshold["union"]
    assert fresh["classes_per_client"] == threshold["classes_per_client"]
    rows = (tmp_path / "m10/threshold/seed0/metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("bytes_down")
    down = np.array([float(row.split(",")[column]) for row in rows[2:]])
    assert np.ptp(down) % (4 * 65) == 0
    by_attack = {
        name: {a["attack"] for a in one["attacks"]} for name, one in found.items()
    }
    assert {"requests", "unions", "update", "phi"} <= by_attack["fresh"]
    assert not {"update", "phi"} & by_attack["threshold"]
    code, again, errors = run(*flags)
    assert code == 0 and "of 2:" not in again
    assert isinstance(measured.Measured(**fresh, attacks=()), measured.Measured)
