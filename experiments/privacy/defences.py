"""How clients ask for classes, as the server knows it.

The builders are those of `class_set_defences`, by the same names. Beside each stand the
probabilities with which classes get into a request: the best attack on requests follows
from them.
"""

from collections.abc import Callable
from typing import NamedTuple

from experiments.fedss import defences_config, run_config
from tff_fedss import class_sets
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.privacy import intersection


class Negatives(NamedTuple):
    """A way of asking for classes.

    Attributes:
        model: (flags, n, |P_k|, builder) -> what the server knows of requests.
        names_size: Whether the size of a request tells |P_k|.
        num_decoys: Flags -> how many classes are asked for beside P_k, on average.
    """

    model: Callable[..., intersection.RequestModel]
    names_size: bool
    num_decoys: Callable[..., int] = lambda config: config.num_negatives


NEGATIVES = {
    # The paper's.
    "fresh": Negatives(
        lambda config, n, size, builder: intersection.fresh(
            n, size, config.num_negatives
        ),
        names_size=True,
    ),
    "memoised": Negatives(
        lambda config, n, size, builder: intersection.memoised(
            n, size, config.num_negatives
        ),
        names_size=True,
    ),
    "randomized_response": Negatives(
        lambda config, n, size, builder: intersection.randomized_response(
            builder.p, builder.q
        ),
        names_size=False,
    ),
    "pool": Negatives(
        lambda config, n, size, builder: intersection.memoised(
            n, size, config.pool_size
        ),
        names_size=True,
        num_decoys=lambda config: config.pool_size,
    ),
}


def name(config: run_config.RunConfig) -> str:
    """Returns which of `NEGATIVES` the flags ask for."""
    return config.negatives or "fresh"


def builder(
    config: run_config.RunConfig, dataset: FederatedDataset
) -> class_sets.ClassSetBuilder:
    """Makes what draws the class sets of FedSS.

    Args:
        config: With the defaults of its data set, checked.
        dataset: The data.
    """
    made = defences_config.class_set_builder(
        config,
        "fedss",
        dataset,
        num_negatives=config.num_negatives,
        logit_correction=config.logit_correction,
    )
    return made or class_sets.SampledClasses(
        dataset.num_classes,
        config.num_negatives,
        dataset.max_positives,
        config.logit_correction,
    )
