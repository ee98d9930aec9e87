"""Classify labelled images, without clients: data, preprocessing and metric."""

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import losses, models
from tff_fedss.datasets.central.augmentation import Augmentation
from tff_fedss.datasets.central.labelled_images import LabelledImages
from tff_fedss.tasks.task import Task


class LabelledClassification(Task):
    """Images, a classifier of them, and its accuracy.

    Attributes:
        classifier_fn: Builds the classifier.
        augmentation: What is done to training images.
    """

    metric = "top1"
    metric_title = "top-1"

    def __init__(
        self,
        data: LabelledImages,
        classifier_fn: Callable[[], tf.keras.Model],
        augmentation: Augmentation,
    ):
        """Keeps the parts.

        Args:
            data: The images.
            classifier_fn: Builds the classifier, from images in 0..255 to logits
                float32[examples, n], always with the same initial weights.
            augmentation: What is done to training images.
        """
        super().__init__(data)
        self.classifier_fn = classifier_fn
        self.augmentation = augmentation
        self._measured: tf.keras.Model | None = None
        self._infer: Callable[[np.ndarray], np.ndarray] | None = None

    def evaluate(
        self, weights: tff.learning.models.ModelWeights
    ) -> "collections.OrderedDict[str, float]":
        """Measures a classifier on the test images.

        Args:
            weights: Its trainable and its other weights, as Keras orders them.

        Returns:
            top1, a share, and test_loss, the mean cross-entropy; and rare_top1, of the
            images of rare subclasses, if the data have such.
        """
        if self._measured is None:
            self._measured = self.classifier_fn()
            self._infer = models.inference(self._measured)
        weights.assign_weights_to(self._measured)
        logits = self._infer(self.dataset.test_images)
        labels = self.dataset.test_labels
        is_right = logits.argmax(1) == labels
        measured = collections.OrderedDict(
            top1=float(np.mean(is_right)),
            test_loss=float(np.mean(losses.softmax_loss(logits, labels))),
        )
        is_rare = self.dataset.test_is_rare
        if is_rare is not None:
            measured["rare_top1"] = float(np.mean(is_right[is_rare]))
        return measured
