"""Class sets that tell the server less of a client's classes than fresh ones do.

FedSS draws N_k anew in each round, so the classes common to all requests of a client
are P_k (docs/privacy.md). Here a client's request is drawn once for the whole run, from
a permanent seed:

| name                | asked for in each round          | trained            |
|---------------------|----------------------------------|--------------------|
| fresh               | P_k and m others, drawn again    | the same           |
| memoised            | P_k and the same m others        | the same           |
| randomized_response | each class of P_k with chance p, | the same           |
|                     | each other one with chance q     |                    |
| pool                | P_k and the same M others        | P_k and m of the M |

"Memoised" and "permanent randomized response" are words of RAPPOR (Erlingsson, Pihur
and Korolova, CCS 2014). `fresh` is `class_sets.SampledClasses`.

None of them hides what a client's single update reveals. With a pool, the rows that
change from round to round reveal P_k to all who see updates (docs/privacy.md).
"""

import math
from collections.abc import Callable

import tensorflow as tf

from tff_fedss import class_sets, errors, seeds


class MemoisedClasses(class_sets.SampledClasses):
    """S_k = P_k u N_k with the same N_k in all rounds.

    A class that no client holds or draws never moves. The logits are corrected as for
    fresh negatives: unbiased on average over clients, not for a single one.
    """

    is_permanent = True

    def draw(self, positives, others, seed, permanent_seed=None) -> class_sets.ClassSet:
        """Draws a class set, see `class_sets.SampledClasses`."""
        return super().draw(positives, others, permanent_seed)


class RandomizedResponse(class_sets.SampledClasses):
    """Asks for each class of P_k with probability p, for each other one with q.

    The set is drawn once for the run. With q = m / n and

        epsilon = log(p (1 - q) / (q (1 - p)))

    a request is epsilon-differentially private with respect to one class that the
    client has in place of another, and so also to one more or less (each class is
    answered as in Warner, 1965; for |P_k| classes at once, |P_k| epsilon), as long as
    1 - p is well above 2^-23, the step of the draws: up to epsilon = 10. Examples whose
    class was not asked for do not train. The logits of negatives are raised by
    log(1 / q), where q is the probability of being in the softmax.

    Args:
        num_classes: n.
        num_negatives: m = q n, what a client without a class asks for on average.
        max_positives: The largest |P_k| of any client.
        logit_correction: "inclusion" or "none".
        epsilon: Epsilon with respect to one class, positive.
    """

    is_permanent = True
    may_miss_positives = True

    def __init__(
        self,
        num_classes: int,
        num_negatives: int,
        max_positives: int,
        logit_correction: str = "inclusion",
        *,
        epsilon: float,
    ):
        super().__init__(num_classes, num_negatives, max_positives, logit_correction)
        errors.check_range("epsilon", epsilon, 0, above=True)
        errors.check_range("num_negatives", num_negatives, 1, num_classes - 1)
        self.q = num_negatives / num_classes
        self.p = 1 / (1 + (1 - self.q) / self.q * math.exp(-epsilon))
        # Ten standard deviations above the mean; a client that would draw more draws
        # this number.
        self._most = min(
            self.num_classes,
            math.ceil(num_negatives + 10 * math.sqrt(num_negatives)) + 10,
        )
        self.size = min(self.num_classes, self._max_positives + self._most)

    def draw(self, positives, others, seed, permanent_seed=None) -> class_sets.ClassSet:
        """Draws a class set, see `class_sets.SampledClasses`."""
        uniform = tf.random.stateless_uniform(
            [tf.size(positives)],
            seeds.fold_in(permanent_seed, seeds.Stream.RESPONSES),
            alg="philox",
        )
        asked = tf.boolean_mask(positives, uniform < self.p)
        # The other classes: a binomial number of them, uniformly.
        number = tf.random.stateless_binomial(
            [],
            seeds.fold_in(permanent_seed, seeds.Stream.NUM_NEGATIVES),
            tf.cast(others, tf.float32),
            self.q,
            output_dtype=tf.int32,
        )
        number = tf.minimum(number, self._most)
        negatives = class_sets.draw_others(positives, others, number, permanent_seed)
        correction = tf.constant(-math.log(self.q)) if self._correct else None
        return class_sets.assemble(self.size, asked, negatives, correction)


class DecoyPool(class_sets.SampledClasses):
    """Asks for P_k and the same M decoys; m of the decoys, drawn anew, train.

    A negative is in the softmax with probability m / (n - |P_k|), as a fresh one is,
    and its logit is corrected accordingly.

    Args:
        num_classes: n.
        num_negatives: m.
        max_positives: The largest |P_k| of any client.
        logit_correction: "inclusion" or "none".
        size: M, from m to n less the largest |P_k|.
    """

    is_permanent = True

    def __init__(
        self,
        num_classes: int,
        num_negatives: int,
        max_positives: int,
        logit_correction: str = "inclusion",
        *,
        size: int,
    ):
        super().__init__(num_classes, num_negatives, max_positives, logit_correction)
        most = self.num_classes - self._max_positives
        errors.check_range("size", size, self._num_negatives, most, whole=True)
        self._pool_size = int(size)
        self.size = self._max_positives + self._pool_size

    def draw(self, positives, others, seed, permanent_seed=None) -> class_sets.ClassSet:
        """Draws a class set, see `class_sets.SampledClasses`."""
        pool = class_sets.draw_others(
            positives, others, self._pool_size, permanent_seed
        )
        shuffled = tf.random.experimental.stateless_shuffle(pool, seed, alg="philox")
        negatives = tf.sort(shuffled[: self._num_negatives])
        pool = tf.sort(pool)
        pretended = tf.boolean_mask(pool, ~class_sets.contains(negatives, pool))
        correction = None
        if self._correct:
            correction = class_sets.inclusion_correction(others, self._num_negatives)
        return class_sets.assemble(
            self.size, positives, negatives, correction, pretended
        )


_BUILDERS: dict[str, Callable[..., class_sets.ClassSetBuilder]] = {
    "fresh": class_sets.SampledClasses,
    "memoised": MemoisedClasses,
    "randomized_response": RandomizedResponse,
    "pool": DecoyPool,
}
NEGATIVES = tuple(_BUILDERS)


def builder(
    name: str,
    num_classes: int,
    num_negatives: int,
    max_positives: int,
    logit_correction: str = "inclusion",
    **options: float,
) -> class_sets.ClassSetBuilder:
    """Makes a builder by its name on the command line, one of `NEGATIVES`.

    Options are `epsilon` of "randomized_response" and `size` of "pool"; the
    other arguments are those of `class_sets.SampledClasses`.
    """
    errors.check_choice("negatives", name, NEGATIVES)
    return _BUILDERS[name](
        num_classes, num_negatives, max_positives, logit_correction, **options
    )
