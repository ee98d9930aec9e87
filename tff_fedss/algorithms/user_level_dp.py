"""User-level differential privacy of a round's mean delta of phi and W.

A client's update is ONE vector, (delta phi, delta W_{S_k}): it is clipped to norm C,
summed with uniform weights, and divided by K, which is public. Gaussian noise is added
to phi and to ALL rows of W, also those that no client of the round asked for. Noise on
the requested rows alone would not protect: the row that only one client asks for would
change only if that client takes part, whatever the noise.

- Independent noise in each round (DP-FedAvg): McMahan, Ramage, Talwar, Zhang, "Learning
  Differentially Private Recurrent Language Models", ICLR 2018, Algorithm 1.
- Noise of a binary tree over the rounds (DP-FTRL): Kairouz et al., "Practical and
  Private (Deep) Learning without Sampling or Shuffling", ICML 2021, Algorithm 1; its
  guarantee needs no random cohorts. Estimates are those of Honaker (2015).
- The clip follows a quantile of the norms: Andrew, Thakkar, McMahan, Ramaswamy,
  "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021, Algorithm 1.

`tff_fedss.privacy.accounting` computes the epsilon. It holds for the models that leave
the server; the server itself sees requests and updates. The noise is drawn from a seed,
so that a resumed run ends in the same bytes; anyone who knows the seed can subtract the
noise.

TFF's `DifferentiallyPrivateFactory` in `adapters.NoisedRowsFactory` does the same,
except that its Gaussian noise has no seed. The trees and the generator are TensorFlow
Privacy's.
"""

import collections
import dataclasses
import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import errors, models
from tff_fedss.algorithms import aggregation, dp_noise

_LARGEST_SEED = 2**62


@dataclasses.dataclass(frozen=True)
class AdaptiveClip:
    """A clip that follows a quantile of the clients' norms, privately.

    C <- C exp(-rate (b - quantile)) after each round, where b is the share of clients
    whose norm is at most C, with separate noise on their number (Andrew et al.,
    Algorithm 1).

    Attributes:
        quantile: gamma, of the norms; in [0, 1].
        learning_rate: eta_C, at least 0.
        count_stddev: sigma_b of the noise on the number of clients; None: K / 20. If
            the noise multiplier is 0, there is no noise here either.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    count_stddev: float | None = None


class State(NamedTuple):
    """The aggregator's state between two rounds.

    Attributes:
        clip: float32[], C of the next round.
        estimate: float32[], the estimate of the quantile. The clip equals the estimate
            or, with a tree, is set to the estimate only when the tree restarts.
        num_rounds: int32[], the number of completed rounds.
        noise: The generator's state, and the nodes of the tree.
    """

    clip: Any
    estimate: Any
    num_rounds: Any
    noise: Any


class _Record(NamedTuple):
    """What is summed of a client's clipped delta, besides W's rows.

    Attributes:
        phi: Delta of phi.
        is_below: 1/2 if its norm was at most the estimate, else -1/2, so that one
            client changes the sum by 1/2.
        is_clipped: 1 if its norm was above the clip, else 0.
        one: 1.
    """

    phi: Any
    is_below: Any
    is_clipped: Any
    one: Any


class PrivateMeanFactory(tff.aggregators.UnweightedAggregationFactory):
    """Aggregates the mean delta of phi and W with user-level differential privacy.

    With independent noise this is DP-FedAvg, with a tree's noise (`restart_every`)
    DP-FTRL.

    It is a `joint_aggregator` of `ServerUpdate`, with `client_weighting="uniform"`:

        sum_k min(1, C / |delta_k|) delta_k / K + N(0, (z C / K)^2 I)

    Clients send sparse rows, as without it; the server's result is a dense [n, d] (or
    sparse, if z is 0).

    It measures dp/clip, the C of the round, and dp/clipped_share, the share of clients
    whose update was longer. The share is exact and thus not private, like the loss and
    all other metrics of a round.

    Args:
        num_classes: n.
        clients_per_round: K: the fixed number of clients of a round or, if it is
            random, its expectation. Sums are divided by it, however many clients came.
        noise_multiplier: z, the standard deviation of the noise on the sum (in a tree:
            on a node) over the clip; at least 0. It covers all that a round releases.
            An adaptive clip also releases a count, so the noise on the deltas is then
            larger, z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2).
        clip: C, or its first value: the largest norm of (delta phi, delta W). Positive.
        seed: Seed of the noise. Keep it secret, and use another one for each run that
            is published: equal noise can be subtracted.
        adaptive_clip: How the clip changes; None: it is fixed.
        restart_every: Number of rounds of a noise tree, after which a new one begins;
            None: independent noise in each round.
    """

    # The noise of a round without clients is released as well.
    allows_no_clients = True

    def __init__(
        self,
        *,
        num_classes: int,
        clients_per_round: float,
        noise_multiplier: float,
        clip: float,
        seed: int | str,
        adaptive_clip: AdaptiveClip | None = None,
        restart_every: int | None = None,
    ):
        errors.check_range("noise_multiplier", noise_multiplier, 0)
        errors.check_range("clip", clip, 0, above=True)
        errors.check_range("clients_per_round", clients_per_round, 0, above=True)
        if restart_every is not None:
            errors.check_range("restart_every", restart_every, 1, whole=True)
        self._num_classes = num_classes
        self._clients_per_round = float(clients_per_round)
        self._clip = clip
        self._adaptive_clip = adaptive_clip
        self._restart_every = restart_every
        self._delta_multiplier, self._count_stddev = _split(
            noise_multiplier, adaptive_clip, self._clients_per_round
        )
        digest = hashlib.blake2b(f"user-level dp\0{seed}".encode(), digest_size=8)
        self._seed = int.from_bytes(digest.digest(), "little") % _LARGEST_SEED

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process over `aggregation.ModelDelta`; padded rows are zero.

        Its result is a `ModelDelta` whose w is dense, or `SparseRows` without noise.
        """
        is_sparse = isinstance(value_type.w, tff.StructType)
        noise = self._noise(value_type)
        mean_of_rows = None
        if is_sparse:
            mean_of_rows = aggregation.SparseRowsFactory(
                denominator=self._clients_per_round
            ).create(value_type.w, tff.TensorType(np.float32))

        @tff.tensorflow.computation
        def initial_state():
            return State(
                clip=tf.constant(self._clip, tf.float32),
                estimate=tf.constant(self._clip, tf.float32),
                num_rounds=tf.constant(0),
                noise=() if noise is None else noise.initialize(),
            )

        record_of = tff.tensorflow.computation(_record)
        finish = tff.tensorflow.computation(functools.partial(self._finish, noise))

        @tff.federated_computation
        def initialize():
            return tff.federated_eval(initial_state, tff.SERVER)

        def next_round(state, value):
            clip, estimate = map(tff.federated_broadcast, (state.clip, state.estimate))
            records, w = tff.federated_map(record_of, (clip, estimate, value))
            if is_sparse:
                start = mean_of_rows.initialize()
                w_sum = mean_of_rows.next(start, w, records.one).result
            else:
                w_sum = tff.federated_sum(w)
            sums = tff.federated_sum(records)
            return tff.templates.MeasuredProcessOutput(
                *tff.federated_map(finish, (state, sums, w_sum))
            )

        return aggregation.process_of(initialize, next_round, value_type)

    def _noise(self, value_type: tff.Type) -> Any:
        """Makes the noise of phi, all of W and the count; None: no noise."""
        if not self._delta_multiplier:
            return None
        w_type = value_type.w
        embedding_dim = getattr(w_type, "rows", w_type).shape[1]
        specs = collections.OrderedDict(
            phi=tuple(tf.TensorSpec(t.shape, t.dtype) for t in value_type.phi),
            w=tf.TensorSpec([self._num_classes, embedding_dim]),
        )
        if self._adaptive_clip is not None:
            specs["count"] = tf.TensorSpec([])
        if self._restart_every is None:
            return dp_noise.IndependentNoise(specs, self._seed)
        return dp_noise.TreeNoise(specs, self._seed, self._restart_every)

    def _finish(
        self, noise: Any, state: State, sums: _Record, w_sum: Any
    ) -> tuple[State, aggregation.ModelDelta, Any]:
        """Returns the next state, the noisy mean, and the round's measurements.

        W's sum may be `SparseRows`, already divided by K.
        """
        phi = tuple(t / self._clients_per_round for t in sums.phi)
        w = w_sum / self._clients_per_round if tf.is_tensor(w_sum) else w_sum
        count = sums.is_below
        noise_state = state.noise
        if noise is not None:
            unit, noise_state = noise.next(state.noise, state.num_rounds)
            stddev = self._delta_multiplier * state.clip / self._clients_per_round
            phi = tuple(t + stddev * u for t, u in zip(phi, unit["phi"], strict=True))
            w_noise = stddev * unit["w"]
            if tf.is_tensor(w):
                w = w + w_noise
            else:
                indices = models.row_indices(w.keys)
                w = tf.tensor_scatter_nd_add(w_noise, indices, w.rows)
            if "count" in unit:
                count += self._count_stddev * unit["count"]
        num_rounds = state.num_rounds + 1
        clip, estimate = self._next_clip(state, count, num_rounds)
        next_state = State(clip, estimate, num_rounds, noise_state)
        share = tf.math.divide_no_nan(sums.is_clipped, sums.one)
        measured = collections.OrderedDict(clip=state.clip, clipped_share=share)
        mean = aggregation.ModelDelta(phi, w)
        return next_state, mean, collections.OrderedDict(dp=measured)

    def _next_clip(
        self, state: State, count: tf.Tensor, num_rounds: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the clip and the estimate of the next round."""
        adaptive, estimate = self._adaptive_clip, state.estimate
        if adaptive is None:
            return estimate, estimate
        below = tf.clip_by_value(count / self._clients_per_round + 0.5, 0.0, 1.0)
        estimate *= tf.exp(-adaptive.learning_rate * (below - adaptive.quantile))
        if self._restart_every is None:
            return estimate, estimate
        is_new = tf.equal(num_rounds % self._restart_every, 0)
        return tf.where(is_new, estimate, state.clip), estimate


def _record(clip: tf.Tensor, estimate: tf.Tensor, delta: Any) -> tuple[_Record, Any]:
    """Clips a client's delta as one vector; returns W's part beside the record."""
    is_sparse = not tf.is_tensor(delta.w)
    w = delta.w.rows if is_sparse else delta.w
    norm = tf.linalg.global_norm([*delta.phi, w])
    scale = clip / tf.maximum(norm, clip)
    record = _Record(
        phi=tuple(scale * t for t in delta.phi),
        is_below=tf.where(norm <= estimate, 0.5, -0.5),
        is_clipped=tf.cast(norm > clip, tf.float32),
        one=tf.ones_like(norm),
    )
    w = scale * w
    return record, aggregation.SparseRows(delta.w.keys, w) if is_sparse else w


def _split(
    noise_multiplier: float,
    adaptive_clip: AdaptiveClip | None,
    clients_per_round: float,
) -> tuple[float, float]:
    """Splits the noise between the deltas and the number of clients below the clip.

    Returns z_delta, a multiple of the clip, and sigma_b, in clients (Andrew et al.,
    Theorem 1).
    """
    if adaptive_clip is None:
        return noise_multiplier, 0.0
    errors.check_kind("adaptive_clip", adaptive_clip, AdaptiveClip, "an AdaptiveClip")
    errors.check_range("quantile", adaptive_clip.quantile, 0, 1)
    errors.check_range("learning_rate", adaptive_clip.learning_rate, 0)
    if not noise_multiplier:
        return 0.0, 0.0
    count_stddev = adaptive_clip.count_stddev
    if count_stddev is None:
        count_stddev = clients_per_round / 20
    if noise_multiplier >= 2 * count_stddev:
        most = f"2 count_stddev = {2 * count_stddev:g} (by default K / 10)"
        raise ValueError(f"{noise_multiplier=} must be below {most}.")
    return (noise_multiplier**-2 - (2 * count_stddev) ** -2) ** -0.5, count_stddev
