"""The workload's model in PyTorch, for the contenders that run on it.

Images are [examples, channels, height, width], as in PyTorch, in the memory format that
is faster on CPUs (`channels_last`).
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.benchmarks.workload import (
    CHANNELS_PER_GROUP,
    GROUP_NORM_EPSILON,
    LAST_CHANNELS,
    LOGIT_SCALE,
    MOBILENET_V3_SMALL,
    NUM_FEATURES,
    Block,
    Workload,
)

_EPSILON = 1e-12


def images(array: np.ndarray) -> torch.Tensor:
    """Converts uint8[examples, height, width, channels]."""
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def labels(array: np.ndarray) -> torch.Tensor:
    """Converts int32[examples]."""
    return torch.from_numpy(array).long()


class Model(nn.Module):
    """phi and W; from uint8 images to logits."""

    def __init__(self, workload: Workload):
        super().__init__()
        self.phi = {"cnn": _Cnn, "mobilenet_v3_small": _MobileNet}[workload.model](
            workload.embedding_dim
        )
        self.classifier = nn.Parameter(
            torch.empty(workload.num_classes, workload.embedding_dim)
        )
        self.load(workload.initial_weights())
        self.to(memory_format=torch.channels_last)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Returns float32[examples, n]."""
        features = _normalize(self.phi(batch.float()))
        cosines = features @ _normalize(self.classifier).T
        return LOGIT_SCALE * cosines.clamp(-1, 1)

    def mean_loss(self, batch: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The softmax cross entropy over all classes, averaged over the batch."""
        return functional.cross_entropy(self(batch), targets)

    @torch.no_grad()
    def load(self, weights: dict[str, np.ndarray]) -> None:
        """Takes weights in the layout of `Workload.initial_weights`."""
        weights = dict(weights)
        for name, parameter in self.named():
            value = torch.from_numpy(_to_torch(name, weights.pop(name)))
            assert value.shape == parameter.shape, (name, value.shape, parameter.shape)
            parameter.copy_(value)
        if weights:
            raise ValueError(f"The model lacks {sorted(weights)}.")

    def arrays(self) -> dict[str, np.ndarray]:
        """The opposite of `load`."""
        return {n: _from_torch(n, p.detach().numpy()) for n, p in self.named()}

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Returns the parameters by the workload's names."""
        return [*self.phi.named(), ("classifier", self.classifier)]


def evaluate(model: Model, workload: Workload) -> float:
    """Returns the mean loss over all clients' data."""
    with torch.inference_mode():
        losses = [
            model.mean_loss(images(c.images), labels(c.labels)).item()
            for c in workload.clients()
        ]
    return float(np.mean(losses))


def _normalize(x: torch.Tensor) -> torch.Tensor:
    return x * x.square().sum(-1, keepdim=True).clamp_min(_EPSILON).rsqrt()


# Dense layers of the CNN see (height, width, channels), so that the layouts differ by
# the usual transposition only.
def _to_torch(name: str, value: np.ndarray) -> np.ndarray:
    if value.ndim == 4:
        if "depthwise" in name:  # [h, w, channels, 1] -> [channels, 1, h, w]
            return value.transpose(2, 3, 0, 1).copy()
        return value.transpose(3, 2, 0, 1).copy()
    return value.T.copy() if name.endswith("/kernel") else value


def _from_torch(name: str, value: np.ndarray) -> np.ndarray:
    if value.ndim == 4:
        axes = (2, 3, 0, 1) if "depthwise" in name else (2, 3, 1, 0)
        return value.transpose(axes).copy()
    return value.T.copy() if name.endswith("/kernel") else value.copy()


def _weights(layer: nn.Module, name: str, kernel: str = "kernel") -> list:
    named = [(f"{name}/{kernel}", layer.weight)]
    return named if layer.bias is None else [*named, (f"{name}/bias", layer.bias)]


class _Cnn(nn.Module):
    def __init__(self, embedding_dim: int):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dense = nn.Linear(12 * 12 * 64, embedding_dim)

    def forward(self, x):
        x = functional.relu(self.conv1(x / 255))
        x = functional.relu(self.conv2(x))
        x = functional.max_pool2d(x, 2)
        # It already has this order in memory.
        x = x.permute(0, 2, 3, 1).flatten(1)
        return functional.relu(self.dense(x))

    def named(self):
        return [
            *_weights(self.conv1, "conv1"),
            *_weights(self.conv2, "conv2"),
            *_weights(self.dense, "dense"),
        ]


class _Same(nn.Module):
    """A convolution with TensorFlow's "same" padding: the odd pixel at the end."""

    def __init__(self, inputs, outputs, kernel, stride=1, groups=1, bias=False):
        super().__init__()
        self._pad = kernel // 2 if stride == 1 else 0
        # For sides divisible by the stride, as all of this network's are.
        total = kernel - stride
        self._uneven = (total // 2, total - total // 2) * 2 if stride > 1 else None
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, stride, self._pad, groups=groups, bias=bias
        )

    def forward(self, x):
        if self._uneven:
            x = functional.pad(x, self._uneven)
        return self.conv(x)


class _Normalized(nn.Module):
    """A convolution and a GroupNorm."""

    def __init__(self, name, *args, kernel_name="kernel", **kwargs):
        super().__init__()
        self._name, self._kernel_name = name, kernel_name
        self.same = _Same(*args, **kwargs)
        channels = args[1]
        self.norm = nn.GroupNorm(
            channels // CHANNELS_PER_GROUP, channels, GROUP_NORM_EPSILON
        )

    def forward(self, x):
        return self.norm(self.same(x))

    def named(self):
        return [
            *_weights(self.same.conv, self._name, self._kernel_name),
            (f"{self._name}/BatchNorm/gamma", self.norm.weight),
            (f"{self._name}/BatchNorm/beta", self.norm.bias),
        ]


class _Residual(nn.Module):
    def __init__(self, b: Block):
        super().__init__()
        self._b = b
        self._activation = functional.hardswish if b.hard_swish else functional.relu
        self.expand = None
        if b.expanded != b.inputs:
            self.expand = _Normalized(f"{b.name}/expand", b.inputs, b.expanded, 1)
        self.depthwise = _Normalized(
            f"{b.name}/depthwise",
            b.expanded,
            b.expanded,
            b.kernel,
            b.stride,
            groups=b.expanded,
            kernel_name="depthwise_kernel",
        )
        if b.squeezed:
            self.squeeze = nn.Conv2d(b.expanded, b.squeezed, 1)
            self.excite = nn.Conv2d(b.squeezed, b.expanded, 1)
        self.project = _Normalized(f"{b.name}/project", b.expanded, b.outputs, 1)

    def forward(self, inputs):
        x = inputs
        if self.expand is not None:
            x = self._activation(self.expand(x))
        x = self._activation(self.depthwise(x))
        if self._b.squeezed:
            s = functional.relu(self.squeeze(x.mean((2, 3), keepdim=True)))
            x = x * functional.hardsigmoid(self.excite(s))
        x = self.project(x)
        is_residual = self._b.stride == 1 and self._b.inputs == self._b.outputs
        return inputs + x if is_residual else x

    def named(self):
        named = [] if self.expand is None else self.expand.named()
        named += self.depthwise.named()
        if self._b.squeezed:
            prefix = f"{self._b.name}/squeeze_excite"
            named += _weights(self.squeeze, f"{prefix}/Conv")
            named += _weights(self.excite, f"{prefix}/Conv_1")
        return named + self.project.named()


class _MobileNet(nn.Module):
    def __init__(self, embedding_dim: int):
        super().__init__()
        self.first = _Normalized("Conv", 3, 16, 3, 2)
        self.blocks = nn.Sequential(*map(_Residual, MOBILENET_V3_SMALL))
        self.last = _Normalized(
            "Conv_1", MOBILENET_V3_SMALL[-1].outputs, LAST_CHANNELS, 1
        )
        self.features = nn.Conv2d(LAST_CHANNELS, NUM_FEATURES, 1)
        self.embedding = nn.Linear(NUM_FEATURES, embedding_dim)

    def forward(self, x):
        x = functional.hardswish(self.first(x / 127.5 - 1))
        x = functional.hardswish(self.last(self.blocks(x)))
        x = functional.hardswish(self.features(x.mean((2, 3), keepdim=True)))
        return self.embedding(x.flatten(1))

    def named(self):
        named = self.first.named()
        for block in self.blocks:
            named += block.named()
        return [
            *named,
            *self.last.named(),
            *_weights(self.features, "Conv_2"),
            *_weights(self.embedding, "embedding"),
        ]
