"""What the convolutional networks for small images are put together from."""

import itertools
from collections.abc import Iterator

import tensorflow as tf


class CountedDropout(tf.keras.layers.Layer):
    """Dropout whose masks follow from a seed and from how often it has been used.

    Keras' own draws from a generator that no checkpoint holds. Here the count is a
    weight that is not trained: a run that goes on from saved weights drops what it
    would have dropped.
    """

    def __init__(self, rate: float, seed: int, **kwargs):
        """Drops nothing yet.

        Args:
            rate: The share that is dropped in training, in [0, 1).
            seed: Of the masks.
            **kwargs: For Keras.
        """
        super().__init__(**kwargs)
        self._rate = rate
        self._seed = seed

    def build(self, input_shape):
        """See Keras."""
        self._count = self.add_weight(
            "count", shape=(), dtype=tf.int64, initializer="zeros", trainable=False
        )
        super().build(input_shape)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Drops in training, and raises what is left by 1 / (1 - rate)."""
        if not training or not self._rate:
            return inputs
        seed = tf.stack([tf.constant(self._seed, tf.int64), self._count])
        dropped = tf.nn.experimental.stateless_dropout(
            inputs, self._rate, seed, rng_alg="philox"
        )
        # A graph runs what has effects in the order in which it is written.
        self._count.assign_add(1)
        return dropped

    def get_config(self):
        """See Keras."""
        return {**super().get_config(), "rate": self._rate, "seed": self._seed}


class Layers:
    """Makes layers, with initial values that follow from one seed."""

    def __init__(self, seed: int):
        """Begins with the first layer.

        Args:
            seed: Of all of them.
        """
        self._seeds: Iterator[int] = itertools.count(1000 * seed)

    def scaled(self, images: tf.Tensor) -> tf.Tensor:
        """Brings images from 0..255 to -1..1."""
        return tf.keras.layers.Rescaling(1 / 127.5, offset=-1)(images)

    def conv(
        self,
        x: tf.Tensor,
        filters: int,
        kernel_size: int = 3,
        strides: int = 1,
        padding: str = "same",
        use_bias: bool = False,
    ) -> tf.Tensor:
        """A convolution with He et al.'s initial values."""
        return tf.keras.layers.Conv2D(
            filters,
            kernel_size,
            strides=strides,
            padding=padding,
            use_bias=use_bias,
            kernel_initializer=tf.keras.initializers.HeNormal(next(self._seeds)),
        )(x)

    def norm(self, x: tf.Tensor) -> tf.Tensor:
        """Batch normalization, as in PyTorch: running means move by a tenth."""
        return tf.keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    def norm_relu(self, x: tf.Tensor) -> tf.Tensor:
        """Batch normalization and ReLU."""
        return tf.keras.layers.ReLU()(self.norm(x))

    def dense(
        self, x: tf.Tensor, units: int, activation: str | None = None
    ) -> tf.Tensor:
        """A fully connected layer with Glorot and Bengio's initial values."""
        return tf.keras.layers.Dense(
            units,
            activation,
            kernel_initializer=tf.keras.initializers.GlorotUniform(next(self._seeds)),
        )(x)

    def dropout(self, x: tf.Tensor, rate: float) -> tf.Tensor:
        """Dropout that can be resumed."""
        return CountedDropout(rate, next(self._seeds))(x)
