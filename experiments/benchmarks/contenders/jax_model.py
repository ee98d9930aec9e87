"""The workload's model in JAX: a function of weights by name and uint8 images."""

import jax
import jax.numpy as jnp

from experiments.benchmarks.workload import (
    CHANNELS_PER_GROUP,
    GROUP_NORM_EPSILON,
    LOGIT_SCALE,
    MOBILENET_V3_SMALL,
    Workload,
)

_EPSILON = 1e-12


def logits(workload: Workload, weights: dict, images: jax.Array) -> jax.Array:
    """Returns float32[examples, n]."""
    phi = {"cnn": _cnn, "mobilenet_v3_small": _mobilenet}[workload.model]
    features = _normalize(phi(weights, images.astype(jnp.float32)))
    cosines = features @ _normalize(weights["classifier"]).T
    return LOGIT_SCALE * jnp.clip(cosines, -1, 1)


def mean_loss(
    workload: Workload, weights: dict, images: jax.Array, labels: jax.Array
) -> jax.Array:
    """The softmax cross entropy over all classes, averaged over the batch."""
    log_probabilities = jax.nn.log_softmax(logits(workload, weights, images))
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], 1))


def _normalize(x):
    return x * jax.lax.rsqrt(
        jnp.maximum(jnp.sum(jnp.square(x), -1, keepdims=True), _EPSILON)
    )


def _convolve(x, kernel, stride=1, padding="SAME", groups=1):
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def _cnn(w, images):
    x = images / 255
    for name in ("conv1", "conv2"):
        x = _convolve(x, w[f"{name}/kernel"], padding="VALID") + w[f"{name}/bias"]
        x = jax.nn.relu(x)
    # Windows of 2x2 that do not overlap: a maximum over two axes.
    n, h, width, c = x.shape
    x = x.reshape(n, h // 2, 2, width // 2, 2, c).max((2, 4)).reshape(n, -1)
    return jax.nn.relu(x @ w["dense/kernel"] + w["dense/bias"])


def _normalize_groups(w, name, x):
    n, height, width, c = x.shape
    groups = x.reshape(n, -1, c // CHANNELS_PER_GROUP, CHANNELS_PER_GROUP)
    centred = groups - groups.mean((1, 3), keepdims=True)
    variance = jnp.square(centred).mean((1, 3), keepdims=True)
    x = centred * jax.lax.rsqrt(variance + GROUP_NORM_EPSILON)
    x = x.reshape(n, height, width, c)
    return x * w[f"{name}/BatchNorm/gamma"] + w[f"{name}/BatchNorm/beta"]


def _mobilenet(w, images):
    def convolve(name, x, stride=1):
        return _normalize_groups(w, name, _convolve(x, w[f"{name}/kernel"], stride))

    def biased(name, x):
        return _convolve(x, w[f"{name}/kernel"]) + w[f"{name}/bias"]

    x = jax.nn.hard_swish(convolve("Conv", images / 127.5 - 1, 2))
    for b in MOBILENET_V3_SMALL:
        activation = jax.nn.hard_swish if b.hard_swish else jax.nn.relu
        inputs = x
        if b.expanded != b.inputs:
            x = activation(convolve(f"{b.name}/expand", x))
        name = f"{b.name}/depthwise"
        # [h, w, channels, 1] -> [h, w, 1, channels]
        kernel = w[f"{name}/depthwise_kernel"].swapaxes(2, 3)
        x = _convolve(x, kernel, b.stride, groups=b.expanded)
        x = activation(_normalize_groups(w, name, x))
        if b.squeezed:
            s = x.mean((1, 2), keepdims=True)
            s = jax.nn.relu(biased(f"{b.name}/squeeze_excite/Conv", s))
            s = biased(f"{b.name}/squeeze_excite/Conv_1", s)
            x = x * jax.nn.hard_sigmoid(s)
        x = convolve(f"{b.name}/project", x)
        if b.stride == 1 and b.inputs == b.outputs:
            x = inputs + x
    x = jax.nn.hard_swish(convolve("Conv_1", x)).mean((1, 2), keepdims=True)
    x = jax.nn.hard_swish(biased("Conv_2", x))
    return x[:, 0, 0] @ w["embedding/kernel"] + w["embedding/bias"]
