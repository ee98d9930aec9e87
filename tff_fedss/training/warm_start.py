"""A feature extractor to start from, trained centrally on public classes."""

import itertools

import tensorflow as tf

from tff_fedss import algorithms
from tff_fedss.datasets.federated_dataset import FederatedDataset
from tff_fedss.training.progress import Progress

# What learns fastest on small images.
_BATCH_SIZE = 64
_LEARNING_RATE = 1e-3


def warm_start(
    model: tf.keras.Model, dataset: FederatedDataset, num_epochs: int, seed: int
) -> None:
    """Trains phi with Adam on the public images of a data set.

    From scratch, small federated runs stay at chance for long: the features collapse
    before they separate. The paper starts from ImageNet-1k (A.2); this is the same
    idea with classes of the same kind that no client holds.

    Args:
        model: phi; its weights are the start, and are trained in place.
        dataset: With public images.
        num_epochs: Passes over them.
        seed: Of the classifier's initial weights and of the order of the images.
    """
    algorithm = algorithms.Centralized(
        model,
        dataset.num_public_classes,
        tf.keras.optimizers.Adam(_LEARNING_RATE),
        seed=seed,
    )
    steps_per_epoch = -(-dataset.num_public_examples // _BATCH_SIZE)
    batches = iter(
        algorithms.iid_batches(
            dataset.public, dataset.num_public_examples, _BATCH_SIZE, seed
        )
    )
    step = 0
    with Progress(["warm start"], num_epochs * steps_per_epoch, "step") as progress:
        for _ in range(num_epochs):
            loss_sum = num_correct = num_seen = 0
            for batch in itertools.islice(batches, steps_per_epoch):
                loss, correct = algorithm.update(batch["image"], batch["label"])
                loss_sum += float(loss)
                num_correct += int(correct)
                num_seen += len(batch["label"])
                step += 1
                progress.update(
                    "warm start",
                    step,
                    {"loss": loss_sum / num_seen, "accuracy": num_correct / num_seen},
                )
