"""Rounds in which clients get more than they ask for, or rare rows are dropped."""

import numpy as np
import pytest

from tests.algorithms.toy import (
    NUM_CLASSES,
    build,
    make_cohort,
    rounds_like_the_twin,
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
    initial = process.initialize().classifier
    for r in range(2):
        state, metrics = rounds_like_the_twin(
            process, "fedss", M, r + 1, scale=3.0, threshold=threshold
        )
        counts = np.zeros(NUM_CLASSES, int)
        for client in to_twin(make_cohort(seed=r), "fedss", M):
            counts[sorted({*client["labels"], *client["negatives"]})] += 1
        dropped = (counts > 0) & (counts < threshold)
        assert metrics["w/dropped_rows"] == dropped.sum()
        if r == 0:
            np.testing.assert_array_equal(
                (state.classifier != initial).any(1), counts >= threshold
            )
