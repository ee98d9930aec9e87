"""Processes whose clients make their data sets from their ids."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.toy import build, make_cohort, same_bytes, to_tff, weights_of
from tff_fedss import algorithms


def client_data(label_type=np.int32):
    return tff.simulation.datasets.TestClientData(
        {
            f"client {k}": collections.OrderedDict(
                image=client["image"], label=client["label"].astype(label_type)
            )
            for k, client in enumerate(make_cohort())
        }
    )


def test_clients_make_their_data_from_their_ids():
    process, data = build(), client_data()
    composed = algorithms.compose_dataset_computation(data.dataset_computation, process)
    cohort = make_cohort()
    clients = [
        {"data": client_id, "seed": client["seed"]}
        for client_id, client in zip(data.client_ids, cohort, strict=True)
    ]
    ours, metrics = composed.next(composed.initialize(), clients)
    theirs, expected = process.next(process.initialize(), to_tff(cohort))
    same_bytes(weights_of(ours), weights_of(theirs))
    assert metrics == expected
    weights = composed.get_model_weights(ours)
    assert composed.set_model_weights(ours, weights).round_num == 1


def test_data_of_another_type_are_refused():
    data = client_data(np.int64)
    with pytest.raises(TypeError, match="must give .*label=int32.*found .*label=int64"):
        algorithms.compose_dataset_computation(data.dataset_computation, build())


def test_a_round_without_clients_fails():
    process = build()
    with pytest.raises(RuntimeError, match="needs clients: process.next got none"):
        process.next(process.initialize(), [])


def test_tffs_names_of_weightings():
    names = tff.learning.ClientWeighting
    for weighting in names:
        update = algorithms.ServerUpdate(client_weighting=weighting)
        assert update.client_weighting == weighting.name.lower()
    mean = tff.aggregators.UnweightedMeanFactory()
    algorithms.ServerUpdate(phi_aggregator=mean, client_weighting=names.UNIFORM)
