"""Tasks on clients' images: classification and retrieval (FedSS, sections 4.2, 4.3)."""

import abc
import collections
import concurrent.futures
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import errors, metrics, models
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.tasks.task import SampledSoftmaxTask, Task

# The column of the metric on images of classes that no client has.
UNSEEN_METRIC = "unseen_map_at_10"
_EVALUATION_BATCH = 256
_MOST_BATCHES = 16  # At once; a batch at 224x224 has 154 MB.
# Measured after 5 to 30 rounds on Omniglot and on glyphs: 0.997 to 0.999 in runs that
# learned nothing, at most 0.91 in others.
_COLLAPSED_COSINE = 0.95
_COLLAPSED_CHANCES = 5
_COLLAPSED_WAY = 0.1
# R of MAP@R, and the number of pairs of TAR@FAR.
_R = 10
_FAR = 1e-3
_NUM_PAIRS = 100_000
_PAIRS_SEED = 0


class FederatedTask(Task):
    """A task on the images of clients.

    Attributes:
        feature_extractor_fn: Builds phi, see `algorithms.build_fedss`.
        min_test_images: The number of test images that the metrics need.

    Raises:
        InvalidInputError: If the data set has fewer test images.
    """

    min_test_images = 1

    def __init__(
        self,
        dataset: FederatedDataset,
        feature_extractor_fn: Callable[[], tf.keras.Model],
    ):
        wanted = "a FederatedDataset, such as FederatedDataset.from_arrays makes"
        errors.check_kind("dataset", dataset, FederatedDataset, wanted)
        models.check_feature_extractor_fn(feature_extractor_fn)
        if dataset.test.num_examples < self.min_test_images:
            raise errors.InvalidInputError(
                f"{dataset.name}: {self.metric_title} needs {self.min_test_images} "
                f"test images or more, found {dataset.test.num_examples}."
            )
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
            with_positives: The process's `with_positives`.
            permanent_seed: int32[2], see `training.permanent_seed`; None if the process
                has none.
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
        """Measures the accuracy on the training images (FedSS, A.5, Table 4).

        Args:
            weights: With trainable = [*phi, W].

        Returns:
            The share of all clients' images whose nearest class is correct.
        """
        data = self.dataset.pooled_examples()
        if self.dataset.preprocessing is not None:
            data = self.dataset.preprocessing.evaluation(data)
        num_correct = num_examples = 0
        for correct, features in self._classified(weights, data):
            num_correct += int(correct)
            num_examples += len(features)
        return num_correct / num_examples

    def _classified(
        self, weights: tff.learning.models.ModelWeights, data: tf.data.Dataset
    ) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yields the number of correct classes, int64[], and features of batches."""
        classifier = tf.convert_to_tensor(weights.trainable[-1])
        return self._measured(
            weights,
            data,
            lambda features, labels: (
                _count_correct(features, labels, classifier),
                features,
            ),
        )

    @property
    @abc.abstractmethod
    def chance(self) -> float:
        """The metric's expected value for a random model."""

    def has_collapsed(self, measured: Mapping[str, Any]) -> bool:
        """Returns whether phi's features are nearly equal for all images and useless.

        Args:
            measured: From `evaluate`.

        Returns:
            True if the mean cosine between test images is above 0.95 and the metric is
            at most five times chance or, with few classes, a tenth of the way from
            chance to 1.
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
    def model(self) -> tf.keras.Model:
        """Phi, with its initial weights until it is first trained or measured."""
        return self.feature_extractor_fn()

    @functools.cached_property
    def _phi(self) -> tuple[list[tf.Variable], Callable[[tf.Tensor], tf.Tensor]]:
        model = self.model

        @tf.function(reduce_retracing=True)
        def extract(images):
            return model(tf.cast(images, tf.float32), training=False)

        # Listed now: after TFF has built another model in a graph, Keras may refuse to
        # list the variables of this one.
        return model.trainable_variables, extract

    @functools.cached_property
    def _threads(self) -> concurrent.futures.Executor:
        """One thread a batch: an operation may itself have only one."""
        return concurrent.futures.ThreadPoolExecutor(self._num_batches_at_once)

    @functools.cached_property
    def _num_batches_at_once(self) -> int:
        on_gpu = tf.config.get_visible_devices("GPU")
        return 1 if on_gpu else min(len(os.sched_getaffinity(0)), _MOST_BATCHES)

    def _measured(
        self,
        weights: tff.learning.models.ModelWeights,
        data: tf.data.Dataset,
        measure: Callable[[tf.Tensor, tf.Tensor], Any],
    ) -> Iterator[Any]:
        """Yields `measure(features float32[batch, d], labels int32[batch])` of batches.

        They are in the order of the data. Several threads call `measure`.
        """
        *phi, _ = weights.trainable
        variables, extract = self._phi
        models.assign(variables, phi)

        def measured(batch: Mapping[str, tf.Tensor]) -> Any:
            return measure(extract(batch["image"]), batch["label"])

        running = collections.deque()
        for batch in data.batch(_EVALUATION_BATCH).prefetch(tf.data.AUTOTUNE):
            running.append(self._threads.submit(measured, batch))
            if len(running) > self._num_batches_at_once:
                yield running.popleft().result()
        for future in running:
            yield future.result()

    def _all_features(
        self, weights: tff.learning.models.ModelWeights, data: tf.data.Dataset
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns all features float32[examples, d] and labels int32[examples]."""
        both = self._measured(weights, data, lambda *both: both)
        features, labels = zip(*both, strict=True)
        return np.concatenate(features), np.concatenate(labels)


class Classification(FederatedTask):
    """Classification of held-out images among all n classes, by top-1 accuracy.

    If the data set has images of classes that no client has, phi is also measured by
    retrieval among them (Section 4.3).

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
        super().__init__(dataset, feature_extractor_fn)
        if dataset.test_is_unseen:
            raise ValueError(
                f"{dataset.name} cannot be classified: its test images are of classes "
                "that no client has. Use Retrieval."
            )

    @property
    def chance(self) -> float:
        """1 / n."""
        return 1 / self.dataset.num_classes

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures a model on the test split, see the base class.

        Returns:
            {"top1": the share of test images whose nearest class is correct,
            "mean_cosine": see `metrics.MeanCosine`, "unseen_map_at_10": see
            `metrics.map_at_r`}; the last only with images of classes that no client
            has.
        """
        num_correct, cosine = 0, metrics.MeanCosine()
        test_examples = self.dataset.test_examples()
        for correct, features in self._classified(weights, test_examples):
            num_correct += int(correct)
            cosine.add(features)
        measured = dict(
            top1=num_correct / self.dataset.test.num_examples, mean_cosine=cosine.value
        )
        if self.dataset.unseen is not None:
            measured[UNSEEN_METRIC] = metrics.map_at_r(
                *self._all_features(weights, self.dataset.unseen_examples()), _R
            )
        return measured


class Retrieval(FederatedTask):
    """Retrieval of each test image's class among the other test images, by MAP@10.

    It also measures R-precision (which, unlike MAP@10, can reach 1 for small classes)
    and TAR@FAR = 0.001 on 50,000 pairs of images of one class and as many of two. Only
    phi's features are measured, since W has no rows for unseen classes.

    Raises:
        InvalidInputError: If MAP@10 would be 0 or 1 for all phi: all test images have
            one class, or each has its own.
    """

    metric = "map_at_10"
    metric_title = "MAP@10"
    min_test_images = _R + 1

    def __init__(
        self,
        dataset: FederatedDataset,
        feature_extractor_fn: Callable[[], tf.keras.Model],
    ):
        super().__init__(dataset, feature_extractor_fn)
        if self.chance in (0, 1):
            raise errors.InvalidInputError(
                f"{dataset.name}: {self.metric_title} needs test images of two "
                "classes, and two of one class."
            )

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

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures a model on the test split, see the base class.

        Returns:
            {"map_at_10": see `metrics.map_at_r`, "r_precision": see
            `metrics.RetrievalScores`, "tar_at_far": see `metrics.tar_at_far`,
            "mean_cosine": see `metrics.MeanCosine`}.
        """
        features, labels = self._all_features(weights, self.dataset.test_examples())
        if not np.isfinite(features).all():
            return {self.metric: math.nan}  # The loop ends such a run.
        cosine = metrics.MeanCosine()
        cosine.add(features)
        scores = metrics.retrieval_scores(features, labels, _R)
        # By a fixed seed. Not of `_test_labels`, since the order of a test may vary.
        pairs = metrics.draw_pairs(labels, _NUM_PAIRS, _PAIRS_SEED)
        cosines = metrics.pair_cosines(features, pairs)
        return dict(
            map_at_10=scores.map_at_r,
            r_precision=scores.r_precision,
            tar_at_far=metrics.tar_at_far(cosines, pairs.is_same, _FAR),
            mean_cosine=cosine.value,
        )


class PooledImages(SampledSoftmaxTask):
    """A classification task on the pooled images of all clients, measured by top-1."""

    metric = Classification.metric
    metric_title = Classification.metric_title

    def __init__(
        self,
        task: Classification,
        pooled_batches: Callable[[int], Iterable[Any]],
        *,
        logit_scale: float,
    ):
        """Takes test images and phi from a task.

        Args:
            pooled_batches: Maps the number of batches used before to the following
                `{"image", "label"}` batches of all clients' images, see
                `training.pooled_batches`.
            logit_scale: tau.
        """
        dim = task.model.output_shape[1]
        super().__init__(task.dataset, task.dataset.num_classes, dim, logit_scale)
        self._task = task
        self._pooled_batches = pooled_batches

    def encoder(self) -> models.ImageEncoder:
        """Builds phi with its initial weights."""
        return models.ImageEncoder(self._task.feature_extractor_fn())

    def batches(self, num_done: int) -> Iterator[tuple[Any, np.ndarray]]:
        """Yields images and labels of all clients together, without end."""
        for batch in self._pooled_batches(num_done):
            yield batch["image"], batch["label"].numpy()

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures a model on the held-out images, see `Classification.evaluate`."""
        return self._task.evaluate(weights)


@tf.function(reduce_retracing=True)
def _count_correct(
    features: tf.Tensor, labels: tf.Tensor, classifier: tf.Tensor
) -> tf.Tensor:
    """Counts the features whose nearest row of W is their class: int64[]."""
    predictions = metrics.nearest_classes(features, classifier)
    return tf.math.count_nonzero(tf.equal(predictions, labels))
