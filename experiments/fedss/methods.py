"""The table of the compared methods, METHODS, in the order of the paper's tables.

A new method is a row here; flags, checks, runs, pages and figures read this table.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

from experiments.common import plots
from tff_fedss import algorithms

# A function of the flags and of the arguments that all processes have in common.
Build = Callable[..., tff.learning.templates.LearningProcess]


@dataclasses.dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        title: The name that the paper writes.
        style: The style of its curve in all figures; references are black.
        build: The function that builds its learning process, or None if the method
            trains without clients.
        draws_negatives: Whether each client draws m negatives.
        asks_for_rows: Whether a client downloads the rows of some classes of W, and
            not all of W.
        is_best_of_seeds: Whether the paper reports the best of three runs (4.1).
    """

    title: str
    style: plots.Style
    build: Build | None
    draws_negatives: bool = False
    asks_for_rows: bool = True
    is_best_of_seeds: bool = False

    @property
    def has_clients(self) -> bool:
        """Whether the method is federated."""
        return self.build is not None


def of_fedss(method: str) -> Build:
    """Returns a function that builds one of `algorithms.METHODS`, by its name."""

    def build(config: Any, *args, **options):
        del config  # The common arguments are enough.
        return algorithms.build_fedss(*args, method=method, **options)

    return build


def _fedaws(config: Any, *args, **options):
    return algorithms.build_fedaws(
        *args,
        spreadout_weight=config.spreadout_weight,
        spreadout_margin=config.spreadout_margin,
        spreadout_neighbors=config.spreadout_neighbors,
        **options,
    )


METHODS = {
    "fedss": Method("FedSS", plots.style(0), of_fedss("fedss"), draws_negatives=True),
    "neg_only": Method(
        "NegOnly", plots.style(1), of_fedss("neg_only"), draws_negatives=True
    ),
    "pos_only": Method("PosOnly", plots.style(2), of_fedss("pos_only")),
    "fedaws": Method("FedAwS", plots.Style("#CC79A7", "--", "D"), _fedaws),
    "full_softmax": Method(
        "FullSoftmax",
        plots.REFERENCE,
        of_fedss("full_softmax"),
        asks_for_rows=False,
        is_best_of_seeds=True,
    ),
    "centralized": Method(
        "Centralized",
        plots.Style("#E69F00", "-.", "*"),
        None,
        asks_for_rows=False,
        is_best_of_seeds=True,
    ),
}


def drawing() -> list[str]:
    """Returns the names of the methods whose clients draw negatives."""
    return [name for name, method in METHODS.items() if method.draws_negatives]


def best_of_seeds() -> list[str]:
    """Returns the names of the methods that the paper reports by the best of 3 runs."""
    return [name for name, method in METHODS.items() if method.is_best_of_seeds]
