"""`./run.sh privacy`."""

import csv
import pathlib

import numpy as np
import pytest

from experiments.fedss import run_config, run_parts
from experiments.privacy import attacks, privacy, seen
from tests.privacy.test_intersection import expected
from tff_fedss.privacy import intersection, success

HERE = privacy
N, M, CLIENTS = 120, 40, 24  # All of them.
PUBLISHED = pathlib.Path(__file__).parents[3] / "docs/results/privacy"


def read(folder):
    texts = ("kind", "attack", "control")
    with open(folder / "attacks.csv") as file:
        return [
            {k: v if k in texts else float(v) for k, v in row.items()}
            for row in csv.DictReader(file)
        ]


def test_the_intersection_is_as_precise_as_the_closed_form_says(run_here, tmp_path):
    output, _ = run_here(
        "--attack=intersection",
        f"--dataset=glyphs:num_classes={N}",
        f"--num_negatives={M}",
        f"--attacked_clients={CLIENTS}",
        "--participations=1,2,4",
        f"--results_dir={tmp_path}",
    ).ok()
    assert "# What the server learns" in output and "## intersection" in output
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["attacks.csv", "attacks.md"]
    rows = {(r["attack"], r["control"], r["x"]): r for r in read(tmp_path)}
    dataset = run_parts.load_dataset(
        run_config.with_defaults(privacy.Config(dataset=f"glyphs:num_classes={N}"))
    )
    sizes = [len(dataset.positives(k)) for k in dataset.train.client_ids]
    for t in (1, 2, 4):
        exact = np.array([expected(N, p, M, t) for p in sizes])
        found = rows["fresh", "", t]
        assert found["clients"] == CLIENTS and found["recall"] == 1
        tolerance = 1e-9 if t == 1 else 0.1
        assert found["precision"] == pytest.approx(exact[:, 0].mean(), abs=tolerance)
        # Those who hold nothing, and all controls, are at chance.
        nothing = "fresh, client that holds nothing"
        for attack, control in (
            (nothing, ""),
            ("fresh", "random classes"),
            ("fresh", "guessed"),
        ):
            # An AUC of 16 among 120 classes has a deviation of 0.08.
            assert abs(rows[attack, control, t]["auc"] - 0.5) < 4 * 0.08 / CLIENTS**0.5
    assert rows["fresh", "", 4]["auc"] > 0.97


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--participations=1,0"], "1,0: expected a whole number of at least 1"),
        (
            ["--attack=update,phi", "--aggregation=secure"],
            "nothing is left to attack. update: --aggregation=secure shows sums.",
        ),
        (["--server_optimizer=sgdm:learning_rate=0"], "give sgdm, a rate above 0"),
    ],
)
def test_bad_flags_are_named_in_a_line(run_here, tmp_path, flags, message):
    run_here(*flags, f"--results_dir={tmp_path}").refused(message, prints=True)


def test_the_published_paper_settings_follow_from_the_sizes():
    lines = (PUBLISHED / "paper_settings.md").read_text().splitlines()
    rows = [
        [x.strip() for x in line.split("|")[1:-1]] for line in lines if "mean " in line
    ]
    assert len(rows) == 3 * 5
    for _, _, n, positives, m, _, *printed in rows:
        sizes = int(n.replace(",", "")), int(float(positives)), int(m)
        for t, text in zip((1, 2, 3, 5, 10), printed, strict=True):
            precision, exact, _ = expected(*sizes, t)
            assert text == f"{precision:.3f} ({exact:.2f})"


def test_a_summary_is_the_mean_over_clients():
    outcomes = [(0.1, *success.Success(a, a / 2, 1, 0.5, 0)) for a in (0.6, 0.8)]
    attack = attacks.Attack(seed=0)
    attack.outcomes = {("x", "", 3): outcomes, ("x", "guessed", 3): outcomes[:1]}
    first, second = attack.summary()
    assert (first["clients"], second["clients"]) == (2, 1)
    assert first["auc"] == pytest.approx(0.7)
    assert first["precision_at"] == pytest.approx(0.35)
    assert first["auc_std"] == pytest.approx(0.1)


def test_an_attack_where_there_is_nothing_to_tell_leaves_no_record():
    attack = attacks.Attack(seed=0)
    for truth in (np.ones(3, bool), np.zeros(3, bool)):
        attack.judge("x", 1, np.arange(3.0), truth)
    assert not attack.outcomes


@pytest.mark.slow
def test_a_single_update_tells_the_positives(run_here, tmp_path):
    """All attacks in a training of glyphs, n = 500 and m = 40."""
    run_here(
        "--num_negatives=40",
        "--rounds=10",
        "--rounds_per_evaluation=8",
        "--attacked_clients=6",
        f"--results_dir={tmp_path}",
    ).ok()
    found = read(tmp_path)
    rows = {
        name: {
            (r["attack"], r["x"]): r
            for r in found
            if r["kind"] == name and not r["control"]
        }
        for name in privacy.ATTACKS
    }
    # What phi tells gets less as it is trained.
    for round_num, least in ((1, 0.9), (9, 0.7)):
        best = rows["update"]["bundle and features", round_num]
        assert best["auc"] > 0.98 and best["precision_at"] > 0.9
        assert rows["phi"]["kernel, public images", round_num]["auc"] > least
    assert rows["aggregate"]["of anyone in the cohort", 9]["auc"] > 0.95
    assert rows["aggregate"]["traced, no request", 10]["auc"] > 0.75
    for name in privacy.ATTACKS:
        own = [r for r in found if r["kind"] == name]
        controls = [r["auc"] for r in own if r["control"]]
        assert abs(np.mean(controls) - 0.5) < 0.03


def test_rows_that_do_not_move_are_no_positives():
    rng = np.random.default_rng(0)
    rows, classifier = rng.normal(size=(2, 9, 5))
    model = seen.Model(classifier, None, None, None, np.ones(5))
    is_all, still = np.ones(9, bool), np.arange(9) < 3
    moved = np.where(still[:, np.newaxis], 0.0, rows)
    found = attacks.row_scores(is_all, moved, model, 6)
    alone = attacks.row_scores(~still, rows, model, 3)
    for name, scores in found.items():
        np.testing.assert_allclose(scores, alone[name])
        assert (scores[:3] == scores.min()).all()
    nothing = attacks.row_scores(is_all, 0 * rows, model, 6)
    assert list(nothing) == list(found)
    assert not any(scores.any() for scores in nothing.values())


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_secure_sums_hide_which_decoys_of_a_client_train(
    run_here, tmp_path, aggregation
):
    run_here(
        "--attack=intersection",
        f"--dataset=glyphs:num_classes={N}",
        "--negatives=pool:size=60",
        f"--num_negatives={M}",
        f"--aggregation={aggregation}",
        "--participations=1",
        "--attacked_clients=1",
        f"--results_dir={tmp_path}",
    ).ok()
    moves = ["rows that move" in row["attack"] for row in read(tmp_path)]
    assert any(moves) == (aggregation == "plain")


ONE_ROUND = (
    "--attack=update",
    "--dataset=glyphs:num_classes=60",
    "--num_negatives=20",
    "--rounds=1",
    "--warm_start_epochs=0",
    "--clients_per_round=3",
    "--attacked_clients=2",
    "--public_images=100",
)


def test_the_server_sees_updates_before_it_adds_noise(run_here, tmp_path, one_layer):
    found = []
    for flags in ((), ("--dp=gaussian:noise=1",)):
        folder = tmp_path / str(len(flags))
        run_here(*ONE_ROUND, *flags, f"--results_dir={folder}").ok()
        found.append(read(folder))
    plain, noisy = found
    assert [row["auc"] for row in plain] == [row["auc"] for row in noisy]
    assert max(row["auc"] for row in plain) > 0.9


def test_with_all_classes_on_each_client_there_is_nothing_to_find(run_here, tmp_path):
    run_here(
        "--attack=intersection",
        "--dataset=glyphs:num_classes=10",
        "--num_negatives=1",
        "--clients_per_round=4",
        f"--results_dir={tmp_path}",
    ).refused("holds all 10 classes: there is nothing to find", prints=True)
    assert intersection.fresh(10, 10, 1).other == 1
    assert intersection.fresh(10, 8, 5).other == 1
