"""How clients ask for classes, as the server knows it.

The builders are those of `class_set_defences`, by the same names. Beside each stand the
probabilities with which classes get into a request: the best attack on requests follows
from them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from tff_fedss import class_set_defences, class_sets
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.privacy import intersection


class Negatives(NamedTuple):
    """A way of asking for classes.

    Attributes:
        model: (flags, n, |P_k|, builder) -> what the server knows of requests.
        names_size: Whether the size of a request tells |P_k|.
        options: The flags that the builder wants beside m and the logit correction.
    """

    model: Callable[..., intersection.RequestModel]
    names_size: bool
    options: tuple[str, ...] = ()


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
        options=("epsilon",),
    ),
    "pool": Negatives(
        lambda config, n, size, builder: intersection.memoised(
            n, size, config.pool_size
        ),
        names_size=True,
        options=("pool_size",),
    ),
}


def builder(config: Any, dataset: FederatedDataset) -> class_sets.ClassSetBuilder:
    """Makes the builder of --negatives.

    Args:
        config: Of `privacy`, with the defaults of its data set.
        dataset: The data.

    Raises:
        ValueError: If an option is missing or out of range.
    """
    return class_set_defences.builder(
        config.negatives,
        dataset.num_classes,
        config.num_negatives,
        dataset.max_positives,
        config.logit_correction,
        **{name: getattr(config, name) for name in NEGATIVES[config.negatives].options},
    )
