"""The workload of all contenders of the benchmark: data, model and initial weights.

This module needs NumPy only, so that every peer's virtual environment can import it.
All is computed from the workload's values, without files and downloads.

A round is FedAvg (McMahan et al. 2017, Algorithm 1) or FedSS over all clients: one
local epoch of plain SGD in batches of 32, in the order of the arrays (no shuffling),
and the mean of the clients' deltas, weighted by their numbers of examples, added to the
server's weights (server learning rate 1, no momentum).

The model is a feature extractor phi, from uint8 images to d features, and a classifier
W without bias: logits = 20 cos(f, w_j), where a vector x is normalised to
x / sqrt(max(|x|^2, 1e-12)), and the softmax cross entropy, averaged over the batch.

- "cnn", d = 128: images / 255; a 3x3 convolution to 32 channels and one to 64, both
  "valid", with bias and ReLU; 2x2 max pooling; a dense layer to 128 with bias and ReLU.
  (TFF's and FedJAX's CNN for EMNIST without its dropout, whose random draws no two
  frameworks share, and with cosine logits for dense ones.)
- "mobilenet_v3_small", d = 64: Keras's MobileNetV3-Small with GroupNorm, 8 channels to
  a group, as in `tff_fedss.models.mobilenet_v3`.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_IMAGE_SHAPES = {"cnn": (28, 28, 1), "mobilenet_v3_small": (96, 96, 3)}
_EMBEDDING_DIMS = {"cnn": 128, "mobilenet_v3_small": 64}
# n: EMNIST's classes for FedAvg, and enough to sample from for FedSS.
_NUM_CLASSES = {"fedavg": 62, "fedss": 2000}
LOGIT_SCALE = 20.0
LEARNING_RATE = 0.01
BATCH_SIZE = 32
# FedSS: |P_k| at most, and m.
MAX_POSITIVES, NUM_NEGATIVES = 20, 80

GROUP_NORM_EPSILON = 1e-3
CHANNELS_PER_GROUP = 8


class Client(NamedTuple):
    """One client's data.

    Attributes:
        images: uint8[examples, height, width, channels].
        labels: int32[examples].
        seed: int32[2], seed of the client's draws (FedSS: its negatives).
    """

    images: np.ndarray
    labels: np.ndarray
    seed: np.ndarray


class Block(NamedTuple):
    """An inverted residual of MobileNetV3 (Howard et al. 2019, Table 2).

    Attributes:
        name: Name of its layers, Keras's prefix.
        expanded: Channels of the depthwise convolution. Where they equal `inputs`,
            there is no expansion.
        stride: Stride of the depthwise convolution; padding is TensorFlow's "same".
        squeezed: Channels of squeeze-and-excite's bottleneck; 0 for none.
        hard_swish: Whether the activation is hard swish, or ReLU.
    """

    name: str
    inputs: int
    expanded: int
    outputs: int
    kernel: int
    stride: int
    squeezed: int
    hard_swish: bool


MOBILENET_V3_SMALL = (
    Block("expanded_conv", 16, 16, 16, 3, 2, 8, False),
    Block("expanded_conv_1", 16, 72, 24, 3, 2, 0, False),
    Block("expanded_conv_2", 24, 88, 24, 3, 1, 0, False),
    Block("expanded_conv_3", 24, 96, 40, 5, 2, 24, True),
    Block("expanded_conv_4", 40, 240, 40, 5, 1, 64, True),
    Block("expanded_conv_5", 40, 240, 40, 5, 1, 64, True),
    Block("expanded_conv_6", 40, 120, 48, 5, 1, 32, True),
    Block("expanded_conv_7", 48, 144, 48, 5, 1, 40, True),
    Block("expanded_conv_8", 48, 288, 96, 5, 2, 72, True),
    Block("expanded_conv_9", 96, 576, 96, 5, 1, 144, True),
    Block("expanded_conv_10", 96, 576, 96, 5, 1, 144, True),
)
LAST_CHANNELS, NUM_FEATURES = 576, 1024


@dataclasses.dataclass(frozen=True)
class Workload:
    """One row of the benchmark: K clients, with equally many images each."""

    algorithm: str
    model: str
    num_clients: int
    num_examples: int = 96

    @property
    def name(self) -> str:
        """Such as "fedavg/cnn"."""
        return f"{self.algorithm}/{self.model}"

    @property
    def num_classes(self) -> int:
        """The rows of W (n)."""
        return _NUM_CLASSES[self.algorithm]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return _IMAGE_SHAPES[self.model]

    @property
    def embedding_dim(self) -> int:
        """The length of the features (d)."""
        return _EMBEDDING_DIMS[self.model]

    @property
    def images_per_round(self) -> int:
        """Training images in one round."""
        return self.num_clients * self.num_examples

    def clients(self) -> list[Client]:
        """Generates the data of all clients."""
        return [self.client(k) for k in range(self.num_clients)]

    def client(self, k: int) -> Client:
        """Generates the data of client k alone: noise, of up to 20 classes."""
        rng = np.random.default_rng([1, k])
        classes = rng.choice(self.num_classes, MAX_POSITIVES, replace=False)
        return Client(
            images=rng.integers(0, 256, (self.num_examples, *self.image_shape), "u1"),
            labels=rng.choice(classes, self.num_examples).astype(np.int32),
            seed=rng.integers(0, 2**31 - 1, 2).astype(np.int32),
        )

    def initial_weights(self) -> dict[str, np.ndarray]:
        """Draws the initial weights, float32, by name.

        Returns:
            Kernels of convolutions are [height, width, inputs, outputs], of depthwise
            ones [height, width, channels, 1], of dense layers [inputs, outputs], where
            images are flattened in the order (height, width, channels). "classifier"
            is W, [n, d], and the last.
        """
        weights = {}
        for i, (name, shape) in enumerate(self._shapes()):
            rng = np.random.default_rng([2, i])
            last = name.rpartition("/")[2]
            if last == "gamma":
                value = np.ones(shape)
            elif last in ("beta", "bias"):
                value = np.zeros(shape)
            elif last == "classifier":
                value = rng.normal(0, 0.3 / math.sqrt(self.embedding_dim), shape)
            else:  # He's rule.
                fan_in = math.prod(shape[:2] if "depthwise" in last else shape[:-1])
                value = rng.normal(0, math.sqrt(2 / fan_in), shape)
            weights[name] = value.astype(np.float32)
        return weights

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from {"cnn": _cnn, "mobilenet_v3_small": _mobilenet}[self.model](
            self.embedding_dim
        )
        yield "classifier", (self.num_classes, self.embedding_dim)


def _cnn(embedding_dim: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "conv1/kernel", (3, 3, 1, 32)
    yield "conv1/bias", (32,)
    yield "conv2/kernel", (3, 3, 32, 64)
    yield "conv2/bias", (64,)
    yield "dense/kernel", (12 * 12 * 64, embedding_dim)
    yield "dense/bias", (embedding_dim,)


def _mobilenet(embedding_dim: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    def norm(name, channels):
        yield f"{name}/BatchNorm/gamma", (channels,)
        yield f"{name}/BatchNorm/beta", (channels,)

    yield "Conv/kernel", (3, 3, 3, 16)
    yield from norm("Conv", 16)
    for b in MOBILENET_V3_SMALL:
        if b.expanded != b.inputs:
            yield f"{b.name}/expand/kernel", (1, 1, b.inputs, b.expanded)
            yield from norm(f"{b.name}/expand", b.expanded)
        yield (
            f"{b.name}/depthwise/depthwise_kernel",
            (b.kernel, b.kernel, b.expanded, 1),
        )
        yield from norm(f"{b.name}/depthwise", b.expanded)
        if b.squeezed:
            prefix = f"{b.name}/squeeze_excite"
            yield f"{prefix}/Conv/kernel", (1, 1, b.expanded, b.squeezed)
            yield f"{prefix}/Conv/bias", (b.squeezed,)
            yield f"{prefix}/Conv_1/kernel", (1, 1, b.squeezed, b.expanded)
            yield f"{prefix}/Conv_1/bias", (b.expanded,)
        yield f"{b.name}/project/kernel", (1, 1, b.expanded, b.outputs)
        yield from norm(f"{b.name}/project", b.outputs)
    yield "Conv_1/kernel", (1, 1, MOBILENET_V3_SMALL[-1].outputs, LAST_CHANNELS)
    yield from norm("Conv_1", LAST_CHANNELS)
    yield "Conv_2/kernel", (1, 1, LAST_CHANNELS, NUM_FEATURES)
    yield "Conv_2/bias", (NUM_FEATURES,)
    yield "embedding/kernel", (NUM_FEATURES, embedding_dim)
    yield "embedding/bias", (embedding_dim,)
