"""Retrieval of unseen products: Stanford Online Products (FedSS, 4.3, Table 2)."""

from tff_fedss.datasets.federated_dataset import FederatedDataset
from tff_fedss.tasks.family import DataOptions, Family, Settings


def _load(options: DataOptions) -> FederatedDataset:
    from tff_fedss.datasets import stanford_online_products

    return stanford_online_products.load(
        options.data_dir,
        image_size=options.image_size,
        resize_size=options.resize_size,
        clients_csv=options.clients_csv,
    )


SOP = Family(
    title="Stanford Online Products",
    settings={
        "retrieval": Settings(
            rounds=2000,
            clients_per_round=32,
            client_learning_rate=0.01,
            num_negatives=(5, 10, 20, 40, 80),
            starts_pretrained=True,
        )
    },
    partitions=("mixed",),
    load=_load,
    options=frozenset({"data_dir", "resize_size", "clients_csv"}),
)
