"""Runs of what hides requests and rare rows resume from a checkpoint, byte for byte."""

import functools

import numpy as np
import pytest

from tests.algorithms import toy
from tff_fedss import algorithms, class_set_defences, tasks, training
from tff_fedss.algorithms import aggregation
from tff_fedss.datasets.federated.dataset import FederatedDataset

M = 4
DEFENCES = {
    "memoised": {"negatives": ("memoised", {})},
    "randomized_response": {"negatives": ("randomized_response", {"epsilon": 3.0})},
    "union": {"requests": "union"},
    "all": {"requests": "all"},
    "threshold": {"threshold": 2},
    "all of them": {
        "negatives": ("pool", {"pool_size": 6}),
        "requests": "union",
        "threshold": 2,
    },
}


@functools.cache
def task():
    cohort = toy.make_cohort()
    dataset = FederatedDataset.from_arrays(
        {f"client{i}": (c["image"], c["label"]) for i, c in enumerate(cohort)},
        (cohort[0]["image"], cohort[0]["label"]),
        num_classes=toy.NUM_CLASSES,
    )
    return tasks.Classification(dataset, toy.dense_features)


def process(negatives=None, requests="sampled", threshold=1):
    own = {"max_positives": toy.MAX_POSITIVES, "num_negatives": M}
    if negatives is not None:
        name, options = negatives
        sizes = (toy.NUM_CLASSES, M, toy.MAX_POSITIVES)
        own = {"builder": class_set_defences.builder(name, *sizes, **options)}
    return algorithms.build_fedss(
        toy.dense_features,
        toy.NUM_CLASSES,
        algorithms.ClassSets(requests=requests, with_positives=True, **own),
        server_update=algorithms.ServerUpdate(
            rows_aggregator=aggregation.SparseRowsFactory(threshold)
        ),
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "all of them" else pytest.mark.slow)
        for name in DEFENCES
    ],
)
def test_a_run_resumes_from_a_checkpoint_to_the_same_bytes(name, tmp_path):
    built = process(**DEFENCES[name])

    def new():
        return training.FederatedRun("x", built, task(), cohort_size=2, seed=3)

    whole, first = new(), new()
    expected = [whole.run_round() for _ in range(4)]
    found = [first.run_round() for _ in range(2)]
    checkpoints = training.Checkpoints(tmp_path)
    checkpoints.save(first.state, first.round_num)
    later = new()
    later.resume(*training.Checkpoints(tmp_path).restore(later.state))
    assert later.round_num == 2
    found += [later.run_round() for _ in range(2)]
    assert found == expected
    toy.same_bytes(whole.state, later.state)
    # Something was trained, and another seed would have come to something else.
    assert not np.array_equal(whole.state.classifier, first.state.classifier)
