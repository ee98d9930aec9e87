"""Layers of the convolutional networks, with fixed names and seeds."""

import collections
import functools
import itertools
from collections.abc import Callable, Iterator

import tensorflow as tf

# What computes in it whatever Keras's policy is: sums over many values, and what comes
# out of a network (see `runtime.configure_gpus`, mixed_precision).
FLOAT32 = "float32"

# As in PyTorch: running means move by a tenth.
batch_normalization = functools.partial(
    tf.keras.layers.BatchNormalization, momentum=0.9, epsilon=1e-5
)


class CountedDropout(tf.keras.layers.Layer):
    """Dropout whose masks follow from a seed and from how often it has been used.

    Keras' own draws from a generator that no checkpoint holds. Here the count is a
    weight that is not trained: a run that is resumed from saved weights drops what it
    would have dropped. In a federated process each client has its own first count
    (`start`).

    Args:
        rate: The share that is dropped in training, in [0, 1).
        seed: Of the masks.
        **kwargs: For Keras.
    """

    def __init__(self, rate: float, seed: int, **kwargs):
        super().__init__(**kwargs)
        self._rate = rate
        self._seed = seed

    def build(self, input_shape):
        """Creates the counter of uses."""
        self._count = self.add_weight(
            "count", shape=(), dtype=tf.int64, initializer="zeros", trainable=False
        )
        super().build(input_shape)

    def start(self, seed: tf.Tensor) -> None:
        """Sets the count to the 64 bits of a seed, int32[2]."""
        self._count.assign(tf.bitcast(seed, tf.int64))

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
        """Returns what the layer is built from."""
        return {**super().get_config(), "rate": self._rate, "seed": self._seed}


def counted_dropouts(model: tf.keras.Model) -> list[CountedDropout]:
    """Returns the layers of a model that are `CountedDropout`, in a fixed order."""
    return [layer for layer in model.submodules if isinstance(layer, CountedDropout)]


class LayerNames:
    """Names the layers of one network: conv_1, norm_1, relu_1, conv_2, ...

    Left to itself, Keras counts through all networks of a process (conv2d_4 for the
    first convolution of a second one), and a file of weights, which knows layers by
    their names, would fit or not by what was built before.
    """

    def __init__(self):
        self._counts: collections.Counter[str] = collections.Counter()

    def __call__(self, kind: str) -> str:
        """Returns the name of the next layer of a kind."""
        self._counts[kind] += 1
        return f"{kind}_{self._counts[kind]}"


class Layers:
    """Makes layers, with fixed names and initial values that follow from one seed."""

    def __init__(
        self,
        seed: int,
        *,
        seeds_per_network: int = 1000,
        normalization: Callable[..., tf.keras.layers.Layer] = batch_normalization,
        conv_initializer: Callable[
            ..., tf.keras.initializers.Initializer
        ] = tf.keras.initializers.HeNormal,
    ):
        """Sets the seed and the kinds of layers.

        Args:
            seed: Of all of them.
            seeds_per_network: How many seeds of layers lie between those of two
                networks. The initial values follow from it: never change it.
            normalization: Makes such a layer of a `name`.
            conv_initializer: Of convolutions, from a `seed`. By default He et al.'s.
        """
        self._seeds: Iterator[int] = itertools.count(seeds_per_network * seed)
        self._names = LayerNames()
        self._normalization = normalization
        self._conv_initializer = conv_initializer

    def scaled(self, images: tf.Tensor) -> tf.Tensor:
        """Brings images from 0..255 to -1..1."""
        return tf.keras.layers.Rescaling(1 / 127.5, offset=-1, name="scaled")(images)

    def conv(
        self,
        x: tf.Tensor,
        filters: int,
        kernel_size: int = 3,
        strides: int = 1,
        padding: str = "same",
        use_bias: bool = False,
    ) -> tf.Tensor:
        """A convolution."""
        return tf.keras.layers.Conv2D(
            filters,
            kernel_size,
            strides=strides,
            padding=padding,
            use_bias=use_bias,
            kernel_initializer=self._conv_initializer(seed=next(self._seeds)),
            name=self._names("conv"),
        )(x)

    def norm(self, x: tf.Tensor) -> tf.Tensor:
        """A normalization."""
        return self._normalization(name=self._names("norm"))(x)

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        """A rectifier."""
        return tf.keras.layers.ReLU(name=self._names("relu"))(x)

    def norm_relu(self, x: tf.Tensor) -> tf.Tensor:
        """A normalization and a rectifier."""
        return self.relu(self.norm(x))

    def dense(
        self,
        x: tf.Tensor,
        units: int,
        activation: str | None = None,
        name: str | None = None,
    ) -> tf.Tensor:
        """A fully connected layer with Glorot and Bengio's initial values.

        Without an activation it ends a network, and computes in float32 in any case.
        """
        return tf.keras.layers.Dense(
            units,
            activation,
            dtype=None if activation else FLOAT32,
            kernel_initializer=tf.keras.initializers.GlorotUniform(next(self._seeds)),
            name=name or self._names("dense"),
        )(x)

    def dropout(self, x: tf.Tensor, rate: float) -> tf.Tensor:
        """Dropout that can be resumed."""
        name = self._names("dropout")
        return CountedDropout(rate, next(self._seeds), name=name)(x)

    def add(self, x: tf.Tensor, shortcut: tf.Tensor) -> tf.Tensor:
        """The end of a residual block."""
        return tf.keras.layers.Add(name=self._names("add"))([x, shortcut])

    def max_pool(self, x: tf.Tensor, padding: str = "valid") -> tf.Tensor:
        """Halves an image."""
        name = self._names("pool")
        return tf.keras.layers.MaxPooling2D(padding=padding, name=name)(x)

    def global_pool(self, x: tf.Tensor) -> tf.Tensor:
        """Means over all pixels."""
        return tf.keras.layers.GlobalAveragePooling2D(
            name="global_pool", dtype=FLOAT32
        )(x)

    def flatten(self, x: tf.Tensor) -> tf.Tensor:
        """Makes a vector of an image."""
        return tf.keras.layers.Flatten(name="features")(x)
