"""Image retrieval among unseen classes (FedSS, section 4.3)."""

import collections
import functools

import numpy as np
import tensorflow_federated as tff

from tff_fedss import metrics
from tff_fedss.tasks import task

_R = 10


class Retrieval(task.Task):
    """Every test image looks for its like among the others; the metric is MAP@10.

    The features of phi alone are measured: W has no row for the classes of the test
    images where these are unseen.
    """

    metric = "map_at_10"
    metric_title = "MAP@10"

    @functools.cached_property
    def chance(self) -> float:
        """The expected MAP@10 (Eq. 9) of a random ranking.

        For a query with c others of its class among the N others, rank i is relevant
        with probability c/N, and each earlier rank, given that, with (c-1)/(N-1).
        """
        labels = np.concatenate(
            [
                batch.numpy()
                for batch in self.dataset.test.map(lambda e: e["label"]).batch(4096)
            ]
        )
        _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        others, same = len(labels) - 1, sizes[class_of] - 1
        ranks = np.arange(1, _R + 1)
        earlier = (ranks - 1) * (same[:, np.newaxis] - 1) / (others - 1)
        precision = (1 + earlier) / ranks
        return float(np.mean(same[:, np.newaxis] / others * precision))

    def evaluate(
        self, weights: tff.learning.models.ModelWeights
    ) -> "collections.OrderedDict[str, float]":
        """Measures a model on the test split.

        Args:
            weights: With trainable = [*phi, W].

        Returns:
            {"map_at_10": see `metrics.map_at_r`, "mean_cosine": see
            `metrics.MeanCosine`}.
        """
        features, labels = zip(
            *self._features(weights, self.dataset.test_examples()), strict=True
        )
        features, cosine = np.concatenate(features), metrics.MeanCosine()
        cosine.add(features)
        return collections.OrderedDict(
            map_at_10=metrics.map_at_r(features, np.concatenate(labels), _R),
            mean_cosine=cosine.value,
        )
