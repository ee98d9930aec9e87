"""In-place training: an optimizer changes a model's variables step by step.

The common part of the centralized algorithms. The federated ones have no variables:
their states are values that each round maps to new ones.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import errors, losses, models


class InPlace:
    """A base class of algorithms that train a model's variables in place.

    A subclass has `update`, which does one step and returns sums over its examples by
    name, `num_examples` among them. Variables are listed once: when another model has
    been built in a graph, as TFF does, Keras may refuse to list those of this one.

    Args:
        trainable: The variables that the optimizer changes.
        non_trainable: The other variables that training changes.
        weight_decay: As in PyTorch's SGD: times a weight, it is added to the gradient,
            and thus enters the momentum. Keras' optimizers decay the weights apart from
            the step.
    """

    def __init__(
        self,
        trainable: Iterable[tf.Variable],
        optimizer: tf.keras.optimizers.Optimizer,
        non_trainable: Iterable[tf.Variable] = (),
        weight_decay: float = 0.0,
    ):
        wanted = "one of tf.keras.optimizers, such as SGD(0.1)"
        errors.check_kind("optimizer", optimizer, tf.keras.optimizers.Optimizer, wanted)
        self._trainable = list(trainable)
        self._non_trainable = list(non_trainable)
        self._optimizer = optimizer
        self._weight_decay = weight_decay
        optimizer.build(self._trainable)

    def round_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Computes the metrics of a round from the sums of its updates, by name.

        This base class returns the means over all examples, and their number.
        """
        num_examples = sums["num_examples"]
        means = {name: value / num_examples for name, value in sums.items()}
        return {**means, "num_examples": num_examples}

    def _descend(self, gradient: Sequence[tf.Tensor]) -> None:
        """Does the optimizer's step, with weight decay."""
        if self._weight_decay:
            gradient = [
                g + self._weight_decay * v
                for g, v in zip(gradient, self._trainable, strict=True)
            ]
        self._optimizer.apply_gradients(zip(gradient, self._trainable, strict=True))

    def _softmax_step(
        self, logits_fn: Callable[[], tf.Tensor], labels: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Does a step on the mean softmax loss; returns sums of loss and accuracy."""
        with tf.GradientTape() as tape:
            logits = logits_fn()
            example_losses = losses.softmax_loss(logits, labels)
            loss = tf.reduce_mean(example_losses)
        self._descend(tape.gradient(loss, self._trainable))
        is_correct = tf.equal(tf.argmax(logits, 1, tf.int32), labels)
        return {
            "loss": tf.reduce_sum(example_losses),
            "accuracy": tf.math.count_nonzero(is_correct),
        }

    @property
    def _variables(self) -> list[tf.Variable]:
        return [*self._trainable, *self._non_trainable, *self._optimizer.variables]

    @property
    def state(self) -> list[np.ndarray]:
        """The arrays on which the next updates depend."""
        return models.values(self._variables)

    def set_state(self, state: Sequence[np.ndarray]) -> None:
        """Sets the state to an earlier value of `state`."""
        models.assign(self._variables, state)

    @property
    def weights(self) -> tff.learning.models.ModelWeights:
        """The model, as NumPy arrays."""
        return tff.learning.models.ModelWeights(
            trainable=models.values(self._trainable),
            non_trainable=models.values(self._non_trainable),
        )


def as_numbers(sums: Mapping[str, tf.Tensor]) -> dict[str, float]:
    """Converts a graph's scalar results to Python numbers."""
    return {name: value.numpy().item() for name, value in sums.items()}
