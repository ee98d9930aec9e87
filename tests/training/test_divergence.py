import math

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_fedss.errors import RunStoppedError
from tff_fedss.training.divergence import DivergenceGuard


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_the_run(loss):
    with pytest.raises(
        RunStoppedError, match="fedss has diverged in round 7: its loss"
    ):
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
    with pytest.raises(RunStoppedError, match="not finite"):
        guard.check_weights(7, tff.learning.models.ModelWeights(bad, []))
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
