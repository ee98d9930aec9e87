"""Stanford Online Products: photographs of 22,634 products (Song et al., CVPR 2016)."""

from tff_fedss.datasets.stanford_online_products.client_partition import (
    IMAGES_PER_CLIENT,
    make_partition,
    to_split,
)
from tff_fedss.datasets.stanford_online_products.dataset import load
from tff_fedss.datasets.stanford_online_products.original import (
    ARCHIVE,
    Listing,
    read_train_listing,
)

__all__ = [
    "ARCHIVE",
    "IMAGES_PER_CLIENT",
    "Listing",
    "load",
    "make_partition",
    "read_train_listing",
    "to_split",
]
