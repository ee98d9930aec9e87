"""Language model task: predict each next word (RF-softmax, figures (a) to (c))."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import losses, models
from tff_fedss.datasets.central.penn_treebank import PennTreebank
from tff_fedss.errors import InvalidInputError
from tff_fedss.tasks.task import SampledSoftmaxTask, load_weights

# Validation is read in parts side by side, this many words at a time. It does not
# change the result, except for the few words left over at the end.
_EVALUATION_TOKENS = 50


class LanguageModel(SampledSoftmaxTask):
    """An LSTM over Penn Treebank; the metric is the perplexity of the validation text.

    The text is cut into `batch_size` parts that are read in parallel, `num_steps` words
    at a time; the LSTM's state is carried from one mini-batch to the next (truncated
    backpropagation), starting at zero.
    """

    metric = "perplexity"
    metric_title = "validation perplexity"

    def __init__(
        self,
        data: PennTreebank,
        *,
        embedding_dim: int,
        logit_scale: float,
        batch_size: int,
        num_steps: int,
        num_units: int,
        seed: int,
        validation_words: int | None = None,
    ):
        """Cuts the text; InvalidInputError if it is too short for these parts.

        Only the first `validation_words` of the validation text are measured;
        None: all.
        """
        valid = data.valid[:validation_words]
        for part, tokens in (("training", data.train), ("validation", valid)):
            if (len(tokens) - 1) // batch_size < num_steps:
                raise InvalidInputError(
                    f"batch_size={batch_size} parts of num_steps={num_steps} words and "
                    f"a last one are more than the {len(tokens):,} words of the {part} "
                    "text."
                )
        super().__init__(data, len(data.words), embedding_dim, logit_scale)
        self._num_steps = num_steps
        self._num_valid = len(valid)
        self._train = _side_by_side(data.train, batch_size)
        self._valid = _side_by_side(valid, batch_size)
        self._build_encoder = functools.partial(
            models.LstmEncoder,
            self.num_classes,
            embedding_dim,
            batch_size=batch_size,
            num_units=num_units,
            seed=seed,
        )

    @property
    def summary(self) -> str:
        """A description of the data in one line."""
        return (
            f"Penn Treebank: n={self.num_classes:,} words, "
            f"{len(self.dataset.train):,} for training, {self._num_valid:,} for "
            "validation"
        )

    def encoder(self) -> models.LstmEncoder:
        """Builds the LSTM with its initial weights."""
        return self._build_encoder()

    def batches(self, num_done: int) -> Iterator[tuple[Any, np.ndarray]]:
        """Yields inputs and next words, in the order of the text, without end."""
        inputs, labels = self._train
        per_epoch = inputs.shape[1] // self._num_steps
        position = num_done % per_epoch
        while True:
            part = slice(position * self._num_steps, (position + 1) * self._num_steps)
            keep = np.float32(position > 0)
            yield {"tokens": inputs[:, part], "keep": keep}, labels[:, part].reshape(-1)
            position = (position + 1) % per_epoch

    @functools.cached_property
    def _evaluation(self):
        encoder = self.encoder()

        # Traced twice, since the last part is shorter and the LSTM unrolled.
        @tf.function
        def loss_sum(tokens, labels, classifier, carry):
            inputs = {"tokens": tokens, "keep": tf.constant(1.0)}
            features, carry = encoder(inputs, carry, training=False)
            logits = models.cosine_logits(features, classifier, self.logit_scale)
            labels = tf.reshape(labels, [-1])
            return tf.reduce_sum(losses.softmax_loss(logits, labels)), carry

        return encoder, loss_sum

    def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures the perplexity of the validation text, exp of its mean loss."""
        encoder, loss_sum = self._evaluation
        classifier = tf.constant(load_weights(encoder, weights))
        inputs, labels = self._valid
        carry = encoder.initial_carry
        total = 0.0
        for start in range(0, inputs.shape[1], _EVALUATION_TOKENS):
            part = slice(start, start + _EVALUATION_TOKENS)
            part_sum, carry = loss_sum(
                inputs[:, part], labels[:, part], classifier, carry
            )
            total += float(part_sum)
        with np.errstate(over="ignore"):  # Infinite if training has diverged.
            perplexity = float(np.exp(total / labels.size))
        return dict(perplexity=perplexity)

    @staticmethod
    def format_metric(value: float) -> str:
        """Formats a perplexity."""
        return f"{value:.1f}" if value < 1e6 else f"{value:.3g}"


def _side_by_side(tokens: np.ndarray, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a text into equal parts; returns their words and each word's successor."""
    length = (len(tokens) - 1) // parts
    return (
        tokens[: parts * length].reshape(parts, length),
        tokens[1 : parts * length + 1].reshape(parts, length),
    )
