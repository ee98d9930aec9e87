import functools
import itertools

import numpy as np
import pytest

from tests.algorithms import toy

WEIGHT, MARGIN = 0.02, 1.2
build = functools.partial(toy.build_fedaws, spreadout_margin=MARGIN)


@pytest.fixture(scope="module")
def process():
    return build(spreadout_weight=WEIGHT)


def test_three_rounds_equal_the_numpy_twin(process):
    state, _ = toy.rounds_like_the_twin(
        process, "pos_only", spreadout_weight=WEIGHT, spreadout_margin=MARGIN
    )
    # The regularizer had an effect: class 12 is in no client's set.
    moved = state.classifier[12] - process.initialize().classifier[12]
    assert np.abs(moved).max() > 1e-4


def test_without_weight_it_is_pos_only():
    aws, pos_only = build(spreadout_weight=0.0), toy.build("pos_only")
    cohort = toy.to_tff(toy.make_cohort())
    ours, measured = aws.next(aws.initialize(), cohort)
    theirs, others = pos_only.next(pos_only.initialize(), cohort)
    toy.same_bytes(toy.weights_of(ours), toy.weights_of(theirs))
    # W is what the regularizer saw: its sum, pair by pair.
    units = ours.classifier / np.linalg.norm(ours.classifier, axis=1, keepdims=True)
    distances = [np.linalg.norm(u - v) for u, v in itertools.permutations(units, 2)]
    expected = sum(max(0.0, MARGIN - distance) ** 2 for distance in distances)
    assert expected > 0 and measured["spreadout_loss"] == pytest.approx(expected, 1e-4)
    assert "spreadout_loss" not in others


def test_all_neighbors_are_all_pairs(process):
    nearest = build(spreadout_weight=WEIGHT, spreadout_neighbors=toy.NUM_CLASSES - 1)
    cohort = toy.to_tff(toy.make_cohort())
    a, _ = process.next(process.initialize(), cohort)
    b, _ = nearest.next(nearest.initialize(), cohort)
    toy.assert_close(a, b)
