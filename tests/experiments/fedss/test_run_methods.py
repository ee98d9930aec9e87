import types

import numpy as np
import pytest

from experiments.fedss import run_config, run_methods


@pytest.mark.parametrize(
    "margin, told",
    [
        (1.0, "no class is within --spreadout_margin=1 of another"),
        (1.5, "3 other classes, on average, are within --spreadout_margin=1.5"),
    ],
)
def test_a_run_says_whether_spreadout_has_anything_to_do(margin, told):
    weights = types.SimpleNamespace(trainable=[np.zeros(3), 7 * np.eye(4)])
    config = run_config.RunConfig(method="fedaws", spreadout_margin=margin)
    text = run_methods._tell_spreadout(config, types.SimpleNamespace(weights=weights))
    assert told in text
    assert ("this is PosOnly" in text) == (margin < 1.4)
