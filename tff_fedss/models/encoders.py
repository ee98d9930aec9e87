"""Encoders of sampled softmax training, from text, sparse features or images to h.

Each is an `algorithms.rf_softmax.Encoder`.
"""

import numpy as np
import tensorflow as tf

from tff_fedss.models.layers import FLOAT32


class LstmEncoder:
    """A word embedding, an LSTM and a projection: h after each token of a text.

    Inputs are `{"tokens": int32[batch, T], "keep": float32[]}`: if keep is 0, the state
    is reset to 0. The examples of a batch are its tokens, row by row.
    """

    shapes_vary = False

    def __init__(
        self,
        vocabulary_size: int,
        embedding_dim: int,
        *,
        batch_size: int,
        num_units: int,
        seed: int,
    ):
        """Draws the weights.

        Args:
            embedding_dim: d, of h.
        """
        glorot = tf.keras.initializers.GlorotUniform  # No two seeds share a matrix.
        self._words = tf.Variable(
            tf.random.stateless_uniform(
                [vocabulary_size, num_units], [seed, 1], -0.1, 0.1, alg="philox"
            ),
            name="words",
        )
        self._cell = tf.keras.layers.LSTMCell(
            num_units,
            kernel_initializer=glorot(3 * seed),
            dtype=FLOAT32,
            # Keras' default, Orthogonal, differs between calls despite its seed.
            recurrent_initializer=glorot(3 * seed + 1),
            name="cell",
        )
        self._projection = tf.keras.layers.Dense(
            embedding_dim,
            kernel_initializer=glorot(3 * seed + 2),
            name="projection",
            dtype=FLOAT32,
        )
        self._cell.build([None, num_units])
        self._projection.build([None, num_units])
        self.trainable_variables = [
            self._words,
            *self._cell.trainable_variables,
            *self._projection.trainable_variables,
        ]
        zeros = np.zeros([batch_size, num_units], np.float32)
        self.initial_carry = (zeros, zeros)

    def __call__(self, inputs, carry, training):
        """Returns h and the next carry."""
        tokens = inputs["tokens"]
        embedded = tf.unstack(tf.gather(self._words, tokens), axis=1)
        state = [inputs["keep"] * tf.convert_to_tensor(part) for part in carry]
        outputs = []
        for x in embedded:
            output, state = self._cell(x, state)
            outputs.append(output)
        features = self._projection(tf.stack(outputs, 1))
        return tf.reshape(features, [-1, features.shape[-1]]), tuple(state)


class SparseEncoder:
    """h = sum_f x_f v_f over the features f of a row: v -> d without a bias.

    Inputs are `{"ids": int32[k], "values": float32[k], "rows": int32[k], "num_rows":
    int32[]}`: the features of all rows, row by row.

    Args:
        num_features: v.
        embedding_dim: d.
    """

    initial_carry = ()
    shapes_vary = True

    def __init__(self, num_features: int, embedding_dim: int, seed: int):
        self._weights = tf.Variable(
            tf.random.stateless_normal(
                [num_features, embedding_dim],
                [seed, 1],
                stddev=embedding_dim**-0.5,
                alg="philox",
            ),
            name="features",
        )
        self.trainable_variables = [self._weights]

    def __call__(self, inputs, carry, training):
        """Returns h and the next carry."""
        terms = inputs["values"][:, tf.newaxis] * tf.gather(
            self._weights, inputs["ids"]
        )
        return (
            tf.math.unsorted_segment_sum(terms, inputs["rows"], inputs["num_rows"]),
            carry,
        )


class ImageEncoder:
    """A feature extractor phi, `model`; inputs are images [examples, h, w, c]."""

    initial_carry = ()
    shapes_vary = False

    def __init__(self, model: tf.keras.Model):
        self._model = model
        self.trainable_variables = list(model.trainable_variables)

    def __call__(self, inputs, carry, training):
        """Returns h and the next carry."""
        return self._model(tf.cast(inputs, tf.float32), training=training), carry
