"""The flags that say what the server gets to see: what clients ask for, and send back.

What each hides, and what it does not, is on docs/privacy.md.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from experiments.common import config
from experiments.fedss.methods import METHODS
from tff_fedss import class_set_defences, class_sets, metrics
from tff_fedss.algorithms import aggregation, exchange
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError

_FRESH, _SAMPLED, _PLAIN = "fresh", "sampled", "plain"
# By the value of --negatives, the flag that it cannot do without.
OPTIONS = {"randomized_response": "epsilon", "pool": "pool_size"}


# What is open is as it was before there were these flags: `None` stands for the words
# above, so that results folders of then and now belong to the same flags.
@dataclasses.dataclass(frozen=True)
class DefencesConfig(config.Config):
    """What the server gets to see."""

    negatives: str | None = config.flag(
        None,
        "What clients ask for beside their own classes: `fresh`, m negatives drawn "
        "anew each time (the paper's); `memoised`, the same m in all rounds; "
        "`randomized_response`, each class by a coin that is thrown once, see "
        "--epsilon; `pool`, always the same --pool_size, of which m train. For fedss "
        "and neg_only. Default: fresh.",
        group="What the server sees (docs/privacy.md)",
        choices=class_set_defences.NEGATIVES,
    )
    epsilon: float | None = config.flag(
        None,
        "For randomized_response: what a client's requests tell of any one class at "
        "most, in nats. Less is more private, and fewer examples train: their class "
        "has to be asked for.",
        low=1e-6,
    )
    pool_size: int | None = config.flag(
        None, "M, for pool: the decoys that a client asks for, at least m.", low=1
    )
    requests: str | None = config.flag(
        None,
        "Which rows of W go to a client: `sampled`, those that it asks for (the "
        "paper's); `union`, those that any client of the round asks for, as by a "
        "private set union; `all`. The weights that come out are the same. Default: "
        "sampled.",
        choices=exchange.REQUESTS,
    )
    aggregation: str | None = config.flag(
        None,
        "What of the clients' updates the server sees: `plain`, each; `secure`, their "
        "sum alone. The sum is that of an ideal protocol: no masks are made. Default: "
        "plain.",
        choices=metrics.AGGREGATIONS,
    )
    secure_threshold: int | None = config.flag(
        None,
        "For secure: rows of W to which fewer clients of the round contribute are "
        "dropped from the sum. Default: 1, none.",
        low=1,
    )


_ConfigT = TypeVar("_ConfigT", bound=DefencesConfig)


def with_defaults(config: _ConfigT) -> _ConfigT:
    """Checks the flags against each other, and leaves open what says nothing new.

    Raises:
        InvalidInputError: If a flag has no effect, or one is missing.
    """
    for name, option in OPTIONS.items():
        value = getattr(config, option)
        if config.negatives == name and value is None:
            raise InvalidInputError(f"--negatives={name} needs --{option}.")
        if config.negatives != name and value is not None:
            raise InvalidInputError(
                f"--{option}={value} has no effect without --negatives={name}."
            )
    threshold = config.secure_threshold
    if threshold is not None and config.aggregation != "secure":
        raise InvalidInputError(
            f"--secure_threshold={threshold} has no effect without "
            "--aggregation=secure."
        )
    return dataclasses.replace(
        config,
        negatives=_unless(config.negatives, _FRESH),
        requests=_unless(config.requests, _SAMPLED),
        aggregation=_unless(config.aggregation, _PLAIN),
        secure_threshold=_unless(threshold, 1),
    )


def check(
    config: DefencesConfig,
    methods: Sequence[str],
    dataset: FederatedDataset,
    *,
    num_negatives: int,
    cohort_size: int,
) -> None:
    """Checks the flags against what is to be run.

    Args:
        config: From `with_defaults`.
        methods: Of `METHODS`.
        dataset: The data.
        num_negatives: m.
        cohort_size: K.

    Raises:
        InvalidInputError: If one has no effect on any of the methods, or is out of
            range for these data.
    """
    drawing = {name for name, method in METHODS.items() if method.draws_negatives}
    asking = {name for name, method in METHODS.items() if method.asks_for_rows}
    for name, concerned, what in (
        ("negatives", drawing, "draws no negatives"),
        ("requests", asking, "asks for no rows"),
        ("aggregation", asking, "has no rows of W that come from a part of a cohort"),
    ):
        value = getattr(config, name)
        if value is not None and not concerned & {*methods}:
            raise InvalidInputError(
                f"--{name}={value} has no effect on {' and '.join(methods)}, which "
                f"{what}: it is for {', '.join(sorted(concerned))}."
            )
    n, most = dataset.num_classes, dataset.num_classes - dataset.max_positives
    if config.pool_size is not None and not num_negatives <= config.pool_size <= most:
        raise InvalidInputError(
            f"--pool_size={config.pool_size}: expected a number from --num_negatives "
            f"= {num_negatives} to {most}, the n = {n} classes of {dataset.name} less "
            f"the {dataset.max_positives} of the client with the most."
        )
    if config.negatives == "randomized_response" and num_negatives >= n:
        raise InvalidInputError(
            f"--negatives=randomized_response needs --num_negatives below n = {n}, "
            f"found {num_negatives}."
        )
    threshold = config.secure_threshold
    if threshold is not None and threshold > cohort_size:
        raise InvalidInputError(
            f"--secure_threshold={threshold} is more than --clients_per_round="
            f"{cohort_size}: no row could have so many contributors."
        )


def class_set_builder(
    config: DefencesConfig,
    method: str,
    dataset: FederatedDataset,
    *,
    num_negatives: int,
    logit_correction: str,
) -> class_sets.ClassSetBuilder | None:
    """Makes what draws the class sets of a method; None: the method's own way.

    Args:
        config: From `with_defaults`, checked.
        method: Of `METHODS`.
        dataset: The data.
        num_negatives: m.
        logit_correction: "inclusion" or "none".
    """
    if config.negatives is None or not METHODS[method].draws_negatives:
        return None
    options = {}
    if (option := OPTIONS.get(config.negatives)) is not None:
        options[option] = getattr(config, option)
    return class_set_defences.builder(
        config.negatives,
        dataset.num_classes,
        num_negatives,
        dataset.max_positives,
        logit_correction,
        **options,
    )


def protocol(config: DefencesConfig, method: str) -> metrics.Protocol:
    """Returns how requests and updates of a method travel."""
    if not METHODS[method].asks_for_rows:
        return metrics.Protocol(asks_by_id=False)
    return metrics.Protocol(
        requests=config.requests or _SAMPLED,
        aggregation=config.aggregation or _PLAIN,
        threshold=config.secure_threshold or 1,
    )


def columns(config: DefencesConfig) -> tuple[str, ...]:
    """Returns what metrics.csv has more, see `algorithms.build_fedss`."""
    return ("w/dropped_rows",) if config.secure_threshold else ()


def server_options(protocol: metrics.Protocol) -> dict[str, Any]:
    """Returns the arguments of `algorithms.ServerUpdate` that a protocol wants."""
    if protocol.threshold == 1:
        return {}
    return {"rows_aggregator": aggregation.SparseRowsFactory(protocol.threshold)}


def _unless(value: Any, default: Any) -> Any:
    return None if value == default else value
