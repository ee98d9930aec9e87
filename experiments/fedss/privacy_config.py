"""The flags of what the server sees of a client, and of differential privacy.

docs/privacy.md describes what each hides, and what not.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from experiments.common import config
from experiments.common.config import naming
from experiments.common.option_words import Range, Word, word
from experiments.fedss.methods import METHODS
from tff_fedss import class_set_defences, class_sets, metrics, training
from tff_fedss.algorithms import aggregation, exchange, user_level_dp
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError
from tff_fedss.privacy import accounting


@dataclasses.dataclass(frozen=True)
class RandomizedResponse:
    """Each class at random, drawn once for the run.

    Attributes:
        epsilon: The most that a client's requests reveal of any one class, in nats.
            With a smaller epsilon a client asks for fewer of its own classes, and only
            the examples of these train.
    """

    epsilon: Annotated[float, Range(low=1e-6)]


@dataclasses.dataclass(frozen=True)
class Pool:
    """The same decoys in all rounds, of which m train.

    Attributes:
        size: M, the decoys that a client asks for, at least m.
    """

    size: Annotated[int, Range(low=1)]


@dataclasses.dataclass(frozen=True)
class Secure:
    """Only the sum of the updates, as by an ideal protocol, without masks.

    Attributes:
        threshold: Rows of W to which fewer clients of the round contribute are dropped
            from the sum. 1 drops none.
    """

    threshold: Annotated[int, Range(low=1)] = 1


_NEGATIVES = {
    "fresh": Word(),
    "memoised": Word(),
    "randomized_response": word(RandomizedResponse),
    "pool": word(Pool),
}
_AGGREGATIONS = {"plain": Word(), "secure": word(Secure)}


# Outside of these bounds the accounting divides by 0, or rounds a divergence below 0.
_LEAST_NOISE, _MOST_NOISE = 1e-9, 1e5


@dataclasses.dataclass(frozen=True)
class _Mechanism:
    """What the mechanisms of --dp have in common.

    Attributes:
        noise: z, the standard deviation of the noise, divided by the clip. The noise is
            on the clients' sum or, for ftrl, on each node of the tree. 0: updates are
            only clipped.
        clip: C, the largest norm of a client's update; if adaptive, in the first round.
        adaptive: Whether the clip follows the median of the clients' norms. The number
            of clients below the clip gets noise of standard deviation K / 20, which z
            includes.
        delta: The delta of epsilon; by default N^-1.1 for N clients.
    """

    noise: Annotated[float, Range(low=0.0, high=_MOST_NOISE)]
    clip: Annotated[float, Range(low=1e-9)] = 1.0
    adaptive: bool = False
    delta: Annotated[float | None, Range(low=1e-300, high=0.999999)] = None


@dataclasses.dataclass(frozen=True)
class Gaussian(_Mechanism):
    """Fresh noise in each round (DP-FedAvg).

    Attributes:
        sampling: How cohorts are drawn, which decides epsilon. "fixed": K clients
            without replacement, as without --dp; neighbours replace a client.
            "poisson": each client with probability K / N; neighbours add or remove one.
    """

    sampling: Literal[tuple(training.SAMPLINGS)] = "fixed"


@dataclasses.dataclass(frozen=True)
class Ftrl(_Mechanism):
    """Noise of a tree over the rounds (DP-FTRL), for any schedule of cohorts.

    Attributes:
        restart_every: Rounds until a new tree begins, and an adaptive clip takes
            effect; by default all rounds.
    """

    restart_every: Annotated[int | None, Range(low=1)] = None


_MECHANISMS = {"gaussian": Gaussian, "ftrl": Ftrl}


@dataclasses.dataclass(frozen=True)
class PrivacyConfig(config.Config):
    """The flags of what the server sees, and of user-level differential privacy."""

    negatives: str | None = config.flag(
        None,
        "The classes that clients ask for besides their own: `fresh`, m negatives "
        "drawn in each round (the paper's); `memoised`, the same m in all rounds; "
        "`randomized_response` or `pool`. For fedss, neg_only and fedprox. Default: "
        "fresh.",
        group="What the server sees (docs/privacy.md)",
        words=_NEGATIVES,
        off="fresh",
    )
    requests: str | None = config.flag(
        None,
        "The rows of W that a client gets: `sampled`, those that it asks for (the "
        "paper's); `union`, those that any client of the round asks for, as by a "
        "private set union; `all`. The resulting weights are the same. Default: "
        "sampled.",
        choices=exchange.REQUESTS,
        off="sampled",
    )
    aggregation: str | None = config.flag(
        None,
        "The part of the clients' updates that the server sees: `plain`, each; "
        "`secure`, only their sum. Default: plain.",
        words=_AGGREGATIONS,
        off="plain",
    )

    dp: str | None = config.flag(
        None,
        "Clip the update of a client, phi and its rows as one vector, weight all "
        "clients equally, and add noise to phi and to ALL rows of W, by one of two "
        "mechanisms. The server itself sees requests and updates. Default: none.",
        group="User-level differential privacy (docs/privacy.md)",
        words={"none": Word(), **{k: word(m) for k, m in _MECHANISMS.items()}},
        off="none",
    )

    @property
    def num_decoys(self) -> int:
        """Returns how many classes a client asks for besides its own, on average.

        The class must have `num_negatives`.
        """
        return self.chosen("negatives").options.get("size", self.num_negatives)

    @property
    def threshold(self) -> int:
        """The number of contributing clients that a row needs to be in the sum."""
        return self.chosen("aggregation").options.get("threshold", 1)

    @property
    def mechanism(self) -> Gaussian | Ftrl | None:
        """The mechanism of --dp; None: none."""
        name, options = self.chosen("dp")
        return None if name == "none" else _MECHANISMS[name](**options)

    @property
    def restart_every(self) -> int | None:
        """The rounds of a tree of DP-FTRL; None without it."""
        if not isinstance(self.mechanism, Ftrl):
            return None
        return self.mechanism.restart_every or self.rounds


# The flags that some methods have no use for, and what a method needs for them.
_NEEDS = {
    "negatives": "draws_negatives",
    "requests": "asks_for_rows",
    "aggregation": "asks_for_rows",
    "dp": "has_clients",
    "xla": "has_clients",
    "logit_correction": "draws_negatives",
    "server_optimizer": "has_clients",
}


def check(config: PrivacyConfig, methods: Sequence[str]) -> None:
    """Checks the flags of a run of some of `METHODS`.

    Raises:
        InvalidInputError: If one has no effect on any of the methods, or two do not go
            together.
    """
    needs = dict(_NEEDS)
    if config.chosen("schedule").options.get("of") == "server":
        needs["schedule"] = "has_clients"
    for name, need in needs.items():
        value = getattr(config, name)
        concerned = [m for m, method in METHODS.items() if getattr(method, need)]
        is_default = value == getattr(type(config), name)
        if not is_default and not {*concerned} & {*methods}:
            raise InvalidInputError(
                f"--{name}={value} has no effect on {' and '.join(methods)}: it is for "
                f"{', '.join(concerned)}."
            )
    if 0 < getattr(config.mechanism, "noise", 0) < _LEAST_NOISE:
        raise InvalidInputError(
            f"--dp={config.dp}: noise must be 0, or at least {_LEAST_NOISE:g}."
        )
    is_adaptive = config.mechanism is not None and config.mechanism.adaptive
    if is_adaptive and (config.restart_every or 0) >= config.rounds:
        raise InvalidInputError(
            f"--dp={config.dp}: an adaptive clip changes only where a tree restarts: "
            f"restart_every must be below --rounds={config.rounds}."
        )
    if config.threshold > config.clients_per_round:
        raise InvalidInputError(
            f"--aggregation={config.aggregation}: the threshold is more than "
            f"--clients_per_round={config.clients_per_round}: no row could have that "
            "many contributors."
        )
    if config.threshold > 1 and config.dp is not None:
        raise InvalidInputError(
            f"--aggregation={config.aggregation} and --dp={config.dp} cannot be "
            "combined: a dropped row reveals how many clients have changed it, "
            "without noise."
        )


def class_set_builder(
    config: PrivacyConfig, method: str, dataset: FederatedDataset
) -> class_sets.ClassSetBuilder | None:
    """Makes the class set builder of a method; None: the method's own.

    Raises:
        InvalidInputError: If the options of --negatives do not suit the data.
    """
    if config.negatives is None or not METHODS[method].draws_negatives:
        return None
    name, options = config.chosen("negatives")
    with naming(f"--negatives={config.negatives}"):
        return class_set_defences.builder(
            name,
            dataset.num_classes,
            config.num_negatives,
            dataset.max_positives,
            config.logit_correction,
            **options,
        )


def protocol(config: PrivacyConfig, method: str) -> metrics.Protocol:
    """Returns the protocol of a method's requests and updates."""
    if not METHODS[method].asks_for_rows:
        return metrics.Protocol(asks_by_id=False)
    return metrics.Protocol(
        requests=config.requests or "sampled",
        aggregation=config.chosen("aggregation").name,
        threshold=config.threshold,
    )


def server_options(
    config: PrivacyConfig, method: str, dataset: FederatedDataset
) -> dict[str, Any]:
    """Returns the arguments of `algorithms.ServerUpdate` from the flags.

    Each method has its own noise: equal noise of two published models could be
    subtracted.

    Raises:
        InvalidInputError: If the options of --dp do not suit the cohort.
    """
    if config.threshold > 1 and METHODS[method].asks_for_rows:
        return {"rows_aggregator": aggregation.SparseRowsFactory(config.threshold)}
    mechanism = config.mechanism
    if mechanism is None:
        return {}
    with naming(f"--dp={config.dp}"):
        private_mean = user_level_dp.PrivateMeanFactory(
            num_classes=dataset.num_classes,
            clients_per_round=config.clients_per_round,
            noise_multiplier=mechanism.noise,
            clip=mechanism.clip,
            seed=f"{config.seed} {method}",
            adaptive_clip=user_level_dp.AdaptiveClip() if mechanism.adaptive else None,
            restart_every=config.restart_every,
        )
    return {"client_weighting": "uniform", "joint_aggregator": private_mean}


def sampling(config: PrivacyConfig) -> str:
    """Returns how cohorts are drawn."""
    return getattr(config.mechanism, "sampling", "fixed")


def accountant(
    config: PrivacyConfig,
    dataset: FederatedDataset,
    cohort_fn: Callable[[int], Sequence[str]],
) -> accounting.Accountant | None:
    """Makes the accountant of epsilon; None without differential privacy.

    `cohort_fn` maps a round, counted from 1, to the ids of its clients.
    """
    mechanism = config.mechanism
    if mechanism is None:
        return None
    delta = mechanism.delta
    if delta is None:
        delta = dataset.num_clients**-1.1
    with naming(f"--dp={config.dp}"):
        if isinstance(mechanism, Ftrl):
            return accounting.TreeAggregation(
                mechanism.noise, delta, cohort_fn, config.restart_every
            )
        kind = {
            "fixed": accounting.FixedSizeSampling,
            "poisson": accounting.PoissonSampling,
        }[mechanism.sampling]
        cohort_size = config.clients_per_round
        return kind(mechanism.noise, delta, dataset.num_clients, cohort_size)


def columns(config: PrivacyConfig) -> tuple[str, ...]:
    """Returns the additional columns of metrics.csv."""
    dropped = ("w/dropped_rows",) if config.threshold > 1 else ()
    of_dp = ("epsilon", "dp/clip", "dp/clipped_share")
    return (*dropped, *(() if config.dp is None else of_dp))


def record(runs: Sequence[training.Run]) -> dict[str, Any]:
    """Returns the additional entries of done.json: the guarantee of each run."""
    guarantees = {}
    for run in runs:
        accountant = getattr(run, "accountant", None)
        if accountant is not None:
            bounds = accountant.bounds(run.round_num)
            guarantees[run.name] = {
                "epsilon": epsilon(run),
                "epsilon_by": {k: v for k, v in bounds.items() if v < float("inf")},
                "delta": accountant.delta,
                "neighbours": accountant.relation,
            }
    return {"user_level_dp": guarantees} if guarantees else {}


def epsilon(run: training.FederatedRun) -> float | None:
    """Returns a run's epsilon so far; None if it is unbounded (for JSON)."""
    if run.accountant is None:
        return None
    spent = run.accountant.epsilon(run.round_num)
    return spent if spent < float("inf") else None


def as_text(guarantees: dict[str, Any]) -> str:
    """Returns a note below a table on the epsilons of `record`."""
    if not guarantees:
        return ""
    one = next(iter(guarantees["user_level_dp"].values()))
    if one["epsilon"] is None:
        return "\nepsilon: none, since no noise was added; updates were clipped."
    return (
        f"\nepsilon: that of a client, at delta = {one['delta']:.2g} (neighbouring "
        f"data: {one['neighbours']}).\nIt holds for all models of one method that "
        "leave the server, not for requests and updates."
    )
