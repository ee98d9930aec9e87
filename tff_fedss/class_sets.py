"""Class sets: the classes in a client's softmax, and their weights.

A client k whose labels are the positives P_k draws m negatives N_k uniformly without
replacement from the other classes and asks the server for S_k = P_k u N_k (FedSS,
Algorithm 1, lines 5-6). For this it needs only its own labels and seed.
"""

import abc
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_fedss import errors, samplers

LOGIT_CORRECTIONS = ("inclusion", "none")


class ClassSet(NamedTuple):
    """The classes S_k of one client, padded to a static length L.

    `keys` are sorted: with the positives first, a single request would name P_k. This
    hides P_k in that one request only: two or three requests of a client, one update,
    or the sums of some rounds reveal P_k, contrary to section 3.3 (docs/privacy.md).

    Attributes:
        keys: int32[L], the classes asked for, ascending. Padding repeats the last class
            to keep the length static and is not used.
        is_asked: bool[L], false for that padding.
        is_member: bool[L], true for the classes of the softmax, S_k: all that are asked
            for, except decoys.
        is_positive: bool[L], true for the members in P_k, the client's own.
        log_correction: float32[L], added to each class's logit.
    """

    keys: tf.Tensor
    is_asked: tf.Tensor
    is_member: tf.Tensor
    is_positive: tf.Tensor
    log_correction: tf.Tensor


class ClassSetBuilder(abc.ABC):
    """A rule by which a client builds its class set.

    Attributes:
        num_classes: The number n of classes of the problem.
        size: The static length L of a padded class set.
        is_everything: Whether S_k = [n] for every client, so that all of W is sent.
        is_permanent: Whether `build` also needs the client's permanent seed.
        may_miss_positives: Whether S_k may lack classes of P_k, whose examples then do
            not train.
    """

    is_permanent = False
    may_miss_positives = False

    def __init__(self, num_classes: int, size: int, is_everything: bool):
        # NumPy's integers, such as a largest label, would be tensors of another type.
        self.num_classes = int(num_classes)
        self.size = int(size)
        self.is_everything = is_everything

    @abc.abstractmethod
    def build(
        self,
        labels: tf.Tensor,
        seed: tf.Tensor,
        permanent_seed: tf.Tensor | None = None,
    ) -> ClassSet:
        """Builds the class set of one client.

        Args:
            labels: int32[examples], the client's labels, each in [0, n).
            seed: int32[2], of this client in this round.
            permanent_seed: int32[2], of this client, the same in all rounds; given if
                `is_permanent`.
        """


class SampledClasses(ClassSetBuilder):
    """S_k = P_k u N_k with m uniform negatives: FedSS, NegOnly and, at m = 0, PosOnly.

    Every class of [n] without P_k is a negative with probability m / (n - |P_k|). With
    `logit_correction="inclusion"` a negative's logit is raised by log((n - |P_k|) / m),
    which makes the sampled partition sum an unbiased estimate of the full one (Eq. 3
    with q_j = 1 / (n - |P_k|)); positives are always in S_k and are not corrected. With
    "none" no logit is corrected, the other reading of Eq. 3, where one constant shifts
    all classes alike.

    A client with fewer than m other classes takes all of them, m_k = min(m, n - |P_k|):
    its S_k is [n].

    Args:
        num_classes: n.
        num_negatives: m, of each client and round, at most n.
        max_positives: The largest |P_k| of any client: it fixes the padded length.
        logit_correction: "inclusion" or "none".
    """

    def __init__(
        self,
        num_classes: int,
        num_negatives: int,
        max_positives: int,
        logit_correction: str = "inclusion",
    ):
        errors.check_range("num_classes", num_classes, 1, whole=True)
        for name, value, low in (
            ("max_positives", max_positives, 1),
            ("num_negatives", num_negatives, 0),
        ):
            errors.check_range(name, value, low, num_classes, whole=True)
        num_negatives, max_positives = int(num_negatives), int(max_positives)
        errors.check_choice("logit_correction", logit_correction, LOGIT_CORRECTIONS)
        size = min(num_classes, max_positives + num_negatives)
        super().__init__(num_classes, size, False)
        self._num_negatives = num_negatives
        self._max_positives = max_positives
        self._correct = logit_correction == "inclusion" and num_negatives > 0

    def build(self, labels, seed, permanent_seed=None) -> ClassSet:
        """Draws a set; raises InvalidArgumentError if P_k does not fit."""
        positives, others = split(labels, self.num_classes, self._max_positives)
        return self.draw(positives, others, seed, permanent_seed)

    def draw(
        self,
        positives: tf.Tensor,
        others: tf.Tensor,
        seed: tf.Tensor,
        permanent_seed: tf.Tensor | None = None,
    ) -> ClassSet:
        """Draws negatives, given P_k, ascending, and n - |P_k|; seeds as in `build`."""
        negatives = draw_others(
            positives,
            others,
            self._num_negatives,
            seed,
            always_fit=self._num_negatives <= self.num_classes - self._max_positives,
        )
        correction = None
        if self._correct:
            correction = inclusion_correction(others, tf.size(negatives))
        return assemble(self.size, positives, negatives, correction)


class PopularClasses(SampledClasses):
    """S_k = P_k u N_k with negatives drawn by popularity.

    m classes are drawn with replacement from q over [n] without P_k; N_k is the set of
    them. The logit of a class drawn c times is raised by log(c / (m q)): the sampled
    partition sum is an unbiased estimate of the full one (Eq. 3).

    Args:
        num_classes: n.
        num_negatives: m, of each client and round; |N_k| <= m.
        max_positives: The largest |P_k| of any client.
        popularity: float[n], above 0: q is proportional to it. None: log-uniform
            (Zipf), for classes numbered from the most popular one on: log((c + 2) / (c
            + 1)), as in `tf.random.log_uniform_candidate_sampler`.
    """

    def __init__(
        self,
        num_classes: int,
        num_negatives: int,
        max_positives: int,
        popularity: np.ndarray | None = None,
    ):
        super().__init__(num_classes, num_negatives, max_positives)
        if popularity is None:
            popularity = np.log1p(1.0 / np.arange(1, num_classes + 1))
        self._popularity = np.asarray(popularity, np.float64)
        is_weight = np.isfinite(self._popularity) & (self._popularity > 0)
        if self._popularity.shape != (num_classes,) or not is_weight.all():
            raise ValueError(
                f"popularity must be {num_classes} finite numbers above 0, one for "
                "each class."
            )

    def draw(self, positives, others, seed, permanent_seed=None) -> ClassSet:
        """Draws the negatives, see the base class."""
        none = tf.zeros_like(positives, tf.float64)
        weights = tf.tensor_scatter_nd_update(
            tf.constant(self._popularity), positives[:, tf.newaxis], none
        )
        ends = tf.cumsum(weights)
        # A client with all classes has none.
        num_drawn = self._num_negatives * tf.minimum(others, 1)
        points = ends[-1] * tf.random.stateless_uniform(
            [num_drawn], seed, dtype=tf.float64, alg="philox"
        )
        drawn = tf.searchsorted(ends, points, side="right")
        negatives, _, counts = tf.unique_with_counts(drawn)
        expected = self._num_negatives * tf.gather(weights, negatives) / ends[-1]
        correction = tf.math.log(tf.cast(counts, tf.float64) / expected)
        return assemble(
            self.size, positives, negatives, tf.cast(correction, tf.float32)
        )


def split(
    labels: tf.Tensor, num_classes: int, max_positives: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns P_k, int32[|P_k|], ascending, and n - |P_k|, int32[].

    Takes labels int32[examples]. When it runs, tf.errors.InvalidArgumentError if |P_k|
    exceeds `max_positives`, or a label is not in 0..n-1.
    """
    positives = tf.sort(tf.unique(labels).y)
    num_positives = tf.size(positives)
    is_class = (positives >= 0) & (positives < num_classes)
    with tf.control_dependencies(
        [
            tf.debugging.Assert(
                num_positives <= max_positives,
                [f"more classes than max_positives={max_positives}:", num_positives],
            ),
            tf.debugging.Assert(
                tf.reduce_all(is_class),
                [
                    f"labels outside of 0..{num_classes - 1}:",
                    tf.boolean_mask(positives, ~is_class),
                ],
            ),
        ]
    ):
        # Both depend on the checks: without negatives only P_k is read.
        return tf.identity(positives), num_classes - num_positives


def draw_others(
    positives: tf.Tensor,
    others: tf.Tensor,
    num_negatives: int | tf.Tensor,
    seed: tf.Tensor,
    always_fit: bool = True,
) -> tf.Tensor:
    """Draws int32[min(m, n - |P_k|)] of the classes that are not in P_k, distinct.

    P_k is int32[|P_k|], ascending; `others` is n - |P_k|. If m may be larger than that,
    `always_fit` must be false.
    """

    def draw():
        return samplers.sample_without_replacement(num_negatives, others, seed)

    if always_fit:
        ranks = draw()
    else:
        ranks = tf.cond(others <= num_negatives, lambda: tf.range(others), draw)
    return _skip(ranks, positives)


def inclusion_correction(others: tf.Tensor, num_drawn: int | tf.Tensor) -> tf.Tensor:
    """Returns the log correction of a negative, float32[]; others is n - |P_k|."""
    # Without other classes there is no negative to correct.
    weight = tf.cast(tf.maximum(others, 1), tf.float32) / tf.cast(
        tf.maximum(num_drawn, 1), tf.float32
    )
    return tf.math.log(weight)


def assemble(
    size: int,
    positives: tf.Tensor,
    others: tf.Tensor,
    log_correction: tf.Tensor | None,
    pretended: tf.Tensor | None = None,
) -> ClassSet:
    """Assembles a class set.

    When it runs, tf.errors.InvalidArgumentError if there are more classes than L.

    Args:
        size: L.
        positives: int32[p], the classes of P_k that are asked for, ascending.
        others: int32[m], the negatives.
        log_correction: Correction of the negatives: float32[], or float32[m] in their
            order; -log of the expected number of times that a negative is in the set
            keeps the partition sum unbiased. None: no correction.
        pretended: int32[q], ascending: decoys, asked for, but in no softmax.
    """
    parts = [positives, others] + ([] if pretended is None else [pretended])
    together = tf.concat(parts, 0)
    too_many = [f"more classes than size={size}:", tf.size(together)]
    fits = tf.debugging.Assert(tf.size(together) <= size, too_many)
    with tf.control_dependencies([fits]):
        together = tf.identity(together)
    order = tf.argsort(together)
    asked = tf.gather(together, order)
    num_asked = tf.size(asked)
    keys = tf.gather(
        # A client without data has no own class to repeat.
        tf.cond(num_asked > 0, lambda: asked, lambda: tf.zeros([1], tf.int32)),
        tf.minimum(tf.range(size), tf.maximum(num_asked - 1, 0)),
    )
    is_asked = tf.range(size) < num_asked
    is_member = is_asked
    if pretended is not None:
        is_member = is_asked & ~contains(pretended, keys)
    is_positive = is_member & contains(positives, keys)
    correction = tf.zeros([size])
    if log_correction is not None:
        if log_correction.shape.rank:
            of_each = tf.zeros_like(together, tf.float32)
            first = tf.size(positives)
            places = first + tf.range(tf.size(others))
            of_each = tf.tensor_scatter_nd_update(
                of_each, places[:, tf.newaxis], log_correction
            )
            padding = tf.zeros([size - num_asked])
            log_correction = tf.concat([tf.gather(of_each, order), padding], 0)
        correction = tf.where(is_positive, 0.0, log_correction)
    return ClassSet(keys, is_asked, is_member, is_positive, correction)


class AllClasses(ClassSetBuilder):
    """S_k = [n] for every client: FullSoftmax (Eq. 2)."""

    def __init__(self, num_classes: int):
        errors.check_range("num_classes", num_classes, 1, whole=True)
        super().__init__(num_classes, num_classes, True)

    def build(self, labels, seed, permanent_seed=None) -> ClassSet:
        """Returns the set of all classes; nothing is drawn."""
        keys, everything = tf.range(self.num_classes), tf.ones([self.size], tf.bool)
        return ClassSet(
            keys,
            everything,
            everything,
            contains(tf.sort(labels), keys),
            tf.zeros([self.size]),
        )


def contains(ascending: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns which values, int32[b], are in a sorted vector, int32[a]: bool[b]."""
    return tf.searchsorted(ascending, values, side="right") > tf.searchsorted(
        ascending, values, side="left"
    )


def positions(class_set: ClassSet, labels: tf.Tensor) -> tf.Tensor:
    """Converts classes, int32[examples], to positions in S_k, the targets of the loss.

    Returns int32[examples], in [0, |S_k|). When it runs, tf.errors.InvalidArgumentError
    if a label is not found among the keys, which must ascend.
    """
    found = tf.searchsorted(class_set.keys, labels, side="left")
    last = tf.size(class_set.keys) - 1
    is_there = tf.equal(tf.gather(class_set.keys, tf.minimum(found, last)), labels)
    absent = tf.boolean_mask(labels, ~is_there)
    with tf.control_dependencies(
        [
            tf.debugging.Assert(
                tf.reduce_all(is_there),
                ["labels not among the ascending keys of S_k:", absent],
            )
        ]
    ):
        return tf.identity(found)


def _skip(ranks: tf.Tensor, excluded: tf.Tensor) -> tf.Tensor:
    """Maps r to the r-th smallest non-negative integer that is not excluded.

    Ranks are int32[m]; `excluded` is int32[p], ascending and distinct.
    """
    # excluded[i] - i integers below excluded[i] are not excluded, so the result of rank
    # r is above exactly the excluded values for which that number is at most r.
    gaps = excluded - tf.range(tf.size(excluded))
    return ranks + tf.searchsorted(gaps, ranks, side="right")
