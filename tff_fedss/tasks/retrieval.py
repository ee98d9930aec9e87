"""Retrieval task: image retrieval among unseen classes (FedSS, section 4.3)."""

import functools

import numpy as np
import tensorflow_federated as tff

from tff_fedss import metrics
from tff_fedss.tasks import federated_task

_R = 10
_FAR = 1e-3
_NUM_PAIRS = 100_000
_PAIRS_SEED = 0


class Retrieval(federated_task.FederatedTask):
    """Every test image looks for its like among the others; the metric is MAP@10.

    R-precision (which, unlike MAP@10, a small class lets reach 1) and TAR@FAR = 0.001,
    of 50,000 pairs of images of one class and as many of two, stand beside it.

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
        labels = self._test_labels
        _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        others, same = len(labels) - 1, sizes[class_of] - 1
        ranks = np.arange(1, _R + 1)
        earlier = (ranks - 1) * (same[:, np.newaxis] - 1) / (others - 1)
        precision = (1 + earlier) / ranks
        return float(np.mean(same[:, np.newaxis] / others * precision))

    @functools.cached_property
    def _test_labels(self) -> np.ndarray:
        labels = self.dataset.test.data.map(lambda e: e["label"]).batch(4096)
        return np.concatenate([batch.numpy() for batch in labels])

    @functools.cached_property
    def _pairs(self) -> metrics.Pairs | None:
        """The pairs of TAR@FAR, the same each time; None if all classes have one image.

        One class alone has no pairs of two.
        """
        _, sizes = np.unique(self._test_labels, return_counts=True)
        if len(sizes) < 2 or sizes.max() < 2:
            return None
        return metrics.draw_pairs(self._test_labels, _NUM_PAIRS, _PAIRS_SEED)

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures a model on the test split, see the base class.

        Returns:
            {"map_at_10": see `metrics.map_at_r`, "r_precision": see
            `metrics.r_precision`, "tar_at_far": see `metrics.tar_at_far`,
            "mean_cosine": see `metrics.MeanCosine`}; without the second and the third
            if no test class has two images, or there is only one.
        """
        features, labels = self._all_features(weights, self.dataset.test_examples())
        cosine = metrics.MeanCosine()
        cosine.add(features)
        measured = {}
        if self._pairs is None:
            measured["map_at_10"] = map_at_10(features, labels)
        else:
            measured["map_at_10"], measured["r_precision"] = (
                metrics.map_and_r_precision(features, labels, _R)
            )
            cosines = metrics.pair_cosines(features, self._pairs)
            measured["tar_at_far"] = metrics.tar_at_far(
                cosines, self._pairs.is_same, _FAR
            )
        measured["mean_cosine"] = cosine.value
        return measured


def map_at_10(features: np.ndarray, labels: np.ndarray) -> float:
    """Returns MAP@10, see `metrics.map_at_r`.

    Args:
        features: float32[images, d].
        labels: int32[images].
    """
    return metrics.map_at_r(features, labels, _R)
