"""Federated task: clients' images, a feature extractor phi, and a metric of both."""

import abc
import collections
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import metrics, models
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.tasks.task import Task

_EVALUATION_BATCH = 256
# Measured after 5 to 30 rounds of runs on Omniglot and on glyphs: 0.997 to 0.999 where
# nothing was learnt, at most 0.91 where something was.
_COLLAPSED_COSINE = 0.95
_COLLAPSED_CHANCES = 5
_COLLAPSED_WAY = 0.1


class FederatedTask(Task):
    """A task on the images of clients.

    Attributes:
        feature_extractor_fn: Builds phi, see `algorithms.build_fedss`.
    """

    def __init__(
        self,
        dataset: FederatedDataset,
        feature_extractor_fn: Callable[[], tf.keras.Model],
    ):
        super().__init__(dataset)
        self.feature_extractor_fn = feature_extractor_fn

    def client(
        self,
        client_id: str,
        seed: np.ndarray,
        with_positives: bool = False,
        permanent_seed: np.ndarray | None = None,
    ) -> Mapping[str, Any]:
        """Returns one element of the client argument of `algorithms.build_fedss`.

        Args:
            client_id: One of the data set's clients.
            seed: int32[2], see `training.client_seed`.
            with_positives: As the process has it.
            permanent_seed: int32[2], see `training.permanent_seed`; None where the
                process has none.
        """
        result = collections.OrderedDict(
            data=self.dataset.client_examples(client_id, seed), seed=seed
        )
        if with_positives:
            result["positives"] = self.dataset.positives(client_id)
        if permanent_seed is not None:
            result["permanent_seed"] = permanent_seed
        return result

    def train_top1(self, weights: tff.learning.models.ModelWeights) -> float:
        """Measures how well the training images are classified (FedSS, A.5, Table 4).

        Args:
            weights: With trainable = [*phi, W].

        Returns:
            The share of all clients' images whose nearest class is their own.
        """
        data = self.dataset.pooled_examples()
        if self.dataset.preprocessing is not None:
            data = self.dataset.preprocessing.evaluation(data)
        classifier = tf.convert_to_tensor(weights.trainable[-1])
        num_correct = num_examples = 0
        for features, labels in self._features(weights, data):
            num_correct += int(count_correct(features, labels, classifier))
            num_examples += len(labels)
        return num_correct / num_examples

    @property
    @abc.abstractmethod
    def chance(self) -> float:
        """The value of the metric that a model without knowledge is expected to get."""

    def has_collapsed(self, measured: Mapping[str, Any]) -> bool:
        """Whether phi gives all images nearly the same features and knows nothing.

        Args:
            measured: From `evaluate`.

        Returns:
            True if the mean cosine between test images is above 0.95 and the metric not
            above five times chance, or, of few classes, a tenth of the way from chance
            to 1.
        """
        most = min(
            _COLLAPSED_CHANCES * self.chance,
            self.chance + _COLLAPSED_WAY * (1 - self.chance),
        )
        return (
            measured["mean_cosine"] > _COLLAPSED_COSINE
            and measured[self.metric] <= most
        )

    @functools.cached_property
    def _model(self) -> tuple[tf.keras.Model, list[tf.Variable]]:
        model = self.feature_extractor_fn()
        # Listed now: once another model has been built in a graph, as TFF does, Keras
        # may refuse to list the variables of this one.
        return model, model.trainable_variables

    @functools.cached_property
    def _extract(self) -> Callable[[tf.Tensor], tf.Tensor]:
        model, _ = self._model

        @tf.function(reduce_retracing=True)
        def extract(images):
            return model(tf.cast(images, tf.float32), training=False)

        return extract

    def _features(
        self, weights: tff.learning.models.ModelWeights, data: tf.data.Dataset
    ) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yields features float32[batch, d] and labels int32[batch] of examples."""
        *phi, _ = weights.trainable
        _, variables = self._model
        models.assign(variables, phi)
        for batch in data.batch(_EVALUATION_BATCH).prefetch(tf.data.AUTOTUNE):
            yield self._extract(batch["image"]), batch["label"]

    def _all_features(
        self, weights: tff.learning.models.ModelWeights, data: tf.data.Dataset
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns those of all examples: float32[examples, d] and int32[examples]."""
        features, labels = zip(*self._features(weights, data), strict=True)
        return np.concatenate(features), np.concatenate(labels)


@tf.function(reduce_retracing=True)
def count_correct(
    features: tf.Tensor, labels: tf.Tensor, classifier: tf.Tensor
) -> tf.Tensor:
    """Counts the features whose nearest class is their own.

    Args:
        features: float32[examples, d].
        labels: int32[examples].
        classifier: float32[n, d], W.

    Returns:
        int64[].
    """
    predictions = metrics.nearest_classes(features, classifier)
    return tf.math.count_nonzero(tf.equal(predictions, labels))
