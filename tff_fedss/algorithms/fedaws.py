"""FedAwS: positives on the clients, a spreadout regularizer on the server.

Yu et al., "Federated Learning with Only Positive Labels" (ICML 2020), a baseline of the
FedSS paper (section 4.1). The client optimization is that of PosOnly (Eq. 8), where
nothing keeps the classes of different clients apart. The server does, after its own
step of every round:

    W <- W - lambda * grad reg_sp(W)

with reg_sp of `losses.spreadout_loss`. Yu et al. write lambda * eta with the learning
rate eta; only the product counts, and here it is called lambda.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import losses
from tff_fedss.algorithms import fedss


def build_fedaws(
    feature_extractor_fn: Callable[[], tf.keras.Model],
    num_classes: int,
    max_positives: int,
    *,
    spreadout_weight: float,
    spreadout_margin: float,
    spreadout_neighbors: int | None = None,
    **kwargs: Any,
) -> tff.learning.templates.LearningProcess:
    """Builds the learning process of FedAwS.

    Args:
        feature_extractor_fn: See `build_fedss`.
        num_classes: n.
        max_positives: The largest |P_k| of any client.
        spreadout_weight: lambda; at 0 this is PosOnly. The FedSS paper searches it and
            reports the best (A.2).
        spreadout_margin: nu, the distance of unit-norm rows, in (0, 2], below which two
            classes push each other.
        spreadout_neighbors: Only the k nearest classes of each class push it, for n so
            large that all pairs cost too much; None: all of them.
        **kwargs: As `build_fedss` takes them, without `method` and what negatives need.

    Returns:
        A process as `build_fedss` returns it, with the same state and metrics and
        "spreadout_loss", float32[]: reg_sp(W) before the push. As long as it is 0, no
        two classes are within the margin, and the process is PosOnly.

    Raises:
        ValueError: If an argument is out of range.
    """
    if spreadout_weight < 0:
        raise ValueError(
            f"spreadout_weight must not be negative, found {spreadout_weight}."
        )

    def spread_out(w: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        loss, gradient = losses.spreadout_loss_and_gradient(
            w, spreadout_margin, spreadout_neighbors
        )
        return w - spreadout_weight * gradient, {"spreadout_loss": loss}

    return fedss.build_fedss(
        feature_extractor_fn,
        num_classes,
        max_positives,
        method="pos_only",
        after_server_step=spread_out,
        **kwargs,
    )
