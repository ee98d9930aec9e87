"""Classification among 21 thousand classes: ImageNet-21k (FedSS, A.4, Table 3)."""

from tff_fedss.datasets.federated_dataset import FederatedDataset
from tff_fedss.tasks.family import DataOptions, Family, Settings


def _load(options: DataOptions) -> FederatedDataset:
    from tff_fedss.datasets import imagenet21k

    return imagenet21k.load(
        options.data_dir,
        image_size=options.image_size,
        resize_size=options.resize_size,
        num_clients=options.num_clients,
    )


IMAGENET21K = Family(
    title="ImageNet-21k",
    settings={
        "classification": Settings(
            rounds=25_000,
            # The paper does not say K for this data set; this is that of Landmarks.
            clients_per_round=64,
            client_learning_rate=0.001,
            num_negatives=(50, 100, 200, 400, 800),
            rounds_per_evaluation=500,
        )
    },
    partitions=("mixed",),
    load=_load,
    options=frozenset({"data_dir", "resize_size", "num_clients"}),
)
