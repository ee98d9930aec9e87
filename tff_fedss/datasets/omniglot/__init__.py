"""Omniglot: handwritten characters (Lake et al., 2015).

Begin with `dataset.load`, which says what a class and a client are.
"""

from tff_fedss.datasets.omniglot.dataset import (
    PARTITIONS,
    load,
    load_identities,
    load_unseen,
)

__all__ = ["PARTITIONS", "load", "load_identities", "load_unseen"]
