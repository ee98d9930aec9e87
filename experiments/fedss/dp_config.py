"""The flags of user-level differential privacy, and what a run needs for them.

What it protects, and what not, is on docs/privacy.md.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from experiments.common import config
from experiments.common.option_words import Range, Word, word
from experiments.fedss.methods import METHODS
from tff_fedss import training
from tff_fedss.algorithms import user_level_dp
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError
from tff_fedss.privacy import accounting


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Noise that is new in each round (DP-FedAvg).

    Attributes:
        noise: z, the standard deviation of the noise on the clients' sum by the clip. 0
            clips only.
        clip: C, the largest norm of a client's update; where it is adaptive, of the
            first round.
        adaptive: Whether the clip follows the median of the clients' norms, counted
            with noise of K / 20 clients, which is part of z.
        delta: At which epsilon is computed; by default N^-1.1 for N clients.
        sampling: How cohorts are drawn, which decides epsilon. "fixed": K clients
            without replacement, as without --dp; neighbours replace a client.
            "poisson": each client with probability K / N; neighbours add or remove one.
    """

    noise: Annotated[float, Range(low=0.0)]
    clip: Annotated[float, Range(low=1e-9)] = 1.0
    adaptive: bool = False
    delta: Annotated[float | None, Range(low=1e-300, high=0.999999)] = None
    sampling: Literal[tuple(training.SAMPLINGS)] = "fixed"


@dataclasses.dataclass(frozen=True)
class Ftrl:
    """Noise of a tree over the rounds (DP-FTRL), for cohorts that nobody draws.

    Attributes:
        noise: z, the standard deviation of the noise on a node of the tree by the clip.
            0 clips only.
        clip: As of gaussian.
        adaptive: As of gaussian.
        delta: As of gaussian.
        restart_every: After how many rounds a new tree begins, and an adaptive clip
            comes into force; by default after all.
    """

    noise: Annotated[float, Range(low=0.0)]
    clip: Annotated[float, Range(low=1e-9)] = 1.0
    adaptive: bool = False
    delta: Annotated[float | None, Range(low=1e-300, high=0.999999)] = None
    restart_every: Annotated[int | None, Range(low=1)] = None


_MECHANISMS = {"gaussian": Gaussian, "ftrl": Ftrl}


@dataclasses.dataclass(frozen=True)
class DpConfig(config.Config):
    """User-level differential privacy."""

    dp: str | None = config.flag(
        None,
        "Clip the update of a client, phi's and its rows' as one vector, weigh all "
        "clients alike, and put noise on phi and on ALL rows of W, by one of two "
        "mechanisms. The server itself sees requests and updates. Default: none.",
        group="User-level differential privacy (docs/privacy.md)",
        words={"none": Word(), **{k: word(m) for k, m in _MECHANISMS.items()}},
    )

    @property
    def mechanism(self) -> Gaussian | Ftrl | None:
        """What --dp asks for; None: nothing."""
        name, options = self.chosen("dp")
        return None if name == "none" else _MECHANISMS[name](**options)


_ConfigT = TypeVar("_ConfigT", bound=DpConfig)


def with_defaults(config: _ConfigT) -> _ConfigT:
    """Leaves open what says nothing new."""
    return dataclasses.replace(config, dp=None if config.dp == "none" else config.dp)


def check(
    config: DpConfig,
    methods: Sequence[str],
    dataset: FederatedDataset,
    cohort_size: int,
) -> None:
    """Checks the flags against what is to be run.

    Args:
        config: From `with_defaults`; also a `DefencesConfig`.
        methods: Of `METHODS`.
        dataset: The data.
        cohort_size: K.

    Raises:
        InvalidInputError: If they have no effect on any of the methods, or cannot be.
    """
    if config.dp is None:
        return
    if not any(METHODS[method].has_clients for method in methods):
        raise InvalidInputError(
            f"--dp={config.dp} has no effect on centralized, which has no clients: it "
            "is for the federated methods."
        )
    if config.threshold > 1:
        raise InvalidInputError(
            f"--aggregation={config.aggregation} and --dp={config.dp} cannot "
            "both be: a row that is left out says how many clients have moved it, and "
            "no noise is on that."
        )
    try:
        _factory(config, dataset.num_classes, cohort_size, seed="")
    except ValueError as error:  # Of what the flags are, in the words of the library.
        raise InvalidInputError(
            f"--dp={config.dp} with --clients_per_round={cohort_size}: {error}"
        ) from error


def server_options(
    config: Any, method: str, dataset: FederatedDataset
) -> dict[str, Any]:
    """Returns the arguments of `algorithms.ServerUpdate` that the flags want.

    Args:
        config: From `with_defaults`, checked; also with `seed` and `clients_per_round`.
        method: Of `METHODS`. Each has noise of its own: equal noise of two
            published models could be taken off.
        dataset: The data.
    """
    if config.dp is None:
        return {}
    return {
        "joint_aggregator": _factory(
            config,
            dataset.num_classes,
            config.clients_per_round,
            seed=f"{config.seed} {method}",
        ),
        "client_weighting": "uniform",
    }


def _factory(
    config: DpConfig, num_classes: int, cohort_size: int, seed: str
) -> user_level_dp.PrivateMeanFactory:
    mechanism, restart_every = config.mechanism, None
    if isinstance(mechanism, Ftrl):
        restart_every = mechanism.restart_every or config.rounds
    return user_level_dp.PrivateMeanFactory(
        num_classes=num_classes,
        clients_per_round=cohort_size,
        noise_multiplier=mechanism.noise,
        clip=mechanism.clip,
        seed=seed,
        adaptive_clip=user_level_dp.AdaptiveClip() if mechanism.adaptive else None,
        restart_every=restart_every,
    )


def sampling(config: DpConfig) -> str:
    """Returns how cohorts are drawn."""
    return getattr(config.mechanism, "sampling", "fixed")


def accountant(
    config: DpConfig,
    dataset: FederatedDataset,
    cohort_size: int,
    cohort_fn: Callable[[int], Sequence[str]],
) -> accounting.Accountant | None:
    """Makes what knows epsilon; None without differential privacy.

    Args:
        config: From `with_defaults`, checked.
        dataset: The data.
        cohort_size: K.
        cohort_fn: From a round, counted from 1, to the ids of its clients.
    """
    mechanism = config.mechanism
    if mechanism is None:
        return None
    delta = mechanism.delta
    if delta is None:
        delta = dataset.num_clients**-1.1
    if isinstance(mechanism, Ftrl):
        restart_every = mechanism.restart_every or config.rounds
        return accounting.TreeAggregation(
            mechanism.noise, delta, cohort_fn, restart_every
        )
    kind = {
        "fixed": accounting.FixedSizeSampling,
        "poisson": accounting.PoissonSampling,
    }[mechanism.sampling]
    return kind(mechanism.noise, delta, dataset.num_clients, cohort_size)


def columns(config: DpConfig) -> tuple[str, ...]:
    """Returns what metrics.csv has more."""
    return () if config.dp is None else ("epsilon", "dp/clip", "dp/clipped_share")


def record(runs: Sequence[training.Run]) -> dict[str, Any]:
    """Returns what done.json has more: the guarantee of each run that has one."""
    guarantees = {
        run.name: {
            "epsilon": epsilon(run),
            "delta": run.accountant.delta,
            "neighbours": run.accountant.relation,
        }
        for run in runs
        if getattr(run, "accountant", None) is not None
    }
    return {"user_level_dp": guarantees} if guarantees else {}


def epsilon(run: training.FederatedRun) -> float | None:
    """Returns what a run has spent by now; None where nothing bounds it.

    JSON has no infinity.
    """
    if run.accountant is None:
        return None
    spent = run.accountant.epsilon(run.round_num)
    return spent if spent < float("inf") else None


def as_text(guarantees: dict[str, Any]) -> str:
    """Says below a table what its epsilons mean.

    Args:
        guarantees: From `record`.
    """
    if not guarantees:
        return ""
    one = next(iter(guarantees["user_level_dp"].values()))
    if one["epsilon"] is None:
        return "\nepsilon: none, for there was no noise; updates were clipped."
    return (
        f"\nepsilon: of a client, at delta = {one['delta']:.2g}; neighbours: "
        f"{one['neighbours']}. Of all models that leave\nthe server, each method on "
        "its own; requests and updates themselves are not protected."
    )
