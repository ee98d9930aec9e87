import functools

import numpy as np
import pytest

from tests.algorithms import toy
from tests.arrays import unit

WEIGHT, MARGIN = 0.02, 1.2
build = functools.partial(toy.build_fedaws, spreadout_margin=MARGIN)


def test_three_rounds_equal_the_numpy_twin():
    process = build(spreadout_weight=WEIGHT)
    state, _ = toy.rounds_like_the_twin(
        process, "pos_only", spreadout_weight=WEIGHT, spreadout_margin=MARGIN
    )
    # The regularizer had an effect: class 12 is in no client's set.
    moved = state.classifier[12] - process.initialize().classifier[12]
    assert np.abs(moved).max() > 1e-4


@pytest.mark.parametrize("k", [None, 2])
def test_without_weight_it_is_pos_only(k):
    aws = build(spreadout_weight=0.0, spreadout_neighbors=k)
    pos_only, cohort = toy.build("pos_only"), toy.to_tff(toy.make_cohort())
    ours, measured = aws.next(aws.initialize(), cohort)
    theirs, others = pos_only.next(pos_only.initialize(), cohort)
    toy.same_bytes(toy.weights_of(ours), toy.weights_of(theirs))
    # W is what the regularizer saw: its sum over the k nearest of each class, or all.
    units = unit(ours.classifier)
    distances = np.linalg.norm(units[:, np.newaxis] - units, axis=2)
    nearest = np.sort(distances)[:, 1:][:, :k]  # The first is the class itself.
    expected = (np.maximum(MARGIN - nearest, 0) ** 2).sum()
    assert expected > 0 and measured["spreadout_loss"] == pytest.approx(expected, 1e-4)
    assert "spreadout_loss" not in others
