"""The initial phi: drawn, loaded or trained on public classes."""

import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.common import config as config_lib
from experiments.fedss.methods import METHODS, name_of
from experiments.fedss.run_config import RunConfig
from tff_fedss import models, tasks, training
from tff_fedss.errors import InvalidInputError

IMAGENET = "imagenet"
# The flags that decide a warm start.
_DECIDING = (
    "dataset",
    "data_dir",
    "task",
    "image_size",
    "model",
    "pretrained",
    "embedding_dim",
    "warm_start_epochs",
    "seed",
    "deterministic",
    "precision",
)


def path_of(config: config_lib.Config) -> str | os.PathLike:
    """Returns the file of --pretrained, downloaded if it is `imagenet`.

    Raises:
        InvalidInputError: If the download fails.
    """
    if config.pretrained != IMAGENET:
        return config.pretrained
    try:
        return models.fetch_imagenet(config.model)
    except InvalidInputError as error:
        raise InvalidInputError(f"--pretrained={error}") from error


def fingerprint(config: config_lib.Config) -> dict[str, dict[str, str]]:
    """Returns the fingerprint of --pretrained; empty if there is none."""
    if not config.pretrained:
        return {}
    digest = models.pretrained_digest(path_of(config))
    return {"pretrained": {"--pretrained": digest}}


def load(config: config_lib.Config, model: tf.keras.Model) -> models.LoadReport | None:
    """Loads the weights of --pretrained into phi, if there are any.

    Raises:
        InvalidInputError: If they are missing, damaged, or of another model.
    """
    if not config.pretrained:
        return None
    path = path_of(config)
    with config_lib.naming("--pretrained"):
        return models.load_pretrained(model, path)


def trained(
    config: RunConfig,
    task: tasks.FederatedTask,
    inputs: Mapping[str, Any],
) -> list[np.ndarray]:
    """Trains phi of a task not measured yet on public classes, if the flags say so.

    --warm_start_cache may have the result, by the fingerprints of the run's inputs.

    Returns:
        Phi before the rounds.
    """
    model, epochs, seed = task.model, config.warm_start_epochs, config.seed
    if epochs:
        train = functools.partial(
            training.warm_start, model, task.dataset, epochs, seed
        )
        if config.warm_start_cache:
            deciding = {name: getattr(config, name) for name in _DECIDING}
            deciding["inputs"] = inputs
            if not any(METHODS[name_of(w)].has_clients for w in config.method_words):
                # Then an operation has several threads, and other bytes.
                deciding["threads"] = "several"
            folder = config.warm_start_cache
            training.cached_warm_start(folder, deciding, model, train)
        else:
            train()
    return model.get_weights()
