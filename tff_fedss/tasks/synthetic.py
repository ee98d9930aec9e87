"""Glyphs that are drawn as they are asked for: nothing to download, any n."""

from tff_fedss.datasets.federated_dataset import FederatedDataset
from tff_fedss.tasks.family import DataOptions, Family, Settings

_DEFAULT_NUM_CLASSES = 500


def _load(options: DataOptions) -> FederatedDataset:
    from tff_fedss.datasets import synthetic

    return synthetic.glyphs(
        options.num_classes or _DEFAULT_NUM_CLASSES, image_size=options.image_size
    )


GLYPHS = Family(
    title="glyphs",
    settings={
        "classification": Settings(
            rounds=100,
            clients_per_round=16,
            client_learning_rate=0.1,
            num_negatives=(5, 10, 20, 40),
            image_size=28,
            model="small_cnn",
            warm_start_epochs=4,
            rounds_per_evaluation=10,
        )
    },
    partitions=("mixed",),
    load=_load,
    options=frozenset({"num_classes"}),
)
