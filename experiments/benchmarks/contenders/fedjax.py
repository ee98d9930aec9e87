"""FedJAX, `fedjax.algorithms.fed_avg`: one client at a time, compiled."""

import functools

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from experiments.benchmarks import protocol
from experiments.benchmarks.workload import (
    BATCH_SIZE,
    CHANNELS_PER_GROUP,
    GROUP_NORM_EPSILON,
    LEARNING_RATE,
    LOGIT_SCALE,
    MOBILENET_V3_SMALL,
    Workload,
)

_EPSILON = 1e-12


class FedJax(protocol.Contender):
    """FedJAX's federated averaging."""

    settings = "backend jit"

    def __init__(self, workload: Workload):
        if workload.num_examples % BATCH_SIZE:
            raise ValueError(
                "FedJAX fills a short last batch with examples from the front: "
                f"{workload.num_examples} images do not make whole batches of "
                f"{BATCH_SIZE}."
            )
        fedjax.set_for_each_client_backend("jit")
        self._workload = workload
        self._data = workload.clients()
        self._clients = [
            (
                str(k),
                fedjax.ClientDataset({"x": c.images, "y": c.labels}),
                jax.random.PRNGKey(k),
            )
            for k, c in enumerate(self._data)
        ]

    def build(self) -> None:
        def loss(params, batch):
            return _mean_loss(self._workload, params, batch["x"], batch["y"])

        def gradient(params, batch, rng):
            del rng
            return jax.grad(loss)(params, batch)

        self._algorithm = fed_avg.federated_averaging(
            gradient,
            fedjax.optimizers.sgd(LEARNING_RATE),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(BATCH_SIZE, skip_shuffle=True),
        )
        weights = jax.tree_util.tree_map(
            jax.numpy.asarray, self._workload.initial_weights()
        )
        self._state = self._algorithm.init(weights)

    def one_round(self) -> None:
        self._state, diagnostics = self._algorithm.apply(self._state, self._clients)
        jax.block_until_ready((self._state.params, diagnostics))

    def weights(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(v) for name, v in self._state.params.items()}

    def loss(self) -> float:
        mean_loss = jax.jit(functools.partial(_mean_loss, self._workload))
        params = self._state.params
        return float(
            np.mean([mean_loss(params, c.images, c.labels) for c in self._data])
        )


# --- The workload's model, a function of weights by name and uint8 images -----------


def _logits(workload: Workload, weights: dict, images: jax.Array) -> jax.Array:
    """Returns float32[examples, n]."""
    phi = {"cnn": _cnn, "mobilenet_v3_small": _mobilenet}[workload.model]
    features = _normalize(phi(weights, images.astype(jnp.float32)))
    cosines = features @ _normalize(weights["classifier"]).T
    return LOGIT_SCALE * jnp.clip(cosines, -1, 1)


def _mean_loss(
    workload: Workload, weights: dict, images: jax.Array, labels: jax.Array
) -> jax.Array:
    """The softmax cross entropy over all classes, averaged over the batch."""
    log_probabilities = jax.nn.log_softmax(_logits(workload, weights, images))
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


if __name__ == "__main__":
    protocol.serve(FedJax)
