"""Stanford Online Products: photographs of 22,634 products (Song et al., CVPR 2016)."""

from tff_fedss.datasets.stanford_online_products.dataset import (
    ARCHIVE,
    IMAGES_PER_CLIENT,
    Listing,
    load,
    make_partition,
    read_train_listing,
    to_split,
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
