"""The classifier W, kept outside of the Keras model as one matrix [n, d].

A row of W is a class (the paper writes classes as columns). Logits are cosines times a
fixed scale (FedSS, A.2: scale 20, after NormFace), so that only directions matter.
"""

import math

import tensorflow as tf

# Added to squared norms: a zero vector then has cosine 0 with everything and a finite
# gradient.
UNIT_EPSILON = 1e-12
# Of a row of W, for every n and d.
INITIAL_NORM = 0.3


def unit(vectors: tf.Tensor) -> tf.Tensor:
    """Brings vectors, float32[..., d], to length 1."""
    return tf.math.l2_normalize(vectors, axis=-1, epsilon=UNIT_EPSILON)


def cosine_logits(
    features: tf.Tensor, classifier: tf.Tensor, scale: float = 20.0
) -> tf.Tensor:
    """Scaled cosine similarity: o_ij = scale * cos(f_i, w_j), in [-scale, scale].

    Args:
        features: float32[examples, d], the outputs of the feature extractor.
        classifier: float32[classes, d], rows of W.
        scale: The fixed scale.

    Returns:
        float32[examples, classes].
    """
    cosines = tf.matmul(unit(features), unit(classifier), transpose_b=True)
    # Rounding takes a cosine of 1 a little beyond it.
    return scale * tf.clip_by_value(cosines, -1.0, 1.0)


def adacos_scale(num_classes: int) -> float:
    """Returns the fixed scale of AdaCos for n classes, sqrt(2) log(n - 1).

    With it, softmax gives a class at an angle of 45 degrees a probability of 1/2 if all
    others are at 90 (Zhang et al., AdaCos, CVPR 2019, section 3.2). FedSS's 20 is for
    thousands of classes and a pretrained phi. Below 10 classes the scale is 3.
    """
    return max(3.0, math.sqrt(2) * math.log(max(num_classes - 1, 1)))


def initial_classifier(
    num_classes: int,
    embedding_dim: int,
    seed: tf.Tensor,
    norm: float = INITIAL_NORM,
) -> tf.Tensor:
    """Draws a random W whose rows have a norm of about 0.3.

    Cosine logits ignore the length of a row but not the speed at which it turns: a step
    turns a row by about learning rate / norm^2. So the rows start short, and at the
    same length for every n and d, where Glorot's rule would shorten them as n grows.
    (On the demo's glyphs with phi from the warm start, FullSoftmax is at 46 % after 20
    rounds from a norm of 0.3, at 41 % from 0.1 and at 7 % from 1.)

    Args:
        num_classes: n.
        embedding_dim: d.
        seed: int32[2], the key of the stateless generator.
        norm: The root of a row's mean squared norm; FedSS does not state it.

    Returns:
        float32[n, d].
    """
    return tf.random.stateless_normal(
        [num_classes, embedding_dim],
        seed,
        stddev=norm * embedding_dim**-0.5,
        alg="philox",
    )
