"""Adapters of tasks and processes for the program loops of `tff.learning.programs`.

A client's argument there is one data set (`tff.program.NativeFederatedContext` of TFF
0.87 loses clients whose arguments are structures), so each example carries the client's
seed; and metrics are expected at client_work/train.
"""

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss.datasets.federated.preprocessing import TracedOnce
from tff_fedss.tasks import FederatedTask
from tff_fedss.training.federated_run import client_selection_fn

_SEED = "seed"


def for_programs(
    process: tff.learning.templates.LearningProcess,
) -> tff.learning.templates.LearningProcess:
    """Makes a process for `tff.learning.programs.train_model`.

    Args:
        process: From `algorithms.build_fedss`, without positives or permanent seeds.

    Returns:
        The process, with the same weights after each round. A client's argument is a
        data set of {"image", "label", "seed"}, with the client's seed, int32[2], in all
        examples; metrics are in `metrics["client_work"]["train"]`.

    Raises:
        ValueError: If clients have arguments other than "data" and "seed".
    """
    state_type, clients_type = process.next.type_signature.parameter
    names = tff.structure.name_list(clients_type.member)
    if names != ["data", _SEED]:
        cure = "give ClassSets with_positives=False and no permanent builder"
        raise ValueError(f"clients have {names}, expected data and seed: {cure}.")
    element_type = clients_type.member.data.element
    packed_type = tff.SequenceType(
        collections.OrderedDict(
            tff.structure.iter_elements(element_type),
            **{_SEED: tff.TensorType(np.int32, [2])},
        )
    )

    @tff.tensorflow.computation(packed_type)
    def unpack(data):
        seed = data.take(1).reduce(tf.zeros([2], tf.int32), lambda _, e: e[_SEED])
        return collections.OrderedDict(data=data.map(_without_seed), seed=seed)

    @tff.tensorflow.computation(process.next.type_signature.result.metrics.member)
    def nest(metrics):
        return collections.OrderedDict(
            client_work=collections.OrderedDict(train=metrics)
        )

    @tff.federated_computation(state_type, tff.FederatedType(packed_type, tff.CLIENTS))
    def next_round(state, clients):
        output = process.next(state, tff.federated_map(unpack, clients))
        metrics = tff.federated_map(nest, output.metrics)
        return tff.learning.templates.LearningProcessOutput(output.state, metrics)

    return tff.learning.templates.LearningProcess(
        process.initialize,
        next_round,
        process.get_model_weights,
        process.set_model_weights,
    )


def _without_seed(example: Any) -> Any:
    return collections.OrderedDict((k, v) for k, v in example.items() if k != _SEED)


class DataSource(tff.program.FederatedDataSource):
    """The clients of a task, in the cohorts of a `FederatedRun` with the same seed.

    An iterator's state is the round, so that a resumed program continues with the next
    cohort.
    """

    def __init__(
        self,
        process: tff.learning.templates.LearningProcess,
        task: FederatedTask,
        seed: int,
    ):
        """Makes the source for a process of `for_programs`, with a seed of draws."""
        self._type = process.next.type_signature.parameter[1]

        class Iterator(tff.program.FederatedDataSourceIterator):
            """The source's iterator, which TFF makes from bytes by its class alone."""

            federated_type = self._type

            def __init__(self, round_num: int):
                self._round_num = round_num

            def select(self, k: int | None = None) -> list[tf.data.Dataset]:
                """Returns the arguments of k clients for the next round."""
                self._round_num += 1
                clients = client_selection_fn(task, k, seed)(self._round_num)
                return [_packed(c["data"], tf.constant(c["seed"])) for c in clients]

            @classmethod
            def from_bytes(cls, buffer: bytes) -> "Iterator":
                """Returns the iterator from the bytes of `to_bytes`."""
                return cls(int(buffer))

            def to_bytes(self) -> bytes:
                """Returns the round as bytes."""
                return str(self._round_num).encode()

        self._iterator_class = Iterator

    @property
    def federated_type(self) -> tff.FederatedType:
        """The type of the clients' argument of the process."""
        return self._type

    def iterator(self) -> tff.program.FederatedDataSourceIterator:
        """Returns an iterator that begins with the first round."""
        return self._iterator_class(0)


_packed = TracedOnce(
    lambda data, seed: data.map(
        lambda example: collections.OrderedDict(example, **{_SEED: seed})
    )
)
