"""How clients ask for classes, by the name that --negatives gives it.

A defence is an entry of `NEGATIVES`: how its class sets are built, and the
probabilities that the best attack on it needs.
"""

from collections.abc import Callable
from typing import NamedTuple

from experiments.fedss.run_config import RunConfig
from tff_fedss import class_sets
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.privacy import intersection


class Negatives(NamedTuple):
    """A way of asking for classes.

    Attributes:
        builder: Makes the builder of class sets, from flags and data.
        model: (flags, n, |P_k|) -> what the server knows of requests; |P_k| may be the
            server's guess.
        names_size: Whether a request's size tells |P_k|: |S_k| - m.
    """

    builder: Callable[[RunConfig, FederatedDataset], class_sets.ClassSetBuilder]
    model: Callable[[RunConfig, int, int], intersection.RequestModel]
    names_size: bool


def _sampled(config: RunConfig, dataset: FederatedDataset) -> class_sets.SampledClasses:
    return class_sets.SampledClasses(
        dataset.num_classes,
        config.num_negatives,
        dataset.max_positives,
        config.logit_correction,
    )


NEGATIVES = {
    # The paper's.
    "fresh": Negatives(
        builder=_sampled,
        model=lambda config, n, size: intersection.fresh(n, size, config.num_negatives),
        names_size=True,
    ),
}
