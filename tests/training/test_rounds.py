"""What a round draws, says and stops at."""

import collections
import math
import os

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.refusals import refused
from tff_fedss.errors import RunStoppedError
from tff_fedss.training import Progress, draws, progress
from tff_fedss.training.loop import DivergenceGuard

IDS = [f"client_{i}" for i in range(30)]


def test_client_seeds_depend_on_seed_round_and_client():
    keys = [
        (0, 1, "a"),
        (1, 1, "a"),
        (0, 2, "a"),
        (0, 1, "b"),
        (0, 11, ""),
        (0, 1, "1"),
    ]
    seeds = [tuple(draws.client_seed(*key)) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert draws.client_seed(0, 1, "a").dtype == np.int32
    assert draws.client_seed(0, 1, os.fsdecode(b"M\xfcller")).shape == (2,)


def test_draws_are_pinned():
    # A change of these functions changes every published result: it must be meant.
    np.testing.assert_array_equal(
        draws.client_seed(0, 1, "client_0"), [1015356337, -825583442]
    )
    keys = (0, "a"), (0, "b"), (1, "a")
    permanent = [draws.permanent_seed(*key)[0] for key in keys]
    assert permanent == [-2043132215, 1945071196, 760541071]
    assert draws.cohort(0, 1, IDS, 3) == ["client_15", "client_7", "client_18"]
    assert draws.cohort(1, 1, IDS, 3) == ["client_5", "client_4", "client_20"]
    independent = [draws.poisson_cohort(seed, 1, IDS, 3) for seed in range(2)]
    assert independent == [["client_27"], ["client_5", "client_18"]]


def test_all_clients_are_equally_likely():
    counts = collections.Counter(
        c for round_num in range(1000) for c in draws.cohort(0, round_num, IDS, 10)
    )
    # Each is in a cohort with probability 1/3; five standard deviations.
    expected, deviation = 1000 / 3, np.sqrt(1000 * 2 / 9)
    for client_id in IDS:
        assert abs(counts[client_id] - expected) < 5 * deviation


@pytest.mark.parametrize("draw", draws.SAMPLINGS.values(), ids=draws.SAMPLINGS)
@pytest.mark.parametrize("size", [0, 31])
def test_a_cohort_that_cannot_be_had_is_refused(draw, size):
    with pytest.raises(ValueError, match=f"cohort_size={size} .* and at most 30"):
        draw(0, 1, IDS, size)


def test_poisson_cohorts_are_independent_coins():
    cohorts = [set(draws.poisson_cohort(0, r, IDS, 10)) for r in range(1000)]
    expected, deviation = 1000 / 3, np.sqrt(1000 * 2 / 9)
    for client_id in IDS:
        count = sum(client_id in cohort for cohort in cohorts)
        assert abs(count - expected) < 5 * deviation
    # Sizes vary as those of 30 coins do: 20 / 3; those of `cohort` would not.
    sizes = [len(cohort) for cohort in cohorts]
    assert np.mean(sizes) == pytest.approx(10, abs=5 * np.sqrt(20 / 3 / 1000))
    assert np.var(sizes) == pytest.approx(20 / 3, rel=0.2)
    # Two clients are in a cohort together as often as coins say: 1 / 9.
    both = sum({IDS[0], IDS[1]} <= cohort for cohort in cohorts)
    assert abs(both - 1000 / 9) < 5 * np.sqrt(1000 * 8 / 81)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_the_run(loss):
    with refused("fedss has diverged in round 7: its loss", RunStoppedError):
        DivergenceGuard("fedss", 9).check_round(7, {"loss": loss})


def test_a_weight_that_is_not_finite_stops_the_run():
    # Scalars may be infinite, and the sum of squares of finite numbers may be, too.
    large = np.float32(1e30) * np.ones(9, np.float32)
    good = [large, np.arange(2), np.float64(np.inf)]
    bad = [*good, np.array([[0.0, math.inf]])]
    guard = DivergenceGuard("moco", 9, "epoch")
    guard.check_weights(7, tff.learning.models.ModelWeights(good, []))
    guard.check_weights(7, good)
    with pytest.raises(RunStoppedError, match="in epoch 7: a weight is not finite"):
        guard.check_weights(7, bad)
    with pytest.raises(RunStoppedError, match="cannot be trained, before the first ep"):
        guard.check_weights(0, tff.learning.models.ModelWeights(bad, []))
    for value in (np.nan, -np.inf):
        with pytest.raises(RunStoppedError, match="not finite"):
            guard.check_weights(7, [*good, np.array([0.0, value])])


def test_a_metric_that_is_not_finite_stops_the_run():
    guard = DivergenceGuard("rff", 9)
    guard.check_metrics(3, {"perplexity": 1e300, "steps": 100})
    with pytest.raises(RunStoppedError, match="in round 4: perplexity is inf"):
        guard.check_metrics(4, {"perplexity": math.inf})


def test_rounds_without_an_accepted_client_are_counted():
    guard = DivergenceGuard("fedss", 100)
    lost, learnt = {"rejected_clients": 5}, {"loss": 2.0, "rejected_clients": 4}
    assert not guard.check_round(1, lost)
    assert not guard.check_round(2, lost)
    assert guard.check_round(3, learnt)
    assert not guard.check_round(4, lost)
    assert not guard.check_round(5, lost)
    with pytest.raises(RunStoppedError, match="in round 6: for 3 rounds in a row"):
        guard.check_round(6, lost)
    short = DivergenceGuard("fedss", 2)
    assert not short.check_round(1, lost)
    with pytest.raises(RunStoppedError, match="for 2 rounds"):
        short.check_round(2, lost)


def test_a_log_gets_lines_with_loss_accuracy_and_eta(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Progress({"fedss": 0, "full_softmax": 0}, 4) as bars:
        now[0] = 6.0
        bars.update("fedss", 1, {"loss": 2.5})
        assert capsys.readouterr().err == ""  # Too early for a line.
        now[0] = 12.0
        bars.update("full_softmax", 1, {"loss": 2.25})
        assert capsys.readouterr().err == (
            # Two of eight rounds took 12 s: six more take 36 s.
            "full_softmax  round 1/4  loss 2.250  ETA 00:36\n"
        )
        bars.update("fedss", 2, {"loss": 1.5, "top1": 0.125})
        line = capsys.readouterr().err
        assert line == "fedss         round 2/4  loss 1.500  top-1 12.5 %  ETA 00:20\n"
        # A metric keeps the number of its round; a loss ends the rejected clients.
        bars.update("fedss", 3, {"accuracy": 0.5, "rejected_clients": 2, "epsilon": 8})
        assert capsys.readouterr().err == ""
        bars.update("fedss", 4, {"loss": 1.25})
        assert capsys.readouterr().err == (
            "fedss         round 4/4  loss 1.250  top-1 12.5 % (round 2)  epsilon 8  "
            "ETA 00:07\n"
        )
        bars.update("full_softmax", 4, {"accuracy": 0.5, "rejected_clients": 2})
        assert capsys.readouterr().err == (
            "full_softmax  round 4/4  loss 2.250  acc 50.0 %  rejected clients 2  "
            "ETA 00:00\n"
        )
        bars.update("full_softmax", 4, {"top1": 0.25})
        line = capsys.readouterr().err
        assert "  loss 2.250  rejected clients 2  top-1 25.0 %  ETA" in line


def test_the_eta_of_a_resumed_run_counts_only_rounds_of_this_process(
    capsys, monkeypatch
):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Progress({"fedss": 900}, 1000) as bar:
        now[0] = 20.0
        bar.update("fedss", 902, {"loss": 2.5})
        # Two rounds took 20 s: 98 more take 980 s.
        line = capsys.readouterr().err
        assert line == "fedss  round 902/1000  loss 2.500  ETA 16:20\n"
