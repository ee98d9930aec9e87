"""Gaussian noise for private means: fresh in each round, or from a tree over rounds.

Both draw from TensorFlow Privacy's generator, whose state is its seed, so that a
resumed run has the same draws. All noise here has unit variance in each coordinate (in
a tree, of each node).
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow_privacy import tree_aggregation


class IndependentNoise:
    """Fresh noise N(0, I) in each round.

    Args:
        specs: A structure of `tf.TensorSpec`s, float32, of the noise.
        seed: Below 2^63.
    """

    def __init__(self, specs: Any, seed: int):
        self._generator = tree_aggregation.GaussianNoiseGenerator(1.0, specs, seed)

    def initialize(self) -> Any:
        """Returns the state before the first round."""
        return self._generator.initialize()

    def next(self, state: Any, num_rounds: tf.Tensor) -> tuple[Any, Any]:
        """Returns the noise of round `num_rounds` (from 0) and the next state."""
        del num_rounds
        return self._generator.next(state)


class TreeState(NamedTuple):
    """The state of a tree between two rounds.

    Attributes:
        nodes: For each part of the noise, float32[H, ...]: the nodes that later sums
            contain, at most H = floor(log2(leaves + 2)), then zeros.
        heights: int32[H], the heights of the nodes.
        num_nodes: int32[], the number of nodes.
        generator: Generator of the nodes to come.
        previous: The noise of the sum over the rounds of this tree so far.
    """

    nodes: Any
    heights: Any
    num_nodes: Any
    generator: Any
    previous: Any


class TreeNoise:
    """The noise of a round, chosen so that sums over rounds have a tree's (DP-FTRL).

    The rounds are leaves of a binary tree. The sum over the first t of them has the
    noise of about log2(t) nodes, not of t rounds (Kairouz et al., 2021, Algorithm 1 and
    Appendix B; Honaker, 2015, for the weights of the nodes). A model is the sum of its
    updates and has that noise; a round returns the difference of two such sums.

    At a restart the noise of the old tree stays in the model, and an empty tree begins.
    The state has the same shape in all rounds, as checkpoints need; that of TensorFlow
    Privacy grows.

    Args:
        specs: A structure of `tf.TensorSpec`s, float32, of the noise.
        seed: Below 2^63.
        restart_every: Number of leaves of a tree.
        generator: Generator of the nodes; by default of normally distributed numbers.
    """

    def __init__(
        self,
        specs: Any,
        seed: int,
        restart_every: int,
        generator: tree_aggregation.ValueGenerator | None = None,
    ):
        self._specs = specs
        self._restart_every = int(restart_every)
        self._num_nodes = (self._restart_every + 2).bit_length() - 1
        if generator is None:
            generator = tree_aggregation.GaussianNoiseGenerator(1.0, specs, seed)
        self._aggregator = tree_aggregation.EfficientTreeAggregator(generator)

    def initialize(self) -> TreeState:
        """Returns the state before the first round."""
        return self._padded(self._aggregator.init_state(), self._zeros())

    def next(self, state: TreeState, num_rounds: tf.Tensor) -> tuple[Any, TreeState]:
        """Returns the noise of round `num_rounds`, from 0, and the next state."""
        total, tree = self._aggregator.get_cumsum_and_update(
            tree_aggregation.TreeState(
                tf.nest.map_structure(lambda t: t[: state.num_nodes], state.nodes),
                state.heights[: state.num_nodes],
                state.generator,
            )
        )
        noise = tf.nest.map_structure(tf.subtract, total, state.previous)
        following = tf.cond(
            tf.equal((num_rounds + 1) % self._restart_every, 0),
            lambda: self._padded(self._aggregator.reset_state(tree), self._zeros()),
            lambda: self._padded(tree, total),
        )
        return noise, following

    def _padded(self, tree: tree_aggregation.TreeState, previous: Any) -> TreeState:
        num_nodes = tf.size(tree.level_buffer_idx)

        def pad(values):
            rest = [self._num_nodes - num_nodes, *values.shape[1:]]
            padded = tf.concat([values, tf.zeros(rest, values.dtype)], 0)
            return tf.ensure_shape(padded, [self._num_nodes, *values.shape[1:]])

        return TreeState(
            tf.nest.map_structure(pad, tree.level_buffer),
            pad(tree.level_buffer_idx),
            num_nodes,
            tree.value_generator_state,
            previous,
        )

    def _zeros(self) -> Any:
        return tf.nest.map_structure(lambda s: tf.zeros(s.shape), self._specs)


class _UnitVectors(tree_aggregation.ValueGenerator):
    """Draws the k-th unit vector as k-th draw: a sum shows its draws' weights."""

    def __init__(self, size: int):
        self.size = size

    def initialize(self) -> tf.Tensor:
        return tf.constant(0)

    def next(self, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tf.debugging.assert_less(state, self.size)
        return tf.one_hot(state, self.size), state + 1


def tree_covariance(num_rounds: int, restart_every: int) -> np.ndarray:
    """Returns the exact covariance of the noise that `TreeNoise` adds in two rounds."""
    # At most a leaf and an inner node for each round, and one for each restart.
    num_draws = 3 * num_rounds + 2
    specs = tf.TensorSpec([num_draws])
    noise = TreeNoise(specs, 0, restart_every, _UnitVectors(num_draws))
    step = tf.function(noise.next)
    state, weights = noise.initialize(), []
    for round_num in range(num_rounds):
        of_round, state = step(state, tf.constant(round_num))
        weights.append(of_round.numpy().astype(np.float64))
    return np.array(weights) @ np.array(weights).T
