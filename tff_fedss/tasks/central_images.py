"""Tasks on images without clients: labels, two views without labels, pretraining."""

import functools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import losses, metrics, models, seeds
from tff_fedss.datasets.central.augmentation import Augmentation, TwoViews
from tff_fedss.datasets.central.labelled_images import LabelledImages
from tff_fedss.datasets.central.public_images import PublicImages
from tff_fedss.tasks.task import Task

# Separates the order of the images from other draws with the same seed.
_STREAM = 3


class LabelledClassification(Task):
    """Classification of labelled images: a classifier and its accuracy.

    Attributes:
        classifier_fn: Builds the classifier, from images in 0..255 to logits
            float32[examples, n], always with the same initial weights.
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
        """Measures a classifier on the test images: top1, a share, and test_loss.

        Weights are in Keras' order; test_loss is the mean cross-entropy.
        """
        model, infer = self._measured
        weights.assign_weights_to(model)
        logits = infer(self.dataset.test_images)
        labels = self.dataset.test_labels
        return dict(
            top1=float(np.mean(logits.argmax(1) == labels)),
            test_loss=float(np.mean(losses.softmax_loss(logits, labels))),
        )


class Contrastive(Task):
    """Contrastive learning: two views of each image, a backbone, and a linear probe.

    Attributes:
        backbone_fn: Builds the network whose features are evaluated.
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
            data: The images. Labels are used for the linear probe, the purity of
                clusters, and the oracle that replaces clusters.
            backbone_fn: Builds a model from images of the size of `views` to
                float32[examples, features].
            views: The augmentation; no larger than the images.
            batch_size: The mini-batch, at most the number of training images.
            seed: Seed of the order and the views.
        """
        super().__init__(data)
        self.backbone_fn = backbone_fn
        self.steps_per_epoch = len(data.train_images) // batch_size
        self._views = views
        self._batch_size = batch_size
        self._seed = seed
        self._model = backbone_fn()
        self._infer = models.inference(self._model)

    def batches(self, num_done) -> Iterator[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
        """Yields query and key views of training images, and the labels."""
        return iter(
            self._views.batches(
                self.dataset.train_images,
                self.dataset.train_labels,
                self._batch_size,
                self._seed,
                num_done,
            )
        )

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures `linear_accuracy`: fits a linear classifier on training features.

        Features are of the centre of each image, without augmentation.
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


class Pretraining(Task):
    """Pretraining on public images: phi, and a linear probe of its features.

    Attributes:
        model_fn: Builds phi, always with the same initial weights.
        has_probe: Whether there are classes for the probe.
    """

    metric = "probe_top1"
    metric_title = "linear probe, top-1"

    def __init__(
        self,
        data: PublicImages,
        model_fn: Callable[[], tf.keras.Model],
        augmentation: Augmentation,
        *,
        batch_size: int,
        seed: int,
    ):
        """Keeps the data, the model and the order of the data.

        Args:
            model_fn: Builds phi: images [examples, h, w, c] to float32[examples, d].
            batch_size: The mini-batch; the last one of an epoch may be shorter.
            seed: Seed of the order of the images and of their augmentation.
        """
        super().__init__(data)
        self.model_fn = model_fn
        self.steps_per_epoch = -(-len(data.train_labels) // batch_size)
        self.has_probe = bool(_every_second(data.probe_labels).any())
        self._augment = tf.function(augmentation, reduce_retracing=True)
        self._batch_size = batch_size
        self._seed = seed

    @functools.cached_property
    def _probed(self) -> tuple[tf.keras.Model, Callable[[np.ndarray], np.ndarray]]:
        model = self.model_fn()
        return model, models.inference(model)

    def batches(self, num_done: int) -> Iterator[tuple[tf.Tensor, np.ndarray]]:
        """Yields float32[examples, h, w, c] in 0..255 and labels int32[examples]."""
        epoch, done = divmod(num_done, self.steps_per_epoch)
        while True:
            generator = seeds.generator(self._seed + (_STREAM << 32), epoch)
            order = generator.permutation(len(self.dataset.train_labels))
            of_epoch = seeds.fold_in([self._seed, _STREAM], epoch)
            for step in range(done, self.steps_per_epoch):
                chosen = order[step * self._batch_size :][: self._batch_size]
                images = self._augment(
                    tf.constant(self.dataset.train_images[chosen]),
                    seeds.fold_in(of_epoch, step),
                )
                yield images, self.dataset.train_labels[chosen]
            epoch, done = epoch + 1, 0

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures `probe_top1`, of a linear classifier of classes not trained.

        It is fitted to every second image of each class and tested on the others;
        without two images of such a class nothing is measured. Weights are trainable =
        [*phi, W], and phi's other variables.
        """
        if not self.has_probe:
            return {}
        model, infer = self._probed
        models.assign(model.trainable_variables, weights.trainable[:-1])
        models.assign(model.non_trainable_variables, weights.non_trainable)
        labels = self.dataset.probe_labels
        features = infer(self.dataset.probe_images)
        is_test = _every_second(labels)
        return dict(
            probe_top1=metrics.linear_accuracy(
                features[~is_test], labels[~is_test], features[is_test], labels[is_test]
            )
        )


def _every_second(labels: np.ndarray) -> np.ndarray:
    """bool[M]: the second, the fourth, ... image of each class."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], labels[order])
    is_second = np.empty(len(labels), bool)
    is_second[order] = (np.arange(len(labels)) - starts) % 2 == 1
    return is_second
