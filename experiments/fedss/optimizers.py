"""The words of --server_optimizer and --schedule."""

import dataclasses
import math
from typing import Annotated, Literal

import tensorflow as tf
import tensorflow_federated as tff

from experiments.common.option_words import Range, Word, word
from tff_fedss import algorithms

_Rate = Annotated[float, Range(low=0.0)]
_Decay = Annotated[float, Range(low=0.0, high=0.999999)]
_Epsilon = Annotated[float, Range(low=1e-30)]


@dataclasses.dataclass(frozen=True)
class Sgdm:
    """SGD with momentum (FedSS, A.2); steps on W stay sparse.

    Attributes:
        learning_rate: alpha.
        momentum: Momentum; 0: none.
    """

    learning_rate: _Rate = 1.0
    momentum: Annotated[float, Range(low=0.0, high=1.0)] = 0.9

    def build(self) -> tff.learning.optimizers.Optimizer:
        """Returns the optimizer."""
        return algorithms.build_sparse_sgdm(self.learning_rate, self.momentum)


@dataclasses.dataclass(frozen=True)
class Adam:
    """FedAdam (Reddi et al., 2021); each step has gradients and moments of all of W.

    Attributes:
        learning_rate: eta.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        epsilon: tau, which bounds steps if gradients are small.
    """

    learning_rate: _Rate = 0.01
    beta_1: _Decay = 0.9
    beta_2: _Decay = 0.99
    epsilon: _Epsilon = 1e-3

    def build(self) -> tff.learning.optimizers.Optimizer:
        """Returns the optimizer."""
        return tff.learning.optimizers.build_adam(**vars(self))


@dataclasses.dataclass(frozen=True)
class Yogi(Adam):
    """FedYogi (Reddi et al., 2021), as adam, with a slowly changing second moment."""

    def build(self) -> tff.learning.optimizers.Optimizer:
        """Returns the optimizer."""
        return tff.learning.optimizers.build_yogi(**vars(self))


SERVER = {"sgdm": Sgdm, "adam": Adam, "yogi": Yogi}
SERVER_WORDS = {name: word(kind) for name, kind in SERVER.items()}

_Of = Literal["clients", "server", "both"]


@dataclasses.dataclass(frozen=True)
class Cosine:
    """From the full rate to 0, by a half cosine over --rounds.

    Attributes:
        of: The side whose rate it is.
    """

    of: _Of = "clients"

    def share(self, round_num: tf.Tensor, rounds: int) -> tf.Tensor:
        """Returns the share of the rate in a round, counted from 0."""
        done = tf.minimum(tf.cast(round_num, tf.float32) / rounds, 1.0)
        return 0.5 * (1.0 + tf.cos(math.pi * done))


@dataclasses.dataclass(frozen=True)
class Step:
    """Steps down by a factor.

    Attributes:
        every: Rounds between two steps.
        factor: The factor of each step.
        of: The side whose rate it is.
    """

    every: Annotated[int, Range(low=1)]
    factor: Annotated[float, Range(low=0.0, high=1.0)] = 0.1
    of: _Of = "clients"

    def share(self, round_num: tf.Tensor, rounds: int) -> tf.Tensor:
        """Returns the share of the rate in a round, counted from 0."""
        del rounds
        return self.factor ** tf.cast(round_num // self.every, tf.float32)


SCHEDULES = {"cosine": Cosine, "step": Step}
SCHEDULE_WORDS = {
    "constant": Word(),
    **{name: word(kind) for name, kind in SCHEDULES.items()},
}
