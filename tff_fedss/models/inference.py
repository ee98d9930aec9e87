"""Forward passes over many images."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

_BATCH = 512


def inference(model: tf.keras.Model) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that applies a model to many images, as in a test.

    Args:
        model: From float32[examples, ...], with values in 0..255, to
            float32[examples, outputs].

    Returns:
        Maps uint8[N, height, width, channels] to float32[N, outputs]. It always has the
        weights that the model has then.
    """

    @tf.function(
        input_signature=[tf.TensorSpec([None, *model.input_shape[1:]], tf.uint8)]
    )
    def apply(images):
        return model(tf.cast(images, tf.float32), training=False)

    def infer(images: np.ndarray) -> np.ndarray:
        starts = range(0, len(images), _BATCH)
        return np.concatenate([apply(images[i : i + _BATCH]).numpy() for i in starts])

    return infer
