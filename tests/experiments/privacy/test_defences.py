"""`./run.sh table privacy/defences`."""

import json
import types

from experiments.common import cells as cells_lib
from experiments.common import report, results
from experiments.fedss import run_parts
from experiments.fedss import train as fedss_train
from experiments.privacy import cells, train
from tests.experiments import central_runs, run_folders
from tff_fedss import metrics

HERE = train
TABLE = cells_lib.tables_of("privacy")["defences", "mini"]
SMALL = (
    "--dataset=glyphs:num_classes=60",
    "--num_negatives=10",
    "--rounds=2",
    "--clients_per_round=3",
    "--warm_start_epochs=0",
    "--attacked_clients=2",
    "--attacked_updates=1",
    "--most_updates=2",
    "--participations=1,2",
)


def test_attacks_are_on_what_is_seen():
    by_title = {view.title: {*view.attacks.values()} for view in cells.VIEWS}
    assert by_title["fresh (the paper)"] == {"requests", "update", "phi", "sums"}
    assert by_title["secure"] == {"requests", "sums"}
    assert by_title["secure, all"] == {"sums"}
    assert {view.training for view in cells.VIEWS} == {*cells.trainings(20)}


def write_training(folder, attacks, metric=0.5, num_clients=5, **flags):
    own = {"clients_per_round": 5, "rounds": 2, "embedding_dim": 64, **flags}
    own["seed"] = folder.name.removeprefix("seed")
    return run_folders.write_own_run(
        folder,
        "fedss",
        [{}, {}, {"top1": metric}],
        flags=dict.fromkeys(run_folders.FLAGS) | own,
        data={"num_classes": 60, "num_clients": num_clients},
        measured={
            "classes_per_client": 20.0,
            "union": 33.0,
            "share_trained": 1.0,
            "epsilon": None,
        },
        attacks=[
            {"attack": name, "control": "", "x": x, "chance": 0.03, "precision_at": p}
            for name, x, p in attacks
        ],
    )


def test_the_table_is_made_of_what_is_there(tmp_path):
    attacks = [
        ("requests", 1, 0.4),
        ("requests", 3, 0.5),
        ("unions", 3, 0.15),
        ("update", 1, 0.9),
        ("phi", 1, 0.3),
        ("traced, no request", 3, 0.25),
        ("traced through the noise, no request", 3, 0.35),
    ]
    for seed, metric in ((0, 0.5), (1, 0.7)):
        write_training(tmp_path / "m20_fresh" / f"seed{seed}", attacks, metric)
    text = report.write_table(("defences", "mini"), TABLE, tmp_path, 3, [])
    lines = {
        row[2]: row[3:-1]
        for line in text.splitlines()
        for row in [[cell.strip() for cell in line.split("|")]]
        if line.startswith("| 20")
    }
    titles = ["fresh (the paper)", "secure", "secure, union", "secure, all"]
    assert list(lines) == titles and "| 80" not in text
    fresh = lines["fresh (the paper)"]
    assert fresh[0] == "60.0 ± 14.1"
    assert fresh[3:7] == ["100", "none", "0.40 / 0.50", "0.90"]
    assert fresh[-2:] == ["0.90", "0.90"]
    assert lines["secure"][-4:] == ["0.40", "0.50", "0.50", "0.50"]
    # The better one of two attacks on sums.
    assert lines["secure, all"][-1] == "0.35"
    # Unions are seen after three participations alone; before that there are sums.
    assert lines["secure, union"][6] == "not seen"
    traffic = metrics.classifier_traffic(
        20, 64, protocol=metrics.Protocol(True, "union", "secure"), rows_per_client=33
    )
    expected = [f"{traffic.bytes_down:,.0f}", f"{traffic.bytes_up:,.0f}"]
    assert lines["secure, union"][1:3] == expected
    for end in ("md", "csv", "png", "pdf"):
        assert (tmp_path / f"defences.{end}").exists()


def test_measurements_of_other_rounds_are_not_averaged(tmp_path):
    # 16 of 99 clients a round: 30 participations are 186 rounds, and 200 are 32.3.
    found = ((6, 0.1), (186, 0.54), (200, 0.57))
    traced = [("traced, no request", x, precision) for x, precision in found]
    folder = tmp_path / "seed0"
    write_training(folder, traced, num_clients=99, clients_per_round=16)
    run = results.read_run(folder, TABLE.kind)
    row = cells.rows_of({"m20_fresh": [run]})[-1]
    assert row["success"]["sums"] == {1: 0.1, 30: 0.54, 32.3: 0.57}
    assert [cells.best(row, t) for t in (1, 30, 300)] == [0.1, 0.54, 0.57]


def test_trainings_are_attacked_and_kept(run_here, tmp_path, one_layer):
    found = {}
    for name in ("fresh", "threshold"):
        folder = tmp_path / f"m20_{name}" / "seed0"
        settings = cells_lib.as_arguments(cells.trainings(20)[name])
        flags = (*SMALL, *settings, f"--results_dir={folder}")
        run_here(*flags).ok()
        found[name] = json.loads((folder / "done.json").read_text())
    # The same seeds ask for the same classes, and the process counts their union.
    fresh, threshold = (found[name]["measured"] for name in ("fresh", "threshold"))
    assert fresh["union"] == threshold["union"]
    assert fresh["classes_per_client"] == threshold["classes_per_client"]
    lines = (tmp_path / "m20_threshold/seed0/metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("bytes_down")
    down = [float(line.split(",")[column]) for line in lines[2:]]
    assert len(down) == 2 and (down[0] - down[1]) % (4 * 65) == 0
    by_attack = {
        name: {a["attack"] for a in one["attacks"]} for name, one in found.items()
    }
    assert {"requests", "unions", "update", "phi"} <= by_attack["fresh"]
    assert not {"update", "phi"} & by_attack["threshold"]
    again, _ = run_here(*flags).ok()
    assert "Already done, nothing to run.\ntop-1" in again
    run_of = {
        f"m20_{name}": [
            results.read_run(tmp_path / f"m20_{name}" / "seed0", TABLE.kind)
        ]
        for name in found
    }
    titles = [row["title"] for row in cells.rows_of(run_of)]
    assert "secure" in titles and "secure, all, t = 3" in titles


def test_a_poisson_cohort_without_clients_is_no_error(run_here, tmp_path, one_layer):
    dp = ("--dp=gaussian:noise=0.5,sampling=poisson", "--clients_per_round=1")
    run_here(*SMALL, *dp, "--rounds=4", f"--results_dir={tmp_path}").ok()
    _, *rows = central_runs.rows_of(tmp_path)
    assert {bool(row["classes_per_client"]) for row in rows} == {True, False}


def test_a_warm_start_in_a_cache_is_that_of_train(monkeypatch):
    keys = []
    monkeypatch.setattr(
        run_parts.training,
        "cached_warm_start",
        lambda folder, deciding, *_: keys.append(deciding),
    )
    task = types.SimpleNamespace(
        model=types.SimpleNamespace(get_weights=list), dataset=None
    )
    for program in (fedss_train, train):
        config = program.Config(warm_start_epochs=1, warm_start_cache="cache")
        run_parts.initial_phi(config, task, {})
    assert keys[0] == keys[1]
