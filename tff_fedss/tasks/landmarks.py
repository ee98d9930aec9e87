"""Landmark recognition with natural clients (FedSS, section 4.2, Table 1)."""

import functools

from tff_fedss.datasets.federated_dataset import FederatedDataset
from tff_fedss.tasks.family import DataOptions, Family, Settings

_SETTINGS = Settings(
    rounds=5000,
    clients_per_round=64,
    client_learning_rate=0.01,
    num_negatives=(5, 10, 20, 40, 80),
    starts_pretrained=True,
)


def _load(options: DataOptions, split: str) -> FederatedDataset:
    from tff_fedss.datasets import landmarks

    return landmarks.load(
        options.data_dir,
        split=split,
        image_size=options.image_size,
        resize_size=options.resize_size,
    )


def _family(title: str, split: str) -> Family:
    return Family(
        title=title,
        settings={"classification": _SETTINGS},
        partitions=("author",),
        load=functools.partial(_load, split=split),
        options=frozenset({"data_dir", "resize_size"}),
    )


LANDMARKS_160K = _family("Landmarks-User-160k", "160k")
LANDMARKS_23K = _family("Landmarks-User-23k", "23k")
