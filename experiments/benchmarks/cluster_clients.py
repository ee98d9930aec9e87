"""Clients of the benchmark of a cluster: the actors import this module."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss.datasets import synthetic
from tff_fedss.tasks import Classification

NUM_IMAGES, NUM_POSITIVES = 8, 8
SHAPES = {"small_cnn": (28, 28, 1), "mobilenet_v3_small": (96, 96, 3)}


@dataclasses.dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        model: phi.
        num_classes: n.
        cohort_size: K.
    """

    model: str
    num_classes: int
    cohort_size: int


def load(case: Case) -> tuple[Callable[[str, np.ndarray], Any], dict[str, Any]]:
    """What `ClusterContext.share` takes."""
    return functools.partial(_client, case), {}


def _client(case: Case, client_id: str, seed: np.ndarray) -> dict[str, Any]:
    """A client's images and labels, which follow from its id."""
    rng = np.random.default_rng(int(client_id))
    classes = rng.integers(0, case.num_classes, NUM_POSITIVES)
    data = {
        "image": rng.integers(0, 256, (NUM_IMAGES, *SHAPES[case.model]), np.uint8),
        "label": np.resize(classes, NUM_IMAGES).astype(np.int32),
    }
    return {"data": tf.data.Dataset.from_tensor_slices(data), "seed": seed}


# 100,000 clients of two classes, with two images of each.
_GLYPHS = {
    "num_classes": 50_000,
    "clients_per_class": 4,
    "mean_classes_per_client": 2,
    "mean_examples_per_class": 2,
    # Drawn images are kept, by default up to 256 MiB of them, which looks like a leak.
    "cache_bytes": 0,
}


def load_glyphs() -> tuple[Callable[[str, np.ndarray], Any], dict[str, Any]]:
    """What `ClusterContext.share` takes."""
    task = Classification(synthetic.glyphs(**_GLYPHS, num_public_classes=0), None)
    return task.client, {}
