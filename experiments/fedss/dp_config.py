"""The flags of user-level differential privacy, and what a run needs for them.

What it protects, and what not, is on docs/privacy.md.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from experiments.common import config
from experiments.fedss.methods import METHODS
from tff_fedss import training
from tff_fedss.algorithms import user_level_dp
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError
from tff_fedss.privacy import accounting

_NONE = "none"
MECHANISMS = (_NONE, "gaussian", "ftrl")
_OPTIONS = (
    "dp_noise_multiplier",
    "dp_clip",
    "dp_adaptive_clip",
    "dp_delta",
    "dp_sampling",
    "dp_restart_every",
)


# What is open is as it was before there were these flags: results folders of then and
# now belong to the same flags.
@dataclasses.dataclass(frozen=True)
class DpConfig(config.Config):
    """User-level differential privacy."""

    dp: str | None = config.flag(
        None,
        "Clip the update of a client, phi's and its rows' as one vector, weigh all "
        "clients alike, and put noise on phi and on ALL rows of W: `gaussian`, new in "
        "each round (DP-FedAvg), or `ftrl`, that of a tree over the rounds. The "
        "server itself sees requests and updates. Default: none.",
        group="User-level differential privacy (docs/privacy.md)",
        choices=MECHANISMS,
    )
    dp_noise_multiplier: float | None = config.flag(
        None,
        "z: the standard deviation of the noise on the clients' sum (ftrl: on a node) "
        "by the clip. 0 clips only. Needed with --dp.",
        low=0.0,
    )
    dp_clip: float | None = config.flag(
        None,
        "C: the largest norm of a client's update; with --dp_adaptive_clip, of the "
        "first round. Default: 1.",
        low=1e-9,
    )
    dp_adaptive_clip: bool | None = config.flag(
        None,
        "Let the clip follow the median of the clients' norms, counted with noise of "
        "K / 20 clients, which is part of --dp_noise_multiplier.",
    )
    dp_delta: float | None = config.flag(
        None,
        "delta, at which epsilon is told. Default: N^-1.1 for N clients.",
        low=1e-300,
        high=0.999999,
    )
    dp_sampling: str | None = config.flag(
        None,
        "For gaussian: how cohorts are drawn, which decides epsilon. `fixed`: K "
        "clients without replacement, as without --dp; neighbours replace a client. "
        "`poisson`: each client with probability K / N; neighbours add or remove one. "
        "Default: fixed.",
        choices=training.SAMPLINGS,
    )
    dp_restart_every: int | None = config.flag(
        None,
        "For ftrl: after how many rounds a new tree begins, and an adaptive clip comes "
        "into force. Default: --rounds.",
        low=1,
    )


_ConfigT = TypeVar("_ConfigT", bound=DpConfig)


def with_defaults(config: _ConfigT) -> _ConfigT:
    """Checks the flags against each other, and fills in what depends on no data.

    Args:
        config: Also with `rounds`.

    Raises:
        InvalidInputError: If a flag has no effect, or one is missing.
    """
    if config.dp in (None, _NONE):
        for name in _OPTIONS:
            if (value := getattr(config, name)) is not None:
                raise InvalidInputError(
                    f"--{name}={value} has no effect without --dp=gaussian or "
                    "--dp=ftrl."
                )
        return dataclasses.replace(config, dp=None)
    if config.dp_noise_multiplier is None:
        raise InvalidInputError(
            f"--dp={config.dp} needs --dp_noise_multiplier, such as 1.0."
        )
    heeds = {"gaussian": "dp_sampling", "ftrl": "dp_restart_every"}
    for mechanism, name in heeds.items():
        value = getattr(config, name)
        if config.dp != mechanism and value is not None:
            raise InvalidInputError(
                f"--{name}={value} has no effect on --dp={config.dp}: it is for "
                f"--dp={mechanism}."
            )
    defaults = {"dp_clip": 1.0, "dp_adaptive_clip": False}
    if config.dp == "ftrl":
        defaults["dp_restart_every"] = config.rounds
    else:
        defaults["dp_sampling"] = "fixed"
    return dataclasses.replace(
        config, **{k: v for k, v in defaults.items() if getattr(config, k) is None}
    )


def check(
    config: DpConfig,
    methods: Sequence[str],
    dataset: FederatedDataset,
    cohort_size: int,
) -> None:
    """Checks the flags against what is to be run.

    Args:
        config: From `with_defaults`; also with `secure_threshold`.
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
    if config.secure_threshold:
        raise InvalidInputError(
            f"--secure_threshold={config.secure_threshold} and --dp={config.dp} cannot "
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
    return user_level_dp.PrivateMeanFactory(
        num_classes=num_classes,
        clients_per_round=cohort_size,
        noise_multiplier=config.dp_noise_multiplier,
        clip=config.dp_clip,
        seed=seed,
        adaptive_clip=user_level_dp.AdaptiveClip() if config.dp_adaptive_clip else None,
        restart_every=config.dp_restart_every,
    )


def sampling(config: DpConfig) -> str:
    """Returns how cohorts are drawn."""
    return config.dp_sampling or "fixed"


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
    if config.dp is None:
        return None
    delta = config.dp_delta
    if delta is None:
        delta = dataset.num_clients**-1.1
    if config.dp == "ftrl":
        return accounting.TreeAggregation(
            config.dp_noise_multiplier, delta, cohort_fn, config.dp_restart_every
        )
    kind = {
        "fixed": accounting.FixedSizeSampling,
        "poisson": accounting.PoissonSampling,
    }[sampling(config)]
    return kind(config.dp_noise_multiplier, delta, dataset.num_clients, cohort_size)


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
