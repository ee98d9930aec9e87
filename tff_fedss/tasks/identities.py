"""Identity verification task: training over very many classes (Partial FC)."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import metrics, models, seeds
from tff_fedss.datasets.central.identities import Identities
from tff_fedss.datasets.central.lfw_pairs import LfwPairs
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.tasks.task import SampledSoftmaxTask, load_weights

FAR = 1e-3
# As in LFW: ten folds of 300 pairs of one and 300 of two identities.
_NUM_PAIRS = 6000
_PAIRS_SEED = 0
_EVALUATION_BATCH = 256
# Separates the draws of mirrored images from others with the same seed.
_FLIPS = 3


class IdentityVerification(SampledSoftmaxTask):
    """Verification that two test images show one identity; metric: TAR at FAR = 0.001.

    The data decide whether the test identities are also training identities.
    """

    metric = "tar_at_far"
    metric_title = f"TAR@FAR={FAR:g}"

    def __init__(
        self,
        data: Identities,
        feature_extractor_fn: Callable[[], tf.keras.Model],
        *,
        logit_scale: float,
        batch_size: int,
        seed: int,
        flip: bool = False,
        lfw: LfwPairs | None = None,
    ):
        """Draws the pairs, the same for all runs on the data.

        Args:
            feature_extractor_fn: Builds phi, from examples to float32[examples, d].
            logit_scale: s.
            seed: Seed of the order of the examples and of the choice of mirrored ones.
            flip: Whether to mirror half of the training images, left to right.

        Raises:
            ValueError: If the test identities make no pairs, or `flip` is set and
                examples are not images.
        """
        if flip and len(data.example_shape) != 3:
            raise ValueError("flip needs images")
        dim = feature_extractor_fn().output_shape[1]
        super().__init__(data, data.num_classes, dim, logit_scale)
        self._feature_extractor_fn = feature_extractor_fn
        self._batch_size = batch_size
        self._seed = seed
        self._flip = flip
        self._lfw = lfw
        self._pairs = metrics.draw_pairs(data.test_labels, _NUM_PAIRS, _PAIRS_SEED)
        _, class_of, sizes = np.unique(
            data.test_labels, return_inverse=True, return_counts=True
        )
        self._has_others = sizes[class_of] > 1
        self._r = int(sizes[sizes > 1].min() - 1)

    def fingerprint(self) -> Fingerprint:
        """Returns a fingerprint of the training images, and of LFW if it is used."""
        own = {} if self._lfw is None else self._lfw.fingerprint()
        return {**self.dataset.fingerprint(), **own}

    @property
    def summary(self) -> str:
        """A description of the data in one line."""
        return self.dataset.summary

    def encoder(self) -> models.ImageEncoder:
        """Builds phi with its initial weights."""
        return models.ImageEncoder(self._feature_extractor_fn())

    def batches(self, num_done: int) -> Iterator[tuple[Any, np.ndarray]]:
        """Yields images and labels; seed and batch number decide a batch."""
        number = num_done
        while True:
            examples, labels = self.dataset.batch(number, self._batch_size, self._seed)
            if self._flip:
                generator = seeds.generator(self._seed + (_FLIPS << 32), number)
                is_mirrored = generator.random(len(examples)) < 0.5
                mirror = is_mirrored[:, np.newaxis, np.newaxis, np.newaxis]
                examples = np.where(mirror, examples[:, :, ::-1], examples)
            yield examples, labels
            number += 1

    @functools.cached_property
    def _evaluation(self):
        encoder = self.encoder()

        @tf.function(reduce_retracing=True)
        def extract(examples):
            return encoder(examples, (), training=False)[0]

        return encoder, extract

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures verification and retrieval on the data set's test images.

        Args:
            weights: With trainable = [*encoder, W], W a `models.ShardedMatrix`.

        Returns:
            tar_at_far; pair_accuracy (ten folds, as for LFW); map_at_r, of the images
            of test identities with several images, where R is the smallest number of
            other images of such an identity; top1, the share of test examples whose
            nearest row of W is their identity's, if the identities have rows; and with
            LFW pairs lfw_accuracy and lfw_std, mean and standard deviation over folds.
        """
        encoder, extract = self._evaluation
        classifier = load_weights(encoder, weights)

        def features_of(read: Callable[[int, int], np.ndarray], count: int):
            step = _EVALUATION_BATCH
            parts = [
                extract(read(i, min(i + step, count))).numpy()
                for i in range(0, count, step)
            ]
            return np.concatenate(parts)

        num_tests = len(self.dataset.test_labels)
        features = features_of(self.dataset.test_examples, num_tests)
        if not np.isfinite(features).all():
            return {self.metric: math.nan}  # The loop ends such a run.
        cosines = metrics.pair_cosines(features, self._pairs)
        is_same = self._pairs.is_same
        labels = self.dataset.test_labels
        precision = metrics.average_precision_at_r(features, labels, self._r)
        results = dict(
            tar_at_far=metrics.tar_at_far(cosines, is_same, FAR),
            pair_accuracy=float(np.mean(metrics.fold_accuracies(cosines, is_same))),
            map_at_r=float(np.mean(precision[self._has_others])),
        )
        if not self.dataset.test_is_unseen:
            results["top1"] = float(np.mean(_nearest(features, classifier) == labels))
        if self._lfw is not None:
            lfw = self._lfw
            pairs = metrics.Pairs(lfw.first, lfw.second, lfw.is_same)
            cosines = metrics.pair_cosines(
                features_of(lfw.images, lfw.num_images), pairs
            )
            folds = metrics.fold_accuracies(cosines, lfw.is_same, lfw.num_folds)
            results["lfw_accuracy"] = float(np.mean(folds))
            results["lfw_std"] = float(np.std(folds, ddof=1))
        return results


def _nearest(features: np.ndarray, classifier: models.ShardedMatrix) -> np.ndarray:
    """Finds the row of W with the highest cosine to each feature, int64[examples]."""
    best = np.full(len(features), -np.inf, np.float32)
    nearest = np.zeros(len(features), np.int64)
    first = 0
    for rows in classifier.row_blocks():
        cosines = models.cosine_logits(features, rows, scale=1.0).numpy()
        places = cosines.argmax(1)
        highest = cosines[np.arange(len(features)), places]
        nearest = np.where(highest > best, first + places, nearest)
        best = np.maximum(highest, best)
        first += len(rows)
    return nearest
