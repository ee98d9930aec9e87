"""FedAwS: positives on the clients, a spreadout regularizer on the server.

Yu et al., "Federated Learning with Only Positive Labels" (ICML 2020), a baseline of the
FedSS paper (section 4.1). The client optimization is that of PosOnly (Eq. 8), where
nothing keeps the classes of different clients apart. The server does so after its step
of every round:

    W <- W - lambda * grad reg_sp(W)

with reg_sp of `losses.spreadout`. Yu et al. write lambda * eta with the learning
rate eta; only the product counts, and here it is called lambda.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import errors, losses, models
from tff_fedss.algorithms import fedss, settings


def build_fedaws(
    feature_extractor_fn: Callable[[], tf.keras.Model],
    num_classes: int,
    class_sets: settings.ClassSets,
    client_training: settings.ClientTraining | None = None,
    server_update: settings.ServerUpdate | None = None,
    *,
    spreadout_weight: float,
    spreadout_margin: float,
    spreadout_neighbors: int | None = None,
    seed: int = 0,
    initial_norm: float = models.INITIAL_NORM,
) -> tff.learning.templates.LearningProcess:
    """Builds the learning process of FedAwS; see `build_fedss` for other arguments.

    Args:
        class_sets: Without negatives.
        server_update: Without `after_step`.
        spreadout_weight: lambda; at 0 this is PosOnly. The FedSS paper searches it and
            reports the best (A.2).
        spreadout_margin: nu, the distance of unit-norm rows, in (0, 2], below which two
            classes push each other.
        spreadout_neighbors: k: only the k nearest classes of each class push it, for n
            so large that all pairs cost too much; None: all classes.

    Returns:
        A process as `build_fedss` returns it, with the same state and metrics and
        "spreadout_loss", float32[]: reg_sp(W) before the push. As long as it is 0, no
        two classes are within the margin, and the process is PosOnly.
    """
    errors.check_range("spreadout_weight", spreadout_weight, 0)
    errors.check_range("spreadout_margin", spreadout_margin, 0, 2, above=True)
    if spreadout_neighbors is not None:
        errors.check_range(
            "spreadout_neighbors", spreadout_neighbors, 1, num_classes - 1, whole=True
        )
    server_update = server_update or settings.ServerUpdate()
    if server_update.after_step is not None:
        raise errors.InvalidInputError(
            "server_update.after_step must be None: FedAwS has its own."
        )

    def spread_out(w: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        loss, gradient = losses.spreadout_loss_and_gradient(
            w, spreadout_margin, spreadout_neighbors
        )
        return w - spreadout_weight * gradient, {"spreadout_loss": loss}

    return fedss.build_fedss(
        feature_extractor_fn,
        num_classes,
        class_sets,
        client_training,
        dataclasses.replace(server_update, after_step=spread_out),
        method="pos_only",
        seed=seed,
        initial_norm=initial_norm,
    )
