"""InfoNCE and its focal, clustered and filtered forms.

Kaminsky and Rotstein, "Focal Loss for Contrastive Learning" (2021). For a query q, its
key k+ and a queue of keys k_i, of which the set C is considered to be of q's class:

    form        p (the loss is -(1 - p)^gamma log p, Eq. 3 and 4)
    plain       e^(q.k+) / (e^(q.k+) + sum_i e^(q.k_i))                       Eq. 1
    clustered   (e^(q.k+) + sum_(i in C) e^(q.k_i)) / (... as plain ...)      Eq. 5
    filtered    e^(q.k+) / (e^(q.k+) + sum_(i not in C) e^(q.k_i))            Eq. 6

In each form p = a / (a + b), where b is the sum over repelling keys, so that with u =
log b - log a, -log p = softplus(u) and 1 - p = sigmoid(u). Neither is computed from a p
rounded to 1.

For any example and any gamma, plain >= filtered >= clustered: of a / (a + b), plain has
the larger b and clustered the larger a, and the focal loss falls as p grows. So with
the same clusters the losses of Eq. 6 cannot be "denser at low values" than those of
Eq. 5 (figures 4 and 5 of the paper).
"""

import math

import tensorflow as tf

from tff_fedss.losses.softmax import LEFT_OUT

INFO_NCE_FORMS = ("plain", "clustered", "filtered")


def info_nce_floor(queue_size: int, temperature: float) -> float:
    """Returns the minimum of the mean plain loss at gamma = 0: log(1 + K e^(-1 / T)).

    By Jensen's inequality, log(1 + sum_i e^(x_i)) >= log(1 + K e^x) for the mean x of
    the x_i = (q.k_i - q.k+) / T, and q.k+ is at most 1. If queries and the keys of the
    queue have the same mean mu, the mean over queries of the mean q.k_i is |mu|^2 >= 0;
    log(1 + K e^x) is convex in x, so that the mean over queries is at least as large.
    MoCo v2's K = 65,536 and T = 0.2 give 6.09, at which p is 0.002 and (1 - p)^gamma
    0.998^gamma: the focal loss hardly distinguishes examples.

    Args:
        queue_size: K, the number of keys in the queue.
        temperature: T.
    """
    return math.log1p(queue_size * math.exp(-1.0 / temperature))


def info_nce_loss(
    positive_logits: tf.Tensor,
    queue_logits: tf.Tensor,
    *,
    gamma: float = 0.0,
    form: str = "plain",
    is_same_cluster: tf.Tensor | None = None,
) -> tf.Tensor:
    """Computes -(1 - p)^gamma log p for each query; see the module for p.

    Args:
        positive_logits: float32[queries], q.k+ over the temperature.
        queue_logits: float32[queries, K], q.k_i over the temperature.
        gamma: Gamma of the focal loss, at least 0; 0 is cross-entropy (Eq. 1, 5 and 6).
        form: One of `INFO_NCE_FORMS`.
        is_same_cluster: bool[queries, K], the keys k_m of Eq. 5 and 6. None for the
            plain form.

    Returns:
        float32[queries]. For a query without a repelling key, the loss and its gradient
        are zero.

    Raises:
        ValueError: If the form is unknown, or gamma is negative.
    """
    if form not in INFO_NCE_FORMS or gamma < 0:
        raise ValueError(f"found form={form!r} and gamma={gamma}.")
    log_a, pushing = positive_logits, queue_logits
    if form != "plain":
        pushing = tf.where(is_same_cluster, LEFT_OUT, queue_logits)
    if form == "clustered":
        pulling = tf.where(is_same_cluster, queue_logits, LEFT_OUT)
        log_a = tf.reduce_logsumexp(
            tf.concat([positive_logits[:, tf.newaxis], pulling], 1), 1
        )
    u = tf.reduce_logsumexp(pushing, 1) - log_a
    cross_entropy = tf.math.softplus(u)
    if gamma == 0:
        return cross_entropy
    return tf.exp(gamma * tf.math.log_sigmoid(u)) * cross_entropy
