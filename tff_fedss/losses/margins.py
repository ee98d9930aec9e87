"""Margins of the softmax over cosines, by which a target must be nearer than others.

Each maps the cosine between an example's feature and its class's row of W to the logit
of the target; all other logits are scale * cos.

- none: scale * cos(theta) (NormFace, Wang et al., 2017).
- arcface: scale * cos(theta + margin) (Deng et al., CVPR 2019), as in its authors' code
  (InsightFace) until 2022: with the true gradient, and continued beyond pi.
- cosface: scale * (cos(theta) - margin) (Wang et al., CVPR 2018).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_fedss.losses.softmax import fedss_loss

# Lower bound under the root of sin(theta) = sqrt(1 - cos^2): keeps its gradient finite
# at cos = +-1, and avoids NaN for a cosine rounded above 1. sin is then wrong by at
# most 3e-4.
_EPSILON = 1e-7


class Margin(NamedTuple):
    """A margin and the scale of the logits.

    Attributes:
        kind: One of `MARGINS`.
        scale: s.
        size: The margin, in radians for arcface; of no effect for none.
    """

    kind: str = "none"
    scale: float = 64.0
    size: float = 0.0

    def target_logits(self, cosines: tf.Tensor) -> tf.Tensor:
        """Returns the logits of the targets.

        Args:
            cosines: float32[examples], cos(theta) of each with its own class.

        Returns:
            float32[examples], at most scale * cosines if the margin is positive.
        """
        return self.scale * MARGINS[self.kind](cosines, self.size)


def no_margin(cosines: tf.Tensor, size: float) -> tf.Tensor:
    """cos(theta)."""
    return cosines


def arcface(cosines: tf.Tensor, size: float) -> tf.Tensor:
    """cos(theta + size), continued beyond theta + size = pi so that it keeps falling.

    There, cos(theta + size) would rise again, and reward an example for moving away
    from its class. It is replaced by cos(theta) - size * sin(size), as in its authors'
    code until 2022.
    """
    sines = tf.sqrt(tf.maximum(1.0 - tf.square(cosines), _EPSILON))
    turned = cosines * math.cos(size) - sines * math.sin(size)
    beyond = cosines - size * math.sin(size)
    return tf.where(cosines > -math.cos(size), turned, beyond)


def cosface(cosines: tf.Tensor, size: float) -> tf.Tensor:
    """cos(theta) - size."""
    return cosines - size


MARGINS = {
    "none": no_margin,
    "arcface": arcface,
    "cosface": cosface,
}


def cosface_loss(size: float = 0.35, scale: float = 20.0) -> Callable[..., tf.Tensor]:
    """Sampled softmax with CosFace's margin, as `algorithms.ClientTraining.loss_fn`.

    The loss of an example of class t is that of `softmax.fedss_loss`, where the logit
    o_t = scale cos(theta_t) is scale (cos(theta_t) - size) (Wang et al., 2018, Eq. 4).

    Args:
        size: The margin m.
        scale: s: the `logit_scale` of the `ClientTraining`, whose logits come in.
    """
    return _margin_loss(Margin("cosface", scale, size))


def arcface_loss(size: float = 0.5, scale: float = 20.0) -> Callable[..., tf.Tensor]:
    """Sampled softmax with ArcFace's margin, as `algorithms.ClientTraining.loss_fn`.

    It is `cosface_loss` with scale cos(theta_t + size), size in radians (Deng et
    al., 2019, Eq. 3).
    """
    return _margin_loss(Margin("arcface", scale, size))


def _margin_loss(margin: Margin) -> Callable[..., tf.Tensor]:
    def loss_fn(logits: tf.Tensor, targets: tf.Tensor, class_set: Any) -> tf.Tensor:
        is_target = tf.one_hot(targets, tf.shape(logits)[1], True, False, dtype=tf.bool)
        cosines = tf.gather(logits, targets, batch_dims=1) / margin.scale
        target_logits = margin.target_logits(cosines)[:, tf.newaxis]
        return fedss_loss(
            tf.where(is_target, target_logits, logits),
            targets,
            class_set.is_member,
            class_set.log_correction,
        )

    return loss_fn
