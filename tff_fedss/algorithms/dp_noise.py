"""Gaussian noise for private means: new in each round, or that of a tree over rounds.

Both draw from TensorFlow Privacy's generator, whose state is its seed, so that a run
that goes on from a checkpoint draws what it would have drawn. All noise here is of unit
variance in each number (of a node, in a tree).
"""

from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_privacy as tfp


class IndependentNoise:
    """N(0, I) in each round."""

    def __init__(self, specs: Any, seed: int):
        """Creates it.

        Args:
            specs: A structure of `tf.TensorSpec`s, float32: what the noise is like.
            seed: Below 2^63.
        """
        self._generator = tfp.tree_aggregation.GaussianNoiseGenerator(1.0, specs, seed)

    def initialize(self) -> Any:
        """Returns the state before the first round."""
        return self._generator.initialize()

    def next(self, state: Any, num_rounds: tf.Tensor) -> tuple[Any, Any]:
        """Returns the noise of a round and the next state.

        Args:
            state: From `initialize` or from here.
            num_rounds: int32[], how many were before.
        """
        del num_rounds
        return self._generator.next(state)


class TreeState(NamedTuple):
    """Between two rounds.

    Attributes:
        tree: The nodes that later sums contain, at most log2(rounds) + 1 of them, each
            of the size of the noise; and the seed.
        previous: The noise of the sum over the rounds of this tree so far.
    """

    tree: Any
    previous: Any


class TreeNoise:
    """What a round adds to the noise of the sum over all rounds so far (DP-FTRL).

    The rounds are leaves of a binary tree. The sum over the first t of them has the
    noise of some log2(t) nodes, not of t rounds (Kairouz et al., 2021, Algorithm 1 and
    Appendix B; Honaker, 2015, for the weights of the nodes). A model that is the sum of
    its updates has that noise, and what is returned is the difference of two such.

    At a restart the noise of the old tree stays where it is, in the model, and a tree
    without any begins.
    """

    def __init__(self, specs: Any, seed: int, restart_every: int | None = None):
        """Creates it.

        Args:
            specs: See `IndependentNoise`.
            seed: Likewise.
            restart_every: The number of leaves of a tree; None: any.
        """
        self._specs = specs
        self._restart_every = restart_every
        self._aggregator = tfp.tree_aggregation.EfficientTreeAggregator(
            tfp.tree_aggregation.GaussianNoiseGenerator(1.0, specs, seed)
        )

    def initialize(self) -> TreeState:
        """See `IndependentNoise`."""
        return TreeState(self._aggregator.init_state(), self._zeros())

    def next(self, state: TreeState, num_rounds: tf.Tensor) -> tuple[Any, TreeState]:
        """See `IndependentNoise`."""
        total, tree = self._aggregator.get_cumsum_and_update(state.tree)
        noise = tf.nest.map_structure(tf.subtract, total, state.previous)
        following = TreeState(tree, total)
        if self._restart_every is not None:
            following = tf.cond(
                tf.equal((num_rounds + 1) % self._restart_every, 0),
                lambda: TreeState(self._aggregator.reset_state(tree), self._zeros()),
                lambda: following,
            )
        return noise, following

    def _zeros(self) -> Any:
        return tf.nest.map_structure(lambda s: tf.zeros(s.shape), self._specs)
