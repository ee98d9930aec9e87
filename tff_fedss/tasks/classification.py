"""Multi-class image classification (FedSS, section 4.2)."""

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import metrics
from tff_fedss.datasets.federated_dataset import FederatedDataset

_EVALUATION_BATCH = 256


class Classification:
    """Classify held-out images among all n classes; the metric is top-1 accuracy.

    Attributes:
        dataset: The data.
        feature_extractor_fn: Builds phi, see `algorithms.build_fedss`.
    """

    def __init__(
        self,
        dataset: FederatedDataset,
        feature_extractor_fn: Callable[[], tf.keras.Model],
    ):
        self.dataset = dataset
        self.feature_extractor_fn = feature_extractor_fn

    def client(self, client_id: str, seed: np.ndarray) -> Mapping[str, Any]:
        """Returns one element of the client argument of `algorithms.build_fedss`.

        Args:
            client_id: One of the data set's clients.
            seed: int32[2], see `training.client_seed`.
        """
        return collections.OrderedDict(
            data=self.dataset.train.create_tf_dataset_for_client(client_id), seed=seed
        )

    @functools.cached_property
    def _model(self) -> tuple[tf.keras.Model, list[tf.Variable]]:
        model = self.feature_extractor_fn()
        # Listed now: once another model has been built in a graph, as TFF does, Keras
        # may refuse to list the variables of this one.
        return model, model.trainable_variables

    @functools.cached_property
    def _count_correct(self):
        model, _ = self._model

        @tf.function
        def count_correct(images, labels, classifier):
            features = model(tf.cast(images, tf.float32), training=False)
            predictions = metrics.nearest_classes(features, classifier)
            return tf.math.count_nonzero(tf.equal(predictions, labels))

        return count_correct

    def evaluate(
        self, weights: tff.learning.models.ModelWeights
    ) -> "collections.OrderedDict[str, float]":
        """Measures a model on the test split.

        Args:
            weights: With trainable = [*phi, W].

        Returns:
            {"top1": the share of test images whose nearest class is their own}.
        """
        *phi, classifier = weights.trainable
        _, variables = self._model
        for variable, value in zip(variables, phi, strict=True):
            variable.assign(value)
        classifier = tf.convert_to_tensor(classifier)
        num_correct = sum(
            int(self._count_correct(batch["image"], batch["label"], classifier))
            for batch in self.dataset.test.batch(_EVALUATION_BATCH).prefetch(2)
        )
        return collections.OrderedDict(
            top1=num_correct / self.dataset.num_test_examples
        )
