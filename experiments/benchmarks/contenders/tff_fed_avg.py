"""TFF's own FedAvg, `tff.learning.algorithms.build_weighted_fed_avg`.

It runs in TFF's own C++ runtime, all clients at once; this project only manages the
worker process. The Keras model is the one that ours uses, with this project's fast
GroupNorm.
"""

import tensorflow as tf
import tensorflow_federated as tff

from experiments.benchmarks import protocol
from experiments.benchmarks.contenders import tf_model
from experiments.benchmarks.workload import (
    BATCH_SIZE,
    LEARNING_RATE,
    LOGIT_SCALE,
    Workload,
)
from tff_fedss import models, runtime


class _CosineClassifier(tf.keras.layers.Layer):
    def __init__(self, num_classes: int):
        super().__init__()
        self._num_classes = num_classes

    def build(self, input_shape):
        self._w = self.add_weight("w", (self._num_classes, input_shape[-1]))

    def call(self, features):
        return models.cosine_logits(features, self._w, LOGIT_SCALE)


class TffFedAvg(tf_model.TfContender):
    """TFF's own learning process."""

    settings = "TFF's C++ runtime, all clients at once"

    def __init__(self, workload: Workload):
        tff.framework.get_context_stack().set_default_context(runtime.NativeContext())
        super().__init__(workload)
        self._data = [
            tf.data.Dataset.from_tensor_slices((c.images, c.labels)).batch(BATCH_SIZE)
            for c in self._clients
        ]

    def build(self) -> None:
        workload, input_spec = self._workload, self._data[0].element_spec

        def model_fn():
            phi = tf_model.feature_extractor(workload)
            logits = _CosineClassifier(workload.num_classes)(phi.output)
            return tff.learning.models.from_keras_model(
                tf.keras.Model(phi.input, logits),
                loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                input_spec=input_spec,
            )

        self._process = tff.learning.algorithms.build_weighted_fed_avg(
            model_fn,
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(LEARNING_RATE),
            server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
        )
        self._state = self._process.set_model_weights(
            self._process.initialize(),
            tff.learning.models.ModelWeights(self._initial(), []),
        )

    def one_round(self) -> None:
        self._state, _ = self._process.next(self._state, self._data)

    def _trainable(self):
        return self._process.get_model_weights(self._state).trainable


if __name__ == "__main__":
    protocol.serve(TffFedAvg)
