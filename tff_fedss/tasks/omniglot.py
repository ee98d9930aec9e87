"""Handwritten characters: the paper's two tasks at a size for two cores.

Classification as in section 4.2 of FedSS, on the hands of people who are no clients;
retrieval as in section 4.3, of characters that no client has.
"""

from tff_fedss.datasets.federated_dataset import FederatedDataset
from tff_fedss.tasks.family import DataOptions, Family, Settings

_SETTINGS = Settings(
    rounds=100,
    clients_per_round=16,
    client_learning_rate=0.1,
    num_negatives=(5, 10, 20, 40, 80),
    image_size=28,
    model="small_cnn",
    warm_start_epochs=4,
    rounds_per_evaluation=10,
)


def _load(options: DataOptions) -> FederatedDataset:
    from tff_fedss.datasets import omniglot

    load = omniglot.load if options.kind == "classification" else omniglot.load_unseen
    return load(
        options.data_dir, partition=options.partition, image_size=options.image_size
    )


OMNIGLOT = Family(
    title="Omniglot",
    settings={"classification": _SETTINGS, "retrieval": _SETTINGS},
    partitions=("mixed", "drawer"),
    load=_load,
    options=frozenset({"data_dir"}),
)
