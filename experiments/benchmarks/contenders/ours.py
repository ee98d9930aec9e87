"""This project, in either of its runtimes.

FedAvg is `build_fedss(method="full_softmax")` without server momentum: every client
gets the whole model and returns its delta.

Options:
    runtime: "in_process", with a client on each core, or "native".
"""

import os

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.benchmarks import protocol
from experiments.benchmarks.contenders import tf_model
from experiments.benchmarks.workload import (
    BATCH_SIZE,
    LEARNING_RATE,
    LOGIT_SCALE,
    MAX_POSITIVES,
    NUM_NEGATIVES,
    Workload,
)
from tff_fedss import algorithms
from tff_fedss import runtime as runtimes
from tff_fedss.algorithms import client_update


class Ours(tf_model.TfContender):
    """The learning process of this project."""

    def __init__(self, workload: Workload, runtime: str = "in_process"):
        if runtime == "in_process":
            runtimes.use_one_thread_per_operation()
        super().__init__(workload)
        if runtime == "in_process":
            at_once = len(os.sched_getaffinity(0))
            self._context = runtimes.InProcessContext(None, at_once)
            self.settings = f"in-process runtime, {at_once} clients, a thread each"
        else:
            self._context = runtimes.NativeContext()
            self.settings = "TFF's C++ runtime, all clients at once"
        self._data = [
            {
                "data": tf.data.Dataset.from_tensor_slices(
                    {"image": client.images[order], "label": client.labels[order]}
                ),
                "seed": client.seed,
            }
            for client in self._clients
            for order in [_unshuffled(client)]
        ]

    def build(self) -> None:
        workload = self._workload
        is_fedss = workload.algorithm == "fedss"
        self._process = algorithms.build_fedss(
            lambda: tf_model.feature_extractor(workload),
            workload.num_classes,
            algorithms.ClassSets(MAX_POSITIVES, NUM_NEGATIVES if is_fedss else 0),
            algorithms.ClientTraining(
                tff.learning.optimizers.build_sgdm(LEARNING_RATE),
                BATCH_SIZE,
                logit_scale=LOGIT_SCALE,
            ),
            algorithms.ServerUpdate(tff.learning.optimizers.build_sgdm(1.0)),
            method="fedss" if is_fedss else "full_softmax",
        )
        with self._here():
            self._state = self._process.set_model_weights(
                self._process.initialize(),
                tff.learning.models.ModelWeights(self._initial(), []),
            )

    def one_round(self) -> None:
        with self._here():
            self._state, _ = self._process.next(self._state, self._data)

    def _trainable(self):
        with self._here():
            return self._process.get_model_weights(self._state).trainable

    def _here(self):
        return tff.framework.get_context_stack().install(self._context)

    def close(self) -> None:
        self._context.close()


def _unshuffled(client) -> np.ndarray:
    """The order that the shuffling of a round turns into the workload's own order."""
    order = client_update.example_order(len(client.labels), client.seed, 0)
    return np.argsort(order.numpy())


if __name__ == "__main__":
    protocol.serve(Ours)
