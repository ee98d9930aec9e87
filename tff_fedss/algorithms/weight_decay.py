"""Weight decay as PyTorch's SGD has it: a part of the gradient, and of the momentum.

That of Keras' optimizers is another: it shrinks the weights beside the step.
"""

from collections.abc import Sequence

import tensorflow as tf


def with_weight_decay(
    gradient: Sequence[tf.Tensor], variables: Sequence[tf.Variable], rate: float
) -> list[tf.Tensor]:
    """Adds to a gradient that of rate / 2 times the squared length of all weights.

    Args:
        gradient: Of the loss, by each variable.
        variables: The weights, all of which decay.
        rate: Times a weight, it is added to the weight's gradient.

    Returns:
        The gradient to descend.
    """
    return [g + rate * v for g, v in zip(gradient, variables, strict=True)]
