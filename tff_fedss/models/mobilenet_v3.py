"""MobileNetV3 with GroupNorm, the feature extractor of the paper (FedSS, A.2).

Which MobileNetV3? The paper prints four shares (4.3): the classification layer is 16 %
of all parameters for SOP (n = 11,318) and 3.4 % for Landmarks (n = 2,028) at d = 64,
and at d = 1280 a client saves 79 % (|S_k| = 100) and 38 % (|S_k| = 170) of the
parameters. All four hold if phi has 3.666 to 3.745 million parameters (at d = 1280:
3.582 to 3.746). The default architecture has other numbers, with any embedding:

| MobileNetV3                         | phi, d=64 | SOP    | Landm. | SOP    | Landm. |
|-------------------------------------|-----------|--------|--------|--------|--------|
| the paper prints                    |           | 16     | 3.4    | 79     | 38     |
| Large, Dense after Conv_2           | 4,284,016 | 14.46  | 2.94   | 76.83  | 34.99  |
| Large, 64 filters in Conv_2         | 3,033,456 | 19.28  | 4.10   | 76.83  | 34.99  |
| Large, as first put on arXiv, Dense | 3,948,136 | 15.50  | 3.18   | 78.24  | 36.80  |
| Large alpha=0.9, Dense after Conv_2 | 3,677,016 | 16.46  | 3.41   | 79.41  | 38.42  |

(GroupNorm's weights are counted; at d = 1280 nothing follows Conv_2.) Of Large and
Small, with width multipliers alpha between 0.5 and 2, minimalistic or not, and all ways
to attach and count the embedding that we tried, only the last row gives all four
shares: it is `paper_feature_extractor`. This is a conjecture: the paper says "the
default MobileNetV3", which is alpha=1, and Keras publishes ImageNet weights for alpha
0.75 and 1 only. Runs that start from those use `mobilenet_v3(image_shape,
embedding_dim)`, with the first row's shares.
"""

import copy
import functools
import zlib
from concurrent import futures
from typing import Any

import tensorflow as tf

from tff_fedss import errors
from tff_fedss.models import mobilenet_layers
from tff_fedss.models.layers import FLOAT32, GroupNormalization, LayerNames

_ARCHITECTURES = {
    "large": tf.keras.applications.MobileNetV3Large,
    "small": tf.keras.applications.MobileNetV3Small,
}
_CHANNELS_PER_GROUP = 8
# Keras's 0.999 is for very long training: after 1,000 steps it still has a third of the
# initial means and variances.
_BATCH_NORM_MOMENTUM = 0.99


def mobilenet_v3(
    image_shape: tuple[int, int, int],
    embedding_dim: int = 64,
    *,
    size: str = "large",
    alpha: float = 1.0,
    normalization: str = "group",
    seed: int = 0,
) -> tf.keras.Model:
    """Builds Keras's MobileNetV3 with GroupNorm and an embedding (FedSS, A.2).

    The network is Keras's up to its last hidden layer (`Conv_2` and hard swish, 1280
    features in Large, 1024 in Small; no dropout), then a linear layer `embedding` of d
    outputs. If d is the number of those features, they are the embedding and no layer
    follows: d = 1280 is "the default dimensionality of MobileNetV3" (A.1).

    Every BatchNorm becomes a GroupNorm with groups of 8 channels. The usual 32 groups
    do not divide widths such as 24, 40, 72 and 88, but Keras rounds all widths to
    multiples of 8, for every alpha. So one rule applies to all layers, and no group is
    a single channel, which would make the layer an InstanceNorm (and its output
    constant on maps of 1x1, where 32x32 images end).

    Layers have Keras's names (a GroupNorm that of the BatchNorm it replaces), so that
    `load_pretrained` finds the weights of each in an ImageNet file.

    Args:
        image_shape: (height, width, channels), at least 32x32: the network halves an
            image five times. ImageNet weights of the first layer fit 3 channels only.
        embedding_dim: d, the length of the embedding.
        size: "large" or "small".
        alpha: The width multiplier: scales the channels of the blocks.
        normalization: "group"; or "batch" for Keras's own BatchNorms, for pretraining
            only, not for clients: see `load_pretrained`.
        seed: Seed of the initial weights, which follow Keras's initializers: same seed,
            same weights, eagerly and inside a `tf.Graph`.

    Returns:
        A Keras model from images [examples, height, width, channels] with values in
        0..255 (any dtype that casts to float32) to float32[examples, d]. With
        GroupNorms all of its weights are trainable.

    Raises:
        ValueError: If an argument is out of range.
    """
    errors.check_choice("size", size, _ARCHITECTURES)
    errors.check_choice("normalization", normalization, NORMALIZATIONS)
    config = copy.deepcopy(
        _architecture(
            tuple(image_shape),
            size,
            alpha,
            normalization,
            tf.keras.mixed_precision.global_policy().name,
        )
    )
    for layer in config["layers"]:
        # Keras would build such a layer before its call, and its weights would lack the
        # layer's name.
        layer.pop("build_config", None)
        for key, value in layer["config"].items():
            if key.endswith("_initializer") and "seed" in value["config"]:
                value["config"]["seed"] = _seed(seed, layer["name"], key)
    model = tf.keras.Model.from_config(config)
    if model.output_shape[-1] == embedding_dim:
        return model
    embedding = tf.keras.layers.Dense(
        embedding_dim,
        kernel_initializer=tf.keras.initializers.GlorotUniform(
            _seed(seed, "embedding", "kernel_initializer")
        ),
        name="embedding",
        dtype=FLOAT32,
    )
    return tf.keras.Model(model.input, embedding(model.output), name=model.name)


def _seed(seed: int, layer_name: str, key: str) -> int:
    """Returns a seed from the layer's name: d does not change other layers' draws."""
    return zlib.crc32(f"{seed}/{layer_name}/{key}".encode())


def paper_feature_extractor(
    image_shape: tuple[int, int, int] = (224, 224, 3),
    embedding_dim: int = 64,
    **options: Any,
) -> tf.keras.Model:
    """Builds the MobileNetV3 with the paper's four shares of parameters (4.3).

    See the module's docstring for the candidates and for reasons to use `mobilenet_v3`
    with its defaults instead, above all ImageNet weights. Arguments and result are
    those of `mobilenet_v3`; the paper crops to 224x224.
    """
    return mobilenet_v3(image_shape, embedding_dim, size="large", alpha=0.9, **options)


def last_layer_share(
    num_feature_parameters: int, num_classes: int, embedding_dim: int
) -> float:
    """Returns W's share of all parameters: n d / (|phi| + n d) (A.1, Figure 8)."""
    return communication_saving(num_feature_parameters, num_classes, embedding_dim, 0)


def communication_saving(
    num_feature_parameters: int,
    num_classes: int,
    embedding_dim: int,
    class_set_size: int,
) -> float:
    """Returns the share of all parameters that a client does not transfer (4.3).

    A client gets and returns phi and the |S_k| rows of its class set, not the others:
    (n - |S_k|) d / (|phi| + n d). (The ids of the rows are not counted.)

    Args:
        num_feature_parameters: |phi|.
        num_classes: n.
        embedding_dim: d.
        class_set_size: |S_k|, in 0..n.

    Returns:
        A fraction, in 0..1.
    """
    total = num_feature_parameters + num_classes * embedding_dim
    return (num_classes - class_set_size) * embedding_dim / total


# Cached, since Keras takes several times as long to make this configuration as to build
# a model from it, and a learning process builds two. Models are not cached, since
# Keras cannot mix those built inside and outside of graphs.
@functools.lru_cache(maxsize=8)
def _architecture(
    image_shape: tuple[int, int, int],
    size: str,
    alpha: float,
    normalization: str,
    policy: str,
) -> dict[str, Any]:
    """Returns the configuration of the network up to its features, without seeds.

    A model is built for it, without the embedding, which may have any size. Its layers
    have Keras's current policy, which `policy` must name (for the cache).
    """

    def describe():
        classifier = _ARCHITECTURES[size](
            image_shape,
            alpha=alpha,
            weights=None,
            classes=1,
            dropout_rate=0,
            classifier_activation=None,
        )
        features = tf.keras.layers.Flatten(name="features", dtype=FLOAT32)(
            classifier.get_layer("Logits").input
        )
        network = tf.keras.Model(
            classifier.input, features, name=f"mobilenet_v3_{size}"
        )
        config = network.get_config()
        _set_normalization(config, network, normalization)
        return _with_own_layers(_with_fixed_names(config))

    # A new thread has no graph: the weights of this temporary model are not in the
    # caller's graph, and building it is several times as fast as in a graph.
    with futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(describe).result()


def _with_fixed_names(config: dict[str, Any]) -> dict[str, Any]:
    """Names the operators, which Keras counts through all models of a process."""
    names, count = {}, LayerNames()
    for layer in config["layers"]:
        if layer["class_name"] == "TFOpLambda":
            names[layer["name"]] = count(f"tf.{layer['config']['function']}")

    def renamed(value):
        if isinstance(value, dict):
            return {key: renamed(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(renamed, value))
        return names.get(value, value) if isinstance(value, str) else value

    return renamed(config)


def _with_own_layers(config: dict[str, Any]) -> dict[str, Any]:
    """Replaces layers of Keras by this project's faster ones.

    Layers with weights keep their names. Keras pads an image before a convolution with
    stride 2 exactly like TensorFlow's "SAME", so the padding is removed.
    """
    layers = {layer["name"]: layer for layer in config["layers"]}

    def sources(name):
        nodes = layers[name]["inbound_nodes"]
        # An operator has one call, without a list of tensors.
        tensors = nodes[0] if isinstance(nodes[0][0], list) else nodes
        return [tensor[0] for tensor in tensors]

    def set_class(name, layer):
        layers[name].update(
            module=layer.__module__,
            class_name=layer.__name__,
            registered_name=f"tff_fedss>{layer.__name__}",
        )

    def replace(name, layer, source):
        set_class(name, layer)
        old = layers[name]["config"]
        layers[name].update(
            config={key: old[key] for key in ("name", "trainable", "dtype")},
            inbound_nodes=[[[source, 0, 0, {}]]],
        )

    for name, layer in list(layers.items()):
        if layer["class_name"] == "Multiply":  # x and ReLU6(y + 3) / 6.
            x, factor = sources(name)
            (clipped,) = sources(factor)
            (raised,) = sources(clipped)
            if sources(raised) == [x]:
                replace(name, mobilenet_layers.HardSwish, x)
                for part in (factor, clipped, raised):
                    del layers[part]
            else:  # Squeeze-and-excite: y comes from the means of x.
                pool = name.replace("/Mul", "/AvgPool")
                replace(pool, mobilenet_layers.Squeeze, x)
                layer["inbound_nodes"][0][0] = [pool, 0, 0, {}]
                reader = layers[pool.replace("/AvgPool", "/Conv")]
                reader["inbound_nodes"] = [[[pool, 0, 1, {}]]]
        elif layer["class_name"] == "DepthwiseConv2D":
            (x,) = sources(name)
            if layers[x]["class_name"] == "ZeroPadding2D":
                layer["config"]["padding"] = "same"
                layer["inbound_nodes"] = layers.pop(x)["inbound_nodes"]
            set_class(name, mobilenet_layers.DepthwiseConv2D)
        elif layer["config"].get("kernel_size") == (1, 1):
            set_class(name, mobilenet_layers.PointwiseConv2D)
    return {**config, "layers": list(layers.values())}


def _set_normalization(
    config: dict[str, Any], network: tf.keras.Model, normalization: str
) -> None:
    """Replaces the BatchNorms in the configuration of Keras's network."""
    for layer in config["layers"]:
        if layer["class_name"] == "BatchNormalization":
            batch_norm = network.get_layer(layer["name"])
            new = NORMALIZATIONS[normalization](batch_norm)
            layer.update(tf.keras.layers.serialize(new))


def _batch_norm(layer: tf.keras.layers.BatchNormalization) -> tf.keras.layers.Layer:
    """Copies a BatchNorm without its weights; it computes in float32."""
    config = {"dtype": FLOAT32, "momentum": _BATCH_NORM_MOMENTUM}
    return type(layer).from_config(layer.get_config() | config)


def _group_norm(layer: tf.keras.layers.BatchNormalization) -> tf.keras.layers.Layer:
    """Makes the GroupNorm for a BatchNorm."""
    return GroupNormalization(
        layer.gamma.shape[0] // _CHANNELS_PER_GROUP,
        epsilon=layer.epsilon,
        name=layer.name,
        dtype=FLOAT32,
    )


# By the user's names.
NORMALIZATIONS = {"group": _group_norm, "batch": _batch_norm}
