"""Rounds in which clients get more than they ask for, or rare rows are dropped."""

import numpy as np
import pytest

from examples import fedss_numpy
from tests.algorithms.toy import (
    BATCH_SIZE,
    ETA,
    NUM_CLASSES,
    build,
    make_cohort,
    same_bytes,
    to_tff,
    to_twin,
    weights_of,
)
from tff_fedss.algorithms import aggregation

M = 4


def two_rounds(process):
    """The state and the metrics of each round."""
    state, measured = process.initialize(), []
    for r in range(2):
        state, metrics = process.next(state, to_tff(make_cohort(seed=r)))
        measured.append(dict(metrics))
    return state, measured


@pytest.mark.parametrize(
    "requests", ["union", pytest.param("all", marks=pytest.mark.slow)]
)
def test_what_else_a_client_gets_changes_no_byte(requests):
    """Nor does a threshold that one contributor reaches."""
    expected, of_sampled = two_rounds(build("fedss", M))
    factory = aggregation.SparseRowsFactory(1)
    process = build("fedss", M, requests=requests, rows_aggregator=factory)
    found, metrics = two_rounds(process)
    same_bytes(weights_of(expected), weights_of(found))
    for r, (ours, theirs) in enumerate(zip(metrics, of_sampled, strict=True)):
        assert theirs.pop("rows_per_client") == theirs["classes_per_client"]
        rows = ours.pop("rows_per_client")
        assert ours.pop("w/dropped_rows") == 0
        assert ours == theirs
        union = set()
        for client in to_twin(make_cohort(seed=r), "fedss", M):
            union |= {*client["labels"], *client["negatives"]}
        assert rows == (NUM_CLASSES if requests == "all" else len(union))
    # A union that is everything would not be tested against `all`.
    assert requests == "all" or len(union) < NUM_CLASSES


# A small scale: no row's gradient is lost in float32, so that who moves a row is clear.
@pytest.mark.parametrize(
    "threshold, requests",
    [(2, "all"), pytest.param(3, "union", marks=pytest.mark.slow)],
)
def test_rare_rows_are_dropped_as_in_the_twin(threshold, requests):
    process = build(
        "fedss",
        M,
        logit_scale=3.0,
        requests=requests,
        rows_aggregator=aggregation.SparseRowsFactory(threshold),
    )
    state = process.initialize()
    theta = [np.array(p, np.float64) for p in weights_of(state)]
    velocity = [np.zeros_like(p) for p in theta]
    for r in range(2):
        cohort = make_cohort(seed=r)
        before = theta[-1]
        state, metrics = process.next(state, to_tff(cohort))
        twins = to_twin(cohort, "fedss", M)
        theta, velocity, _ = fedss_numpy.one_round(
            "fedss",
            theta,
            velocity,
            twins,
            eta=ETA,
            batch_size=BATCH_SIZE,
            scale=3.0,
            threshold=threshold,
        )
        for ours, twins_own in zip(weights_of(state), theta, strict=True):
            np.testing.assert_allclose(ours, twins_own, rtol=1e-4, atol=1e-6)
        counts = np.zeros(NUM_CLASSES, int)
        for client in twins:
            counts[sorted({*client["labels"], *client["negatives"]})] += 1
        dropped = (counts > 0) & (counts < threshold)
        assert metrics["w/dropped_rows"] == dropped.sum()
        if r == 0:
            np.testing.assert_array_equal(
                (theta[-1] != before).any(1), counts >= threshold
            )
