"""A small feature extractor of vectors."""

import tensorflow as tf

from tff_fedss.models.layers import FLOAT32


def mlp(
    example_shape: tuple[int],
    embedding_dim: int = 64,
    seed: int = 0,
    num_units: int = 256,
) -> tf.keras.Model:
    """Builds one hidden layer with ReLU, and a dense embedding.

    Args:
        example_shape: (v,).
        embedding_dim: d, the length of the embedding.
        seed: Of the initial weights: same seed, same weights.
        num_units: The width of the hidden layer.

    Returns:
        A Keras model from float32[examples, v] to float32[examples, d]. All of its
        weights are trainable.
    """
    glorot = tf.keras.initializers.GlorotUniform
    vectors = tf.keras.Input(example_shape, name="vectors")
    hidden = tf.keras.layers.Dense(
        num_units, "relu", kernel_initializer=glorot(2 * seed), name="hidden"
    )(vectors)
    embedding = tf.keras.layers.Dense(
        embedding_dim,
        kernel_initializer=glorot(2 * seed + 1),
        name="embedding",
        dtype=FLOAT32,
    )(hidden)
    return tf.keras.Model(vectors, embedding, name="mlp")
