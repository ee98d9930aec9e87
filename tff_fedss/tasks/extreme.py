"""Extreme classification task: rank labels for sparse rows (RF-softmax, table 3)."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from scipy import sparse

from tff_fedss import metrics, models, seeds
from tff_fedss.datasets.central.extreme import ExtremeDataset, SparseRows
from tff_fedss.errors import InvalidInputError
from tff_fedss.tasks.task import SampledSoftmaxTask, load_weights

_EVALUATION_ROWS = 256
_RANKS = (1, 3, 5)


class ExtremeClassification(SampledSoftmaxTask):
    """A model v -> d -> n, measured by precision@1, 3 and 5 on the test rows.

    A row has several labels. Each time it is trained on, one of them is drawn as its
    target. The others may be drawn as negatives, unless they are masked and thus left
    out of the row's softmax. Rows without a label are left out of training and test.
    """

    metric = "precision_at_1"
    metric_title = "precision@1"

    def __init__(
        self,
        data: ExtremeDataset,
        *,
        embedding_dim: int,
        logit_scale: float,
        batch_size: int,
        seed: int,
        mask_positives: bool = False,
    ):
        """Keeps the rows that have labels; InvalidInputError without any in a part.

        The seed decides the encoder's weights, the order of the rows and their
        targets. With `mask_positives`, `batches` has a row's other labels.
        """
        super().__init__(data, data.num_labels, embedding_dim, logit_scale)
        self._train_rows = np.flatnonzero(np.diff(data.train.label_ends))
        self._test_rows = np.flatnonzero(np.diff(data.test.label_ends))
        if not len(self._train_rows) or not len(self._test_rows):
            part = "test" if len(self._train_rows) else "training"
            raise InvalidInputError(f"no {part} row has a label")
        self._train, self._test = (
            sparse.csr_matrix(
                (part.values, part.feature_ids, part.feature_ends),
                (len(part), data.num_features),
            )
            for part in (data.train, data.test)
        )
        self._batch_size = batch_size
        self._seed = seed
        self._mask_positives = mask_positives

    @property
    def summary(self) -> str:
        """A description of the data in one line."""
        data = self.dataset
        num_train, num_test = len(self._train_rows), len(self._test_rows)
        return (
            f"v={data.num_features:,} features, n={data.num_labels:,} labels, "
            f"{num_train:,} training rows with "
            f"{len(data.train.label_ids) / num_train:.1f} labels on average, "
            f"{num_test:,} test rows; left out without a label: "
            f"{len(data.train) - num_train} and {len(data.test) - num_test}"
        )

    def encoder(self) -> models.SparseEncoder:
        """Builds the encoder with its initial weights."""
        return models.SparseEncoder(
            self.dataset.num_features, self.embedding_dim, self._seed
        )

    def batches(self, num_done: int) -> Iterator[tuple[Any, ...]]:
        """Yields rows and labels; seed and epoch number decide an epoch.

        With masked positives, a third item int32[examples, L] has the other labels of
        each row, padded with -1 to the longest of the mini-batch.
        """
        per_epoch = -(-len(self._train_rows) // self._batch_size)
        epoch, position = divmod(num_done, per_epoch)
        train = self.dataset.train
        while True:
            generator = seeds.generator(self._seed, epoch)
            rows = generator.permutation(self._train_rows)
            starts, ends = train.label_ends[rows], train.label_ends[rows + 1]
            targets = train.label_ids[generator.integers(starts, ends)]
            for i in range(position, per_epoch):
                part = slice(i * self._batch_size, (i + 1) * self._batch_size)
                batch = _inputs(self._train, rows[part]), targets[part]
                if self._mask_positives:
                    batch = *batch, _other_labels(train, rows[part], targets[part])
                yield batch
            epoch, position = epoch + 1, 0

    @functools.cached_property
    def _evaluation(self):
        encoder = self.encoder()

        @tf.function(reduce_retracing=True)
        def best(inputs, classifier):
            features, _ = encoder(inputs, (), training=False)
            scores = models.cosine_logits(features, classifier, scale=1.0)
            return tf.math.top_k(scores, min(max(_RANKS), self.num_classes)).indices

        return encoder, best

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures precision_at_1, _3 and _5 on the test rows."""
        encoder, best = self._evaluation
        classifier = tf.constant(load_weights(encoder, weights))
        test = self.dataset.test
        ranked, labels = [], []
        for start in range(0, len(self._test_rows), _EVALUATION_ROWS):
            rows = self._test_rows[start : start + _EVALUATION_ROWS]
            ranked.append(best(_inputs(self._test, rows), classifier).numpy())
            labels += [test.labels(row) for row in rows]
        ranked = np.concatenate(ranked)
        return {
            f"precision_at_{k}": metrics.precision_at_k(ranked, labels, k)
            for k in _RANKS
        }


def _other_labels(
    data: SparseRows, rows: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Returns rows' labels except the targets, int32[rows, L], padded with -1."""
    others = [
        labels[labels != target]
        for labels, target in zip(map(data.labels, rows), targets, strict=True)
    ]
    out = np.full((len(rows), max(map(len, others))), -1, np.int32)
    for row, labels in zip(out, others, strict=True):
        row[: len(labels)] = labels
    return out


def _inputs(features: sparse.csr_matrix, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the features of rows as inputs of a `SparseEncoder`."""
    part = features[rows]
    row_of = np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(part.indptr))
    return {
        "ids": part.indices,
        "values": part.data,
        "rows": row_of,
        "num_rows": np.int32(len(rows)),
    }
