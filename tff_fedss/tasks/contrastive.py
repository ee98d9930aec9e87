"""Contrastive task: features from images without labels, and a linear test of them."""

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import metrics, models
from tff_fedss.datasets.central.labelled_images import LabelledImages
from tff_fedss.datasets.central.two_views import TwoViews
from tff_fedss.tasks.task import Task


class Contrastive(Task):
    """Two views of each image, a backbone, and the accuracy of a linear classifier.

    Attributes:
        backbone_fn: Builds the network whose features are wanted.
        steps_per_epoch: How many batches are an epoch.
    """

    metric = "linear_accuracy"
    metric_title = "linear top-1"

    def __init__(
        self,
        data: LabelledImages,
        backbone_fn: Callable[[], tf.keras.Model],
        views: TwoViews,
        *,
        batch_size: int,
        seed: int,
    ):
        """Builds the backbone that is measured.

        Args:
            data: The labels serve the linear classifier, the purity of clusters, and
                an oracle in their place.
            backbone_fn: Builds a model from images of the size of `views` to float32[
                examples, features].
            views: The augmentation; no larger than the images.
            batch_size: The mini-batch, at most the number of training images.
            seed: Of the order and the views.
        """
        super().__init__(data)
        self.backbone_fn = backbone_fn
        self.steps_per_epoch = len(data.train_images) // batch_size
        self._views = views
        self._batch_size = batch_size
        self._seed = seed
        self._model = backbone_fn()
        self._infer = models.inference(self._model)

    def batches(
        self, num_done: int
    ) -> Iterator[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
        """Yields query and key views of training images, and their labels."""
        return iter(
            self._views.batches(
                self.dataset.train_images,
                self._batch_size,
                self._seed,
                num_done,
                self.dataset.train_labels,
            )
        )

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Fits a linear classifier on the training features and tests it.

        Features are those of the centre of each image, without augmentation.

        Args:
            weights: Of the backbone.

        Returns:
            `linear_accuracy`.
        """
        weights.assign_weights_to(self._model)
        data = self.dataset
        return dict(
            linear_accuracy=metrics.linear_accuracy(
                self._features(data.train_images),
                data.train_labels,
                self._features(data.test_images),
                data.test_labels,
            )
        )

    def _features(self, images: np.ndarray) -> np.ndarray:
        size = self._views.image_size
        top, left = ((side - size) // 2 for side in images.shape[1:3])
        return self._infer(images[:, top : top + size, left : left + size])
