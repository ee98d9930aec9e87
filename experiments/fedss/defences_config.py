"""The flags that say what the server gets to see: what clients ask for, and send back.

What each hides, and what it does not, is on docs/privacy.md.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from experiments.common import config
from experiments.common.option_words import Range, Word, word
from experiments.fedss.methods import METHODS
from tff_fedss import class_set_defences, class_sets, metrics
from tff_fedss.algorithms import aggregation, exchange
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class RandomizedResponse:
    """Each class by a coin that is thrown once for the run.

    Attributes:
        epsilon: What a client's requests tell of any one class at most, in nats. Less
            is more private, and fewer examples train: their class has to be asked for.
    """

    epsilon: Annotated[float, Range(low=1e-6)]


@dataclasses.dataclass(frozen=True)
class Pool:
    """Always the same decoys, of which m train.

    Attributes:
        size: M, the decoys that a client asks for, at least m.
    """

    size: Annotated[int, Range(low=1)]


@dataclasses.dataclass(frozen=True)
class Secure:
    """The sum of the updates alone, as by an ideal protocol: no masks are made.

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


@dataclasses.dataclass(frozen=True)
class DefencesConfig(config.Config):
    """What the server gets to see."""

    negatives: str | None = config.flag(
        None,
        "What clients ask for beside their own classes: `fresh`, m negatives drawn "
        "in each round (the paper's); `memoised`, the same m in all rounds; "
        "`randomized_response` or `pool`. For fedss and neg_only. Default: fresh.",
        group="What the server sees (docs/privacy.md)",
        words=_NEGATIVES,
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
        "sum alone. Default: plain.",
        words=_AGGREGATIONS,
    )

    @property
    def num_decoys(self) -> int:
        """How many classes a client asks for beside its own, on average.

        Of a class with `num_negatives`.
        """
        return self.chosen("negatives").options.get("size", self.num_negatives)

    @property
    def threshold(self) -> int:
        """How many clients must contribute to a row, for it to be in the sum."""
        return self.chosen("aggregation").options.get("threshold", 1)


_ConfigT = TypeVar("_ConfigT", bound=DefencesConfig)


def with_defaults(config: _ConfigT) -> _ConfigT:
    """Leaves open what says nothing new."""
    return dataclasses.replace(
        config,
        negatives=None if config.negatives == "fresh" else config.negatives,
        requests=None if config.requests == "sampled" else config.requests,
        aggregation=None if config.aggregation == "plain" else config.aggregation,
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
    asked, options = config.chosen("negatives")
    if asked == "pool" and not num_negatives <= options["size"] <= most:
        raise InvalidInputError(
            f"--negatives={config.negatives}: expected a size from --num_negatives "
            f"= {num_negatives} to {most}, the n = {n} classes of {dataset.name} less "
            f"the {dataset.max_positives} of the client with the most."
        )
    if asked == "randomized_response" and num_negatives >= n:
        raise InvalidInputError(
            f"--negatives=randomized_response needs --num_negatives below n = {n}, "
            f"found {num_negatives}."
        )
    if config.threshold > cohort_size:
        raise InvalidInputError(
            f"--aggregation={config.aggregation}: the threshold is more than "
            f"--clients_per_round={cohort_size}: no row could have so many "
            "contributors."
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
    name, options = config.chosen("negatives")
    if name == "pool":
        options = {"pool_size": options["size"]}
    return class_set_defences.builder(
        name,
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
        requests=config.requests or "sampled",
        aggregation=config.chosen("aggregation").name,
        threshold=config.threshold,
    )


def columns(config: DefencesConfig) -> tuple[str, ...]:
    """Returns what metrics.csv has more, see `algorithms.build_fedss`."""
    return ("w/dropped_rows",) if config.threshold > 1 else ()


def server_options(protocol: metrics.Protocol) -> dict[str, Any]:
    """Returns the arguments of `algorithms.ServerUpdate` that a protocol wants."""
    if protocol.threshold == 1:
        return {}
    return {"rows_aggregator": aggregation.SparseRowsFactory(protocol.threshold)}
