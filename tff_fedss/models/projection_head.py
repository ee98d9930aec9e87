"""MLP head of contrastive learning, which is dropped after training."""

import tensorflow as tf

from tff_fedss.models.layers import FLOAT32


def with_projection_head(
    backbone: tf.keras.Model, embedding_dim: int = 128, seed: int = 0
) -> tf.keras.Model:
    """Puts MoCo v2's two-layer head behind a backbone.

    As wide as the features, ReLU, then the embedding (Chen et al., 2020, section 3).

    Args:
        backbone: From images to float32[examples, features].
        embedding_dim: Of what queries and keys are compared in; 128 in MoCo.
        seed: Of the initial weights of the head: same seed, same weights.

    Returns:
        A Keras model from images to float32[examples, embedding_dim], of any length. It
        shares the weights of the backbone.
    """

    def dense(units, number, name, activation=None):
        glorot = tf.keras.initializers.GlorotUniform(1000 * seed + number)
        options = {"kernel_initializer": glorot, "name": name, "dtype": FLOAT32}
        return tf.keras.layers.Dense(units, activation, **options)

    hidden = dense(backbone.output_shape[1], 1, "head_hidden", "relu")
    head = dense(embedding_dim, 2, "head_embedding")
    outputs = head(hidden(backbone.output))
    return tf.keras.Model(backbone.input, outputs, name=f"{backbone.name}_with_head")
