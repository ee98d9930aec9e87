"""Layers of the convolutional networks, with fixed names and seeds; normalizations."""

import collections
import contextlib
import contextvars
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

# The dtype, whatever Keras's policy, of sums over many values and of a network's
# outputs (see `runtime.configure_gpus`, mixed_precision).
FLOAT32 = "float32"

# As in PyTorch: running means are updated by a tenth.
batch_normalization = functools.partial(
    tf.keras.layers.BatchNormalization, momentum=0.9, epsilon=1e-5
)


class CountedDropout(tf.keras.layers.Layer):
    """Dropout whose masks are a function of a seed and its number of uses.

    Keras' own draws from a generator that no checkpoint saves. Here the count is a
    weight that is not trained, so that a resumed run has the same masks. In a federated
    process each client has its own first count (`start`).

    Args:
        rate: The share that is dropped in training, in [0, 1).
        **kwargs: For Keras.
    """

    def __init__(self, rate: float, seed: int, **kwargs: Any):
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
        """Drops values in training, and scales the others by 1 / (1 - rate)."""
        if not training or not self._rate:
            return inputs
        seed = tf.stack([tf.constant(self._seed, tf.int64), self._count])
        dropped = tf.nn.experimental.stateless_dropout(
            inputs, self._rate, seed, rng_alg="philox"
        )
        # A graph runs operations with effects in the order of the code.
        self._count.assign_add(1)
        return dropped

    def get_config(self):
        """Returns the layer's arguments."""
        return {**super().get_config(), "rate": self._rate, "seed": self._seed}

    def as_keras(self) -> tf.keras.layers.Layer:
        """Returns what it does outside of training: nothing."""
        return tf.keras.layers.Activation("linear", name=self.name)


def counted_dropouts(model: tf.keras.Model) -> list[CountedDropout]:
    """Returns the layers of a model that are `CountedDropout`, in a fixed order."""
    return [layer for layer in model.submodules if isinstance(layer, CountedDropout)]


def without_counts(
    model: tf.keras.Model, variables: Iterable[tf.Variable]
) -> list[tf.Variable]:
    """Returns those of a model's variables that are no counters of `CountedDropout`."""
    counts = {id(v) for layer in counted_dropouts(model) for v in layer.weights}
    return [v for v in variables if id(v) not in counts]


class LayerNames:
    """Names the layers of one network: conv_1, norm_1, relu_1, conv_2, ...

    Keras by default counts through all networks of a process (conv2d_4 for the first
    convolution of a second one), so that a file of weights, which identifies layers by
    name, would fit or not depending on earlier networks.
    """

    def __init__(self):
        self._counts: collections.Counter[str] = collections.Counter()

    def __call__(self, kind: str) -> str:
        """Returns the name of the next layer of a kind."""
        self._counts[kind] += 1
        return f"{kind}_{self._counts[kind]}"


class Layers:
    """Makes layers with fixed names, and initial values that one seed decides."""

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
            seeds_per_network: Distance between two networks' seeds of layers. It
                decides the initial values: never change it.
            normalization: Makes a normalization layer with a `name`.
            conv_initializer: Makes the initializer of convolutions from a `seed`. By
                default He et al.'s.
        """
        self._seeds: Iterator[int] = itertools.count(seeds_per_network * seed)
        self._names = LayerNames()
        self._normalization = normalization
        self._conv_initializer = conv_initializer

    def scaled(self, images: tf.Tensor) -> tf.Tensor:
        """Scales images from 0..255 to -1..1."""
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

        Without an activation it ends a network, and always computes in float32.
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
        """Flattens an image to a vector."""
        return tf.keras.layers.Flatten(name="features")(x)


_as_if_gpus = contextvars.ContextVar("as_if_gpus", default=False)


def is_for_gpus() -> bool:
    """Returns whether graphs are built for GPUs: with GPUs or within `as_if_gpus`.

    Many passes over little memory are fast on a CPU but slow on a GPU, where each
    operation costs the launch of a kernel, and vice versa. So some layers have two
    implementations, between which this decides when their graph is built.
    """
    return _as_if_gpus.get() or bool(tf.config.get_visible_devices("GPU"))


@contextlib.contextmanager
def as_if_gpus() -> Iterator[None]:
    """Builds graphs as for GPUs, to test them without GPUs."""
    token = _as_if_gpus.set(True)
    try:
        yield
    finally:
        _as_if_gpus.reset(token)


@tf.keras.utils.register_keras_serializable("tff_fedss")
class GroupNormalization(tf.keras.layers.GroupNormalization):
    """Keras's GroupNormalization, in fewer passes over the activations.

    The same function (Wu and He, "Group Normalization", 2018, Eq. 1-7), the same
    weights under the same names, the same arguments. Keras moves the groups to a
    separate axis and lets TensorFlow differentiate that, which costs more than all the
    convolutions of a small network. Here the large tensors are read channel by channel,
    the sums over a group are computed from the small sums over its channels, and the
    gradient is explicit:

        dx = a dy - (mean(gamma dy) + x^ mean(gamma dy x^)) / sigma,  a = gamma / sigma

    with means over a group and x^ = (x - mu) / sigma. The variance is of the centred
    values, not a difference of moments, so that an image with a large mean does not
    lose precision.

    This is for CPUs. On GPUs, where few large operations are fast, the layer is
    TensorFlow's batch normalization of a transposed tensor in which each group of each
    example is a channel, with that operation's own gradient.

    Channels must be the last axis, and gamma and beta are required.
    """

    def build(self, input_shape: tf.TensorShape) -> None:
        """Creates gamma and beta for inputs of [examples, ..., channels].

        Raises:
            ValueError: If the channels are not on the last axis, or do not divide into
                the groups.
        """
        if self.axis not in (-1, len(input_shape) - 1):
            raise ValueError(f"Channels must be the last axis, found {self.axis}.")
        super().build(input_shape)

    def as_keras(self) -> tf.keras.layers.Layer:
        """Returns Keras's own layer, which gives the same up to rounding."""
        return tf.keras.layers.GroupNormalization.from_config(self.get_config())

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Normalizes float32[examples, ..., channels], example by example."""
        by_device = (
            _by_batch_norm
            if is_for_gpus() and inputs.shape[1:].is_fully_defined()
            else _group_normalize
        )
        outputs = by_device(
            inputs,
            tf.convert_to_tensor(self.gamma),
            tf.convert_to_tensor(self.beta),
            self.groups,
            self.epsilon,
        )
        outputs.set_shape(inputs.shape)
        return outputs


# Rows of up to this many elements, of several positions: TensorFlow multiplies them
# fast with a repeated row.
_ROW = 384


@tf.autograph.experimental.do_not_convert
def _group_normalize(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, groups: int, epsilon: float
) -> tf.Tensor:
    channels = x.shape[-1]
    per_group = channels // groups
    fold = 1  # Positions in a row of the large tensors.
    # Known sizes need not be computed at each step.
    if x.shape[1:].is_fully_defined():
        x_shape = [-1, *x.shape[1:]]
        num_positions = math.prod(x.shape[1:-1])
        group_size = tf.constant(num_positions * per_group, x.dtype)
        if x.shape[0] is None:
            # For a constant, TensorFlow would multiply by the reciprocal, which changes
            # the last digits of earlier runs. (For known batches it always did.)
            group_size = tf.compat.v1.placeholder_with_default(group_size, [])
        while 2 * fold * channels <= _ROW and num_positions % (2 * fold) == 0:
            fold *= 2
    else:
        x_shape = tf.shape(x)
        num_positions = tf.reduce_prod(x_shape[1:-1])
        group_size = tf.cast(num_positions * per_group, x.dtype)

    def in_rows(values):
        """Reshapes a large tensor to [examples, rows, fold * channels]."""
        return tf.reshape(values, [-1, num_positions // fold, fold * channels])

    def as_row(values):
        """Repeats [..., 1, groups, 1 or per_group] in [..., 1, fold * channels]."""
        leading = values.shape.rank - 3
        repeats = [1] * leading + [fold, 1, per_group // values.shape[-1]]
        row = [*values.shape[: leading - 1], -1, 1, fold * channels]
        return tf.reshape(tf.tile(values, repeats), row)

    def position_sums(values):
        """Adds the positions of a large tensor: [examples, 1, groups, per_group]."""
        sums = tf.reduce_sum(tf.reshape(values, [-1, num_positions, channels]), 1)
        return tf.reshape(sums, [-1, 1, groups, per_group])

    def group_means(sums):
        """Means over groups, [..., 1, groups, 1], from sums over positions."""
        return tf.reduce_sum(sums, -1, keepdims=True) / group_size

    @tf.custom_gradient
    def normalize(x, gamma, beta):
        x = in_rows(x)
        scale = tf.reshape(gamma, [groups, per_group])
        centred = x - as_row(group_means(position_sums(x)))
        variance = group_means(position_sums(tf.square(centred)))
        inverse_sigma = tf.math.rsqrt(variance + epsilon)
        a = as_row(scale * inverse_sigma)
        y = centred * a + tf.tile(beta, [fold])

        def gradient(dy):
            dy = in_rows(dy)
            # Sums of dy, and of dy x^.
            sums = tf.stack(
                [position_sums(dy), position_sums(dy * centred) * inverse_sigma]
            )
            scales = tf.stack([inverse_sigma, tf.square(inverse_sigma)])
            mean, slope = tf.unstack(as_row(group_means(scale * sums) * scales))
            dx = dy * a - (centred * slope + mean)
            dbeta, dgamma = tf.unstack(
                tf.reshape(tf.reduce_sum(sums, 1), [2, channels])
            )
            return tf.reshape(dx, x_shape), dgamma, dbeta

        return tf.reshape(y, x_shape), gradient

    return normalize(x, gamma, beta)


@tf.autograph.experimental.do_not_convert
def _by_batch_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, groups: int, epsilon: float
) -> tf.Tensor:
    """Normalizes in few operations: each group of each example is a channel."""
    channels, positions = x.shape[-1], math.prod(x.shape[1:-1])
    by_channel = tf.transpose(tf.reshape(x, [-1, positions, channels]), [0, 2, 1])
    by_group = tf.reshape(by_channel, [1, -1, channels // groups, positions])
    num_groups = tf.shape(by_group)[1:2]
    normalized = tf.raw_ops.FusedBatchNormV3(
        x=by_group,
        scale=tf.ones(num_groups),
        offset=tf.zeros(num_groups),
        mean=tf.zeros([0]),
        variance=tf.zeros([0]),
        epsilon=epsilon,
        data_format="NCHW",
    ).y
    by_channel = tf.reshape(normalized, [-1, channels, positions])
    y = tf.reshape(tf.transpose(by_channel, [0, 2, 1]), [-1, *x.shape[1:]])
    return y * gamma + beta


class SplitBatchNormalization(tf.keras.layers.BatchNormalization):
    """BatchNorm whose statistics in training are those of equal parts of the batch.

    MoCo (He et al., 2020, section 3.3) trains on 8 GPUs, each of which normalizes its
    own images, and shuffles the keys' images between them; its authors' code for one
    GPU (SplitBatchNorm) splits the batch instead. Without either, the images of a batch
    reveal to the encoders which key belongs to which query. Parts have consecutive
    images; running means are updated once, by the mean over the parts. Inference equals
    BatchNorm.

    Args:
        num_splits: The number of parts; it divides the number of images of a batch.
        **kwargs: For Keras; the axis is the last one.
    """

    def __init__(self, num_splits: int, **kwargs: Any):
        super().__init__(**kwargs)
        self._num_splits = num_splits

    def as_keras(self) -> tf.keras.layers.Layer:
        """Returns Keras's own layer, which is the same in inference."""
        return tf.keras.layers.BatchNormalization.from_config(super().get_config())

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Normalizes float32[examples, ..., channels]."""
        if not training or not self.trainable:
            return super().call(inputs, training=False)
        shape = tf.shape(inputs)
        tf.debugging.assert_equal(
            shape[0] % self._num_splits,
            0,
            f"a batch is no multiple of the {self._num_splits} parts of its BatchNorm",
        )
        parts = tf.reshape(
            inputs,
            tf.concat([[self._num_splits, shape[0] // self._num_splits], shape[1:]], 0),
        )
        axes = list(range(1, inputs.shape.rank))
        mean, variance = tf.nn.moments(parts, axes, keepdims=True)
        scale = self.gamma * tf.math.rsqrt(variance + self.epsilon)
        outputs = tf.reshape(parts * scale + (self.beta - mean * scale), shape)
        # The running variance is unbiased, as in Keras and PyTorch.
        count = tf.cast(tf.size(parts) / tf.size(mean), variance.dtype)
        for moving, own in (
            (self.moving_mean, mean),
            (self.moving_variance, variance * count / tf.maximum(count - 1.0, 1.0)),
        ):
            target = tf.reduce_mean(tf.reshape(own, [self._num_splits, -1]), 0)
            moving.assign(moving * self.momentum + target * (1.0 - self.momentum))
        return tf.ensure_shape(outputs, inputs.shape)

    def get_config(self) -> dict:
        """Returns the layer's arguments."""
        return {**super().get_config(), "num_splits": self._num_splits}
