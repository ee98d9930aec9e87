"""SGD as PyTorch has it: the learning rate multiplies the momentum, not the gradient.

m <- momentum m + g, w <- w - rate m. In Keras' SGD the rate is part of the momentum
(v <- momentum v - rate g), so that after a decay of the rate old gradients go on at the
old one. With a constant rate both are the same.
"""

import math
from collections.abc import Sequence

import tensorflow as tf


class SGDUnderRate(tf.keras.optimizers.Optimizer):
    """SGD with momentum; the learning rate is a number, or a schedule."""

    def __init__(
        self,
        learning_rate: float | tf.keras.optimizers.schedules.LearningRateSchedule,
        momentum: float,
    ):
        super().__init__(name="SGDUnderRate")
        self._learning_rate = self._build_learning_rate(learning_rate)
        self._momentum = momentum

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Makes a momentum for each variable, of zeros."""
        super().build(var_list)
        if not getattr(self, "_momentums", None):
            self._momentums = [
                self.add_variable_from_reference(v, variable_name="m") for v in var_list
            ]

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Does a step on one variable."""
        momentum = self._momentums[self._index_dict[self._var_key(variable)]]
        momentum.assign(self._momentum * momentum + gradient)
        rate = tf.cast(self.learning_rate, variable.dtype)
        variable.assign_sub(rate * momentum)

    def get_config(self) -> dict:
        """What the optimizer is built from."""
        rate = self._serialize_hyperparameter(self._learning_rate)
        return {"learning_rate": rate, "momentum": self._momentum}


class CosineByEpoch(tf.keras.optimizers.schedules.LearningRateSchedule):
    """MoCo's: rate (1 + cos(pi epoch / epochs)) / 2 in all steps of an epoch.

    Args:
        learning_rate: Of the first epoch.
        epochs: How many there will be; the rate of the last one is above zero.
        steps_per_epoch: How many updates make one.
    """

    def __init__(self, learning_rate: float, epochs: int, steps_per_epoch: int):
        self._rate = learning_rate
        self._epochs = epochs
        self._steps_per_epoch = steps_per_epoch

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the rate of a step, counted from 0."""
        epoch = tf.cast(tf.cast(step, tf.int64) // self._steps_per_epoch, tf.float32)
        share = tf.minimum(epoch / self._epochs, 1.0)
        return self._rate * 0.5 * (1.0 + tf.cos(math.pi * share))

    def get_config(self) -> dict:
        """What the schedule is built from."""
        return {
            "learning_rate": self._rate,
            "epochs": self._epochs,
            "steps_per_epoch": self._steps_per_epoch,
        }
