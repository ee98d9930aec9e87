"""The workload's model in PyTorch, and what the contenders that run on it share.

Images are [examples, channels, height, width], as in PyTorch, in the memory format that
is faster on CPUs (`channels_last`).
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.benchmarks import protocol
from experiments.benchmarks.workload import (
    BATCH_SIZE,
    CHANNELS_PER_GROUP,
    GROUP_NORM_EPSILON,
    LEARNING_RATE,
    LOGIT_SCALE,
    MOBILENET_V3_SMALL,
    Client,
    Workload,
)

_EPSILON = 1e-12


def tensors(client: Client) -> tuple[torch.Tensor, torch.Tensor]:
    """Converts a client's images and labels."""
    images = torch.from_numpy(client.images).permute(0, 3, 1, 2)
    return images, torch.from_numpy(client.labels).long()


class Model(nn.Module):
    """phi and W, by the names of `Workload.initial_weights`."""

    def __init__(self, workload: Workload):
        super().__init__()
        self._phi = {"cnn": _cnn, "mobilenet_v3_small": _mobilenet}[workload.model]
        self.weights = nn.ParameterDict(
            {
                name: torch.from_numpy(value.transpose(_axes(name, value)).copy())
                for name, value in workload.initial_weights().items()
            }
        )
        self.to(memory_format=torch.channels_last)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Returns float32[examples, n], for uint8 images."""
        features = _normalize(self._phi(self.weights, batch.float()))
        cosines = features @ _normalize(self.weights["classifier"]).T
        return LOGIT_SCALE * cosines.clamp(-1, 1)

    def mean_loss(self, batch: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The softmax cross entropy over all classes, averaged over the batch."""
        return functional.cross_entropy(self(batch), targets)

    def train_client(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Does the local epoch of a client."""
        optimizer = torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)
        for start in range(0, len(labels), BATCH_SIZE):
            batch = slice(start, start + BATCH_SIZE)
            optimizer.zero_grad()
            self.mean_loss(images[batch], labels[batch]).backward()
            optimizer.step()


class TorchContender(protocol.Contender):
    """A contender whose global model is a `Model`.

    Attributes:
        model: The model, from `build` on.
    """

    model: Model

    def __init__(self, workload: Workload):
        self._workload = workload
        self._data = [tensors(client) for client in workload.clients()]

    def weights(self) -> dict[str, np.ndarray]:
        found = {k: v.detach().numpy() for k, v in self.model.weights.items()}
        return {k: v.transpose(np.argsort(_axes(k, v))) for k, v in found.items()}

    def loss(self) -> float:
        with torch.inference_mode():
            losses = [self.model.mean_loss(*own).item() for own in self._data]
        return float(np.mean(losses))


def _normalize(x: torch.Tensor) -> torch.Tensor:
    return x * x.square().sum(-1, keepdim=True).clamp_min(_EPSILON).rsqrt()


def _axes(name: str, value: np.ndarray) -> tuple[int, ...]:
    """Returns PyTorch's order of a weight's axes."""
    if value.ndim == 4:  # [h, w, in, out]; depthwise [h, w, channels, 1]
        return (2, 3, 0, 1) if "depthwise" in name else (3, 2, 0, 1)
    return (1, 0) if name.endswith("/kernel") else tuple(range(value.ndim))


def _linear(w: nn.ParameterDict, name: str, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, w[f"{name}/kernel"], w[f"{name}/bias"])


def _biased(w: nn.ParameterDict, name: str, x: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, w[f"{name}/kernel"], w[f"{name}/bias"])


def _cnn(w: nn.ParameterDict, images: torch.Tensor) -> torch.Tensor:
    x = functional.relu(_biased(w, "conv1", images / 255))
    x = functional.relu(_biased(w, "conv2", x))
    x = functional.max_pool2d(x, 2)
    # The dense layer sees (height, width, channels), which is the order in memory.
    return functional.relu(_linear(w, "dense", x.permute(0, 2, 3, 1).flatten(1)))


def _mobilenet(w: nn.ParameterDict, images: torch.Tensor) -> torch.Tensor:
    def convolve(name, x, kernel="kernel", stride=1, groups=1):
        kernel = w[f"{name}/{kernel}"]
        # TensorFlow's "same" padding, with the odd pixel at the end; for sides
        # divisible by the stride, as all of this network's are.
        side, padding = kernel.shape[-1], 0
        if stride == 1:
            padding = side // 2
        else:
            before = (side - stride) // 2
            x = functional.pad(x, (before, side - stride - before) * 2)
        x = functional.conv2d(x, kernel, stride=stride, padding=padding, groups=groups)
        gamma, beta = (w[f"{name}/BatchNorm/{part}"] for part in ("gamma", "beta"))
        return functional.group_norm(
            x, x.shape[1] // CHANNELS_PER_GROUP, gamma, beta, GROUP_NORM_EPSILON
        )

    x = functional.hardswish(convolve("Conv", images / 127.5 - 1, stride=2))
    for b in MOBILENET_V3_SMALL:
        activation = functional.hardswish if b.hard_swish else functional.relu
        inputs = x
        if b.expanded != b.inputs:
            x = activation(convolve(f"{b.name}/expand", x))
        name = f"{b.name}/depthwise"
        x = activation(convolve(name, x, "depthwise_kernel", b.stride, b.expanded))
        if b.squeezed:
            s = x.mean((2, 3), keepdim=True)
            s = functional.relu(_biased(w, f"{b.name}/squeeze_excite/Conv", s))
            s = _biased(w, f"{b.name}/squeeze_excite/Conv_1", s)
            x = x * functional.hardsigmoid(s)
        x = convolve(f"{b.name}/project", x)
        if b.stride == 1 and b.inputs == b.outputs:
            x = inputs + x
    x = functional.hardswish(convolve("Conv_1", x)).mean((2, 3), keepdim=True)
    x = functional.hardswish(_biased(w, "Conv_2", x))
    return _linear(w, "embedding", x.flatten(1))
