"""ImageNet-21k (FedSS, Appendix A.4): from its tars to clients."""

from tff_fedss.datasets.imagenet21k.dataset import (
    client_partition,
    default_num_clients,
    load,
    training_labels,
)

__all__ = ["client_partition", "default_num_clients", "load", "training_labels"]
