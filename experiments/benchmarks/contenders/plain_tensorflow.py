"""FedAvg and FedSS in plain TensorFlow: the limit of what TensorFlow can do.

One tf.function step per batch, called from Python, one client after the other; every
operation may use all cores. All contenders are checked against this one.

Options:
    nudged: A seed. Every initial weight is moved to one of the two adjacent float32
    values, to measure the effect of rounding alone.
"""

import numpy as np
import tensorflow as tf

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
from tff_fedss import class_sets, losses, models
from tff_fedss.algorithms import client_update


class PlainTensorFlow(tf_model.TfContender):
    """A loop over clients and batches."""

    def __init__(self, workload: Workload, nudged: str | None = None):
        super().__init__(workload)
        self.settings = "one client at a time"
        if nudged:
            self.settings += ", initial weights moved by one float32 step"
        self._nudged = nudged

    def build(self) -> None:
        model, workload = self._phi, self._workload
        if workload.algorithm == "fedss":
            sets = class_sets.SampledClasses(
                workload.num_classes, NUM_NEGATIVES, MAX_POSITIVES
            )
            loss_fn = losses.fedss_loss
        else:
            sets = class_sets.AllClasses(workload.num_classes)

            def loss_fn(logits, targets, is_member, log_correction):
                del is_member, log_correction
                return losses.softmax_loss(logits, targets)

        initial = self._initial()
        if self._nudged:
            rng = np.random.default_rng(int(self._nudged))
            ends = np.float32([-np.inf, np.inf])
            initial = [np.nextafter(w, rng.choice(ends, w.shape)) for w in initial]
        self._server = [tf.Variable(value) for value in initial]
        *server_phi, server_w = self._server
        rows = tf.Variable(tf.zeros([sets.size, workload.embedding_dim]))
        parameters = [*model.trainable_variables, rows]

        @tf.function
        def begin(labels, seed):
            class_set = sets.build(labels, client_update.negatives_seed(seed))
            for v, value in zip(parameters, server_phi, strict=False):
                v.assign(value)
            rows.assign(tf.gather(server_w, class_set.keys))
            return class_set, class_sets.positions(class_set, labels)

        @tf.function
        def step(images, targets, class_set):
            with tf.GradientTape() as tape:
                logits = models.cosine_logits(
                    model(tf.cast(images, tf.float32), training=True), rows, LOGIT_SCALE
                )
                loss = tf.reduce_mean(
                    loss_fn(
                        logits, targets, class_set.is_member, class_set.log_correction
                    )
                )
            gradient = tape.gradient(loss, parameters)
            for v, g in zip(parameters, gradient, strict=True):
                v.assign_sub(LEARNING_RATE * g)

        @tf.function
        def end(keys, sums, weight):
            *phi_sums, w_sum = sums
            phi_sums = [
                s + weight * (v - value)
                for s, v, value in zip(phi_sums, parameters, server_phi, strict=False)
            ]
            delta = weight * (rows - tf.gather(server_w, keys))
            return *phi_sums, tf.tensor_scatter_nd_add(w_sum, keys[:, None], delta)

        @tf.function
        def update(sums, weight):
            for v, s in zip(self._server, sums, strict=True):
                v.assign_add(s / weight)

        self._functions = begin, step, end, update

    def one_round(self) -> None:
        begin, step, end, update = self._functions
        sums, total = tuple(tf.zeros_like(v) for v in self._server), 0.0
        for client in self._clients:
            class_set, targets = begin(client.labels, client.seed)
            for start in range(0, len(client.labels), BATCH_SIZE):
                batch = slice(start, start + BATCH_SIZE)
                step(client.images[batch], targets[batch], class_set)
            weight = float(len(client.labels))
            sums = end(class_set.keys, sums, tf.constant(weight))
            total += weight
        update(sums, tf.constant(total))
        self._server[-1].numpy()  # Waits until it is done.

    def _trainable(self) -> list[np.ndarray]:
        return [v.numpy() for v in self._server]


if __name__ == "__main__":
    protocol.serve(PlainTensorFlow)
