"""Warm start: a feature extractor that is trained centrally on public classes."""

import collections
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tff_fedss import algorithms, files, unpacking
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError
from tff_fedss.training.progress import Progress

_BATCH_SIZE = 64
_LEARNING_RATE = 1e-3  # Learns fastest on small images.


def warm_start(
    model: tf.keras.Model, dataset: FederatedDataset, num_epochs: int, seed: int
) -> None:
    """Trains phi in place with Adam on the public images of a data set.

    At a logit scale of 20, small federated runs from scratch stay at chance for
    many rounds: the features collapse before they separate. The paper starts from
    ImageNet-1k (A.2); this uses classes of the same kind that no client holds.
    """
    examples = dataset.public_examples()
    algorithm = algorithms.Centralized(
        model,
        dataset.public.num_classes,
        tf.keras.optimizers.Adam(_LEARNING_RATE),
        image_dtype=examples.element_spec["image"].dtype,
        seed=seed,
    )
    steps_per_epoch = -(-dataset.public.num_examples // _BATCH_SIZE)
    batches = iter(
        algorithms.iid_batches(examples, dataset.public.num_examples, _BATCH_SIZE, seed)
    )
    step = 0
    with Progress({"warm start": 0}, num_epochs * steps_per_epoch, "step") as progress:
        for _ in range(num_epochs):
            sums = collections.Counter()
            for batch in itertools.islice(batches, steps_per_epoch):
                sums.update(algorithm.update(batch["image"], batch["label"]))
                step += 1
                progress.update("warm start", step, algorithm.round_metrics(sums))


def cached_warm_start(
    folder: str | os.PathLike,
    deciding: Mapping[str, Any],
    model: tf.keras.Model,
    train: Callable[[], None],
) -> None:
    """Loads the weights of a warm start from a file, or trains it and writes the file.

    Args:
        folder: The folder of the files, created if missing.
        deciding: All values that decide a warm start, by name, for JSON.
        model: phi.
        train: Trains it in place. Two processes may do so at once: both get the same
            weights.

    Raises:
        InvalidInputError: If the file is damaged or of another model.
        RunStoppedError: If it cannot be written.
    """
    text = json.dumps(dict(deciding), sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = pathlib.Path(folder) / f"{name}.npz"
    if path.exists():
        saved = unpacking.read_npz(path)
        try:
            model.set_weights([saved[f"phi_{i:03d}"] for i in range(len(saved))])
        except (KeyError, ValueError) as error:
            raise InvalidInputError(f"{path} is of another model.") from error
        return
    train()
    files.make_folder(path.parent)
    arrays = {f"phi_{i:03d}": w for i, w in enumerate(model.get_weights())}
    # Two processes may write at once, so each writes its own file.
    with files.replacing(path, unique=True) as temporary:
        files.write_npz(temporary, arrays)
