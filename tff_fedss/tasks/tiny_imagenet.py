"""Classification of small photographs: Tiny-ImageNet, 200 classes at 64x64 pixels."""

from tff_fedss.datasets.federated_dataset import FederatedDataset
from tff_fedss.tasks.family import DataOptions, Family, Settings


def _load(options: DataOptions) -> FederatedDataset:
    from tff_fedss.datasets import tiny_imagenet

    return tiny_imagenet.load(
        options.data_dir,
        partition=options.partition,
        image_size=options.image_size,
        resize_size=options.resize_size,
        num_clients=options.num_clients,
        alpha=options.dirichlet_alpha,
        num_public_classes=options.num_public_classes,
    )


TINY_IMAGENET = Family(
    title="Tiny-ImageNet",
    settings={
        "classification": Settings(
            rounds=200,
            clients_per_round=16,
            client_learning_rate=0.1,
            num_negatives=(5, 10, 20, 40, 80),
            image_size=56,
            model="small_cnn",
            rounds_per_evaluation=10,
        )
    },
    partitions=("mixed", "dirichlet"),
    load=_load,
    options=frozenset(
        {
            "data_dir",
            "resize_size",
            "num_clients",
            "dirichlet_alpha",
            "num_public_classes",
        }
    ),
)
