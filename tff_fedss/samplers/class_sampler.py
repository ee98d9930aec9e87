"""What every proposal distribution q of sampled softmax has in common.

A sampler draws m negative classes s_1..s_m, independent and with replacement: for each
example from its distribution q over [n] without the example's target t, or once for a
whole batch from a q over all of [n]. It says log q of each, for the correction
o' = o - log(m q) (see `losses.sampled_softmax_loss`).

Samplers are NumPy programs with state: those that adapt hold what they need of the
class embeddings, and are updated when these change.
"""

import abc
from typing import NamedTuple

import numpy as np


class Negatives(NamedTuple):
    """What a sampler draws.

    Attributes:
        ids: int32[examples, m], never the example's target, or int32[m] for a batch; a
            class may occur twice.
        log_q: float32, of the same shape, the log-probability of each draw, given the
            target if there is one.
    """

    ids: np.ndarray
    log_q: np.ndarray


class Distribution(NamedTuple):
    """q over all classes, of each example or of a batch.

    Attributes:
        log_q: float64[examples, n], or [1, n] for a batch; -inf for what is never
            drawn, such as the target.
        is_clipped: bool of the same shape, where log_q rests on an estimate that was
            below its bound: of the class, or of a set that it is in.
    """

    log_q: np.ndarray
    is_clipped: np.ndarray


class ClassSampler(abc.ABC):
    """A proposal distribution q over n classes.

    Attributes:
        num_classes: n.
        needs_embeddings: Whether q depends on the class embeddings. If so, `rebuild`
            must come first; if not, `rebuild` and `update` do nothing.
        num_estimates: How many class weights, or sums of them, have been estimated.
        num_clipped: How many of these were out of bounds and have been clipped.
    """

    needs_embeddings = False

    def __init__(self, num_classes: int):
        """Starts the counters.

        Raises:
            ValueError: If there are fewer than two classes: one must be the target.
        """
        if num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, found {num_classes}.")
        self.num_classes = num_classes
        self.num_estimates = 0
        self.num_clipped = 0

    @abc.abstractmethod
    def draw(
        self,
        queries: np.ndarray,
        targets: np.ndarray,
        num_samples: int,
        generator: np.random.Generator,
    ) -> Negatives:
        """Draws negatives for each example.

        Args:
            queries: float32[examples, d], the input embeddings h.
            targets: int[examples], the target class of each example.
            num_samples: m, at least 1.
            generator: Decides the draws; the state that it is in when this is called,
                the arguments and the embeddings are all that they depend on.
        """

    @abc.abstractmethod
    def draw_for_batch(
        self, queries: np.ndarray, num_samples: int, generator: np.random.Generator
    ) -> Negatives:
        """Draws negatives that all examples of a batch share.

        They may be the target of an example, which must then leave them out of its
        softmax: it is the sum over the others that they estimate.

        Args:
            queries: float32[examples, d], the input embeddings h.
            num_samples: m, at least 1.
            generator: As for `draw`.
        """

    @abc.abstractmethod
    def distribution(
        self, queries: np.ndarray, targets: np.ndarray | None
    ) -> Distribution:
        """Computes q of all classes, at a cost of at least O(n).

        It is for looking at q; it draws nothing, and counts no estimate.

        Args:
            queries: float32[examples, d], the input embeddings h.
            targets: int[examples], as for `draw`. None: the q of `draw_for_batch`.
        """

    @abc.abstractmethod
    def rebuild(self, embeddings: np.ndarray) -> None:
        """Takes the embeddings of all classes.

        Args:
            embeddings: float32[n, d].
        """

    @abc.abstractmethod
    def update(self, ids: np.ndarray, embeddings: np.ndarray) -> None:
        """Takes new embeddings of some classes.

        Args:
            ids: int[k], the classes, each once.
            embeddings: float32[k, d], one for each of them.
        """


def points_on(lengths: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Spreads numbers of [0, 1) over lines that begin at 0.

    Args:
        lengths: float64, of the lines.
        uniforms: float64 of a shape that goes with that of the lengths.

    Returns:
        Their product, but never the end of a line: that is in none of its intervals,
        and the product may round up to it.
    """
    return np.minimum(uniforms * lengths, np.nextafter(lengths, 0.0))
