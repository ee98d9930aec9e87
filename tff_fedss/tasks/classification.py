"""Classification task: multi-class image classification (FedSS, section 4.2)."""

from collections.abc import Callable

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import metrics
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.tasks import federated_task, retrieval

# The column of what is measured on images of classes that nobody has.
UNSEEN_METRIC = "unseen_map_at_10"


class Classification(federated_task.FederatedTask):
    """Classify held-out images among all n classes; the metric is top-1 accuracy.

    Where the data set has images of classes that nobody has, each of them looks for its
    like among the others, too: what phi is worth for retrieval (Section 4.3).

    Raises:
        ValueError: If the test images are of other classes than the clients'.
    """

    metric = "top1"
    metric_title = "top-1"

    def __init__(
        self,
        dataset: FederatedDataset,
        feature_extractor_fn: Callable[[], tf.keras.Model],
    ):
        if dataset.test_is_unseen:
            raise ValueError(
                f"{dataset.name} cannot be classified: its test images are of classes "
                "that no client has. Use Retrieval."
            )
        super().__init__(dataset, feature_extractor_fn)

    @property
    def chance(self) -> float:
        """One of n."""
        return 1 / self.dataset.num_classes

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures a model on the test split, see the base class.

        Returns:
            {"top1": the share of test images whose nearest class is their own,
            "mean_cosine": see `metrics.MeanCosine`, "unseen_map_at_10": see
            `metrics.map_at_r`}; the last where there are images of classes that nobody
            has.
        """
        classifier = tf.convert_to_tensor(weights.trainable[-1])
        num_correct, cosine = 0, metrics.MeanCosine()
        for features, labels in self._features(weights, self.dataset.test_examples()):
            num_correct += int(
                federated_task.count_correct(features, labels, classifier)
            )
            cosine.add(features)
        measured = dict(
            top1=num_correct / self.dataset.test.num_examples, mean_cosine=cosine.value
        )
        if self.dataset.unseen is not None:
            measured[UNSEEN_METRIC] = retrieval.map_at_10(
                *self._all_features(weights, self.dataset.unseen_examples())
            )
        return measured
