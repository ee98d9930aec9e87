"""The table of the compared methods, METHODS, in the order of the paper's tables.

A new method is a row here; flags, checks, runs, pages and figures read this table.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import tensorflow_federated as tff

from experiments.common import option_words, plots
from experiments.common.option_words import Range
from tff_fedss import algorithms, models, training

# A function of a method's own settings and of the common arguments of processes.
Build = Callable[..., tff.learning.templates.LearningProcess]


@dataclasses.dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        title: The paper's name.
        style: The style of its curve in all figures; references are black.
        build: The function that builds its learning process, or None if the method
            trains without clients.
        settings: The dataclass of its own settings, the options of its word of
            --method; None if it has none.
        draws_negatives: Whether each client draws m negatives.
        asks_for_rows: Whether a client downloads the rows of some classes of W, not
            all.
        is_of_paper: Whether it is in the FedSS paper.
        is_best_of_seeds: Whether the paper reports the best of three runs (4.1).
    """

    title: str
    style: plots.Style
    build: Build | None
    settings: type | None = None
    draws_negatives: bool = False
    asks_for_rows: bool = True
    is_of_paper: bool = True
    is_best_of_seeds: bool = False

    @property
    def has_clients(self) -> bool:
        """Whether the method is federated."""
        return self.build is not None


@dataclasses.dataclass(frozen=True)
class FedAwS:
    """Positives only; the server then pushes close rows of W apart.

    Attributes:
        weight: lambda of the regularizer; by default (--initial_norm / 0.3)^2, since a
            push turns a row by about lambda over its squared norm.
        margin: nu, the distance on the unit sphere below which classes are pushed
            apart. Rows in random directions are sqrt(2) apart; without rows within the
            margin, the method is pos_only, and `spreadout_loss` in metrics.csv is 0.
        neighbors: k: only the k nearest classes of each class push it, for many
            classes; by default all do.
    """

    weight: Annotated[float | None, Range(low=0.0)] = None
    margin: Annotated[float, Range(low=1e-6, high=2.0)] = 1.0
    neighbors: Annotated[int | None, Range(low=1)] = None


@dataclasses.dataclass(frozen=True)
class Centralized:
    """SGD on the pooled images of a round's clients, without federation.

    Attributes:
        updates: The number of updates in a round, for the paper's "equivalent number of
            model updates": `client_steps`, one for each mini-batch of any client of the
            round, or `rounds`, one.
    """

    updates: Literal[training.CENTRALIZED_UPDATES] = training.CENTRALIZED_UPDATES[0]


@dataclasses.dataclass(frozen=True)
class FedProx:
    """FedSS whose clients stay close to the round's model (Li et al., 2020).

    Attributes:
        mu: The weight of mu / 2 |theta - theta_0|^2 in a client's loss.
    """

    mu: Annotated[float, Range(low=0.0)] = 0.1


def of_fedss(method: str) -> Build:
    """Returns a function that builds one of `algorithms.METHODS`, by its name."""
    return lambda settings, *args, **options: algorithms.build_fedss(
        *args, method=method, **options
    )


def _fedaws(settings: FedAwS, *args, initial_norm: float, **options):
    weight = settings.weight
    if weight is None:
        weight = (initial_norm / models.INITIAL_NORM) ** 2
    return algorithms.build_fedaws(
        *args,
        spreadout_weight=weight,
        spreadout_margin=settings.margin,
        spreadout_neighbors=settings.neighbors,
        initial_norm=initial_norm,
        **options,
    )


def _fedprox(
    settings: FedProx, *args, client_training: algorithms.ClientTraining, **options
):
    proximal = dataclasses.replace(client_training, proximal=settings.mu)
    return algorithms.build_fedss(*args, client_training=proximal, **options)


METHODS = {
    "fedss": Method("FedSS", plots.style(0), of_fedss("fedss"), draws_negatives=True),
    "neg_only": Method(
        "NegOnly", plots.style(1), of_fedss("neg_only"), draws_negatives=True
    ),
    "pos_only": Method("PosOnly", plots.style(2), of_fedss("pos_only")),
    "fedaws": Method("FedAwS", plots.Style("#CC79A7", "--", "D"), _fedaws, FedAwS),
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
        Centralized,
        asks_for_rows=False,
        is_best_of_seeds=True,
    ),
    "fedprox": Method(
        "FedProx",
        plots.Style("#56B4E9", "--", "v"),
        _fedprox,
        FedProx,
        draws_negatives=True,
        is_of_paper=False,
    ),
}


# The words of --method, with their settings as options.
WORDS = option_words.WordsOf(
    METHODS,
    lambda row: (
        option_words.word(row.settings) if row.settings else option_words.Word()
    ),
)


def name_of(word: str) -> str:
    """Returns the method's name from a word of --method in flags.txt."""
    return word.partition(":")[0]


def settings_of(words: Sequence[str], name: str) -> Any:
    """Returns the own settings of a method, None if it has none.

    Args:
        words: The words of --method or --methods; methods not in them have defaults.
    """
    if METHODS[name].settings is None:
        return None
    chosen = (option_words.parse("method", word, WORDS) for word in words)
    given = {word.name: word.options for word in chosen}
    return METHODS[name].settings(**given.get(name, {}))
