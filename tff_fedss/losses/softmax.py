"""Full and sampled softmax cross-entropy losses (FedSS, Eq. 2 and 4-8; RF-softmax).

All return a loss per example. All but `sampled_softmax_loss` take logits o of shape
[examples, L] over the L columns that a client holds, and targets as positions in [0,
L). A column that is left out of an example's softmax has weight exactly zero, in the
loss and its gradient.
"""

import tensorflow as tf

# Its exp() is zero in float32 relative to any logit that occurs. It is finite, unlike
# -inf, so that no gradient becomes inf * 0.
LEFT_OUT = -1e9


def softmax_loss(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Full softmax cross-entropy: -o_t + log sum_{j in [n]} exp(o_j) (FedSS, Eq. 2).

    Args:
        logits: float32[examples, L].
        targets: int32[examples], positions of the target classes.

    Returns:
        float32[examples].
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)


def fedss_loss(
    logits: tf.Tensor,
    targets: tf.Tensor,
    is_member: tf.Tensor,
    log_correction: tf.Tensor,
) -> tf.Tensor:
    """Federated sampled softmax: -o'_t + log sum_{j in S_k} exp(o'_j) (Eq. 5 and 6).

    Args:
        logits: float32[examples, L], uncorrected.
        targets: int32[examples], positions of the target classes.
        is_member: bool[L], the columns of S_k = P_k u N_k.
        log_correction: float32[L], with o' = o + log_correction (Eq. 3: -log(m q_j)).

    Returns:
        float32[examples].
    """
    return softmax_loss(tf.where(is_member, logits + log_correction, LEFT_OUT), targets)


def neg_only_loss(
    logits: tf.Tensor,
    targets: tf.Tensor,
    is_negative: tf.Tensor,
    log_correction: tf.Tensor,
) -> tf.Tensor:
    """Negatives only: log(1 + sum_{j in N_k} exp(o'_j - o'_t)) (FedSS, Eq. 7).

    This is the classic sampled softmax of Eq. 4 with one set of negatives for all
    examples: a client's other positives do not repel.

    Args:
        logits: float32[examples, L], uncorrected.
        targets: int32[examples], positions of the target classes.
        is_negative: bool[L], the columns of N_k.
        log_correction: float32[L], with o' = o + log_correction.

    Returns:
        float32[examples].
    """
    is_target = tf.one_hot(targets, tf.shape(logits)[1], True, False, dtype=tf.bool)
    in_softmax = is_target | is_negative
    return softmax_loss(
        tf.where(in_softmax, logits + log_correction, LEFT_OUT), targets
    )


def pos_only_loss(
    logits: tf.Tensor, targets: tf.Tensor, is_positive: tf.Tensor
) -> tf.Tensor:
    """Positives only: log(1 + sum_{j in P_k, j != t} exp(o_j - o_t)) (FedSS, Eq. 8).

    Args:
        logits: float32[examples, L].
        targets: int32[examples], positions of the target classes.
        is_positive: bool[L], the columns of P_k. They are always in a client's class
            set, so their logits need no correction.

    Returns:
        float32[examples].
    """
    return softmax_loss(tf.where(is_positive, logits, LEFT_OUT), targets)


def sampled_softmax_loss(
    target_logits: tf.Tensor,
    negative_logits: tf.Tensor,
    log_q: tf.Tensor,
    is_left_out: tf.Tensor | None = None,
) -> tf.Tensor:
    """Sampled softmax: -o_t + log Z' (Bengio and Senécal, 2008; RF-softmax).

    Z' = exp(o_t) + sum_i exp(o_{s_i} - log(m q_{s_i})), over m negatives s_i that are
    drawn with replacement for each example: E[Z'] = Z.

    Args:
        target_logits: float32[examples].
        negative_logits: float32[examples, m].
        log_q: float32[examples, m], of each draw, over the classes without the target.
        is_left_out: bool[examples, m], draws that are left out of the sum: other labels
            of the example. None: no draws.

    Returns:
        float32[examples].
    """
    num_samples = tf.cast(tf.shape(negative_logits)[1], log_q.dtype)
    corrected = negative_logits - log_q - tf.math.log(num_samples)
    if is_left_out is not None:
        corrected = tf.where(is_left_out, tf.cast(LEFT_OUT, log_q.dtype), corrected)
    logits = tf.concat([target_logits[:, tf.newaxis], corrected], 1)
    return tf.reduce_logsumexp(logits, 1) - target_logits
