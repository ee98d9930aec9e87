"""Labelled classification task: images without clients, a classifier, accuracy."""

import functools
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
        classifier_fn: Builds the classifier, from images in 0..255 to logits
            float32[examples, n], always with the same initial weights.
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
        super().__init__(data)
        self.classifier_fn = classifier_fn
        self.augmentation = augmentation

    @functools.cached_property
    def _measured(self) -> tuple[tf.keras.Model, Callable[[np.ndarray], np.ndarray]]:
        model = self.classifier_fn()
        return model, models.inference(model)

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures a classifier on the test images.

        Args:
            weights: Its trainable and its other weights, as Keras orders them.

        Returns:
            top1, a share, and test_loss, the mean cross-entropy; and rare_top1, of the
            images of rare subclasses, if the data have such.
        """
        model, infer = self._measured
        weights.assign_weights_to(model)
        logits = infer(self.dataset.test_images)
        labels = self.dataset.test_labels
        is_right = logits.argmax(1) == labels
        measured = dict(
            top1=float(np.mean(is_right)),
            test_loss=float(np.mean(losses.softmax_loss(logits, labels))),
        )
        is_rare = self.dataset.test_is_rare
        if is_rare is not None:
            measured["rare_top1"] = float(np.mean(is_right[is_rare]))
        return measured
