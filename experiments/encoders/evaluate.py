"""Measures an encoder on labelled images: a table, or JSON with --output.

    ./run.sh evaluate --model=encoder.keras --images=DIR

MAP@10 (FedSS, Eq. 9), MAP@R and R-precision (R: the other images of the query's class)
and Recall@1 and 10 measure whether images of a class find each other. Top-1 is the
share of images whose nearest class centre, computed without them, is that of their own
class. TAR@FAR is the share of pairs of one class that are accepted if a share --far of
the pairs of two classes is. There is no classifier, so the classes may be new. If the
encoder has the names of its training classes, these and the others are also measured
separately.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.common import config, program, table
from experiments.encoders import vectors
from tff_fedss import files, metrics, progress
from tff_fedss.errors import InvalidInputError

R = 10
# The pairs of TAR@FAR, half of one class.
_NUM_PAIRS, _PAIRS_SEED = 100_000, 0
_TITLES = {
    "map_at_10": "MAP@10",
    "map_at_own_r": "MAP@R",
    "recall_at_1": "Recall@1",
    "recall_at_10": "Recall@10",
    "r_precision": "R-precision",
    "center_top1": "top-1, nearest centre",
    "tar_at_far": "TAR@FAR",
}


@dataclasses.dataclass(frozen=True)
class Config(vectors.VectorsConfig):
    """The flags of the program."""

    far: float = config.flag(
        1e-3, "The false accept rate of TAR@FAR.", low=0.0, high=1.0
    )
    output: str | None = config.flag(None, "A file for the same numbers, as JSON.")


def main(config: Config) -> None:
    """Measures and prints."""
    if config.output is not None:
        vectors.check_output(pathlib.Path(config.output))
    encoder = config.load_encoder()
    images = config.load_images()
    features = config.load_vectors(encoder, images)
    measured = {}
    for name, rows in _groups(images, encoder.metadata.get("class_names")).items():
        labels = images.labels[rows]
        try:
            measured[name] = measure(features[rows], labels, config.far)
        except ValueError as error:
            if name == "all":
                raise InvalidInputError(
                    f"--images={config.images}: nothing to measure: {error}"
                ) from error
    if warning := vectors.collapse_warning(features):
        print(warning)
    print(as_text(images.name, measured, config.far))
    if metrics.is_approximate(len(images), len(images)):
        print(metrics.APPROXIMATE)
    if config.output is not None:
        content = {
            "far": config.far,
            "num_pairs": _NUM_PAIRS,
            "measured": measured,
            "origin": vectors.origin(encoder, images),
        }
        files.write_text(config.output, json.dumps(content, indent=2) + "\n")


def measure(features: np.ndarray, labels: np.ndarray, far: float) -> dict[str, Any]:
    """Measures vectors, [images, d], with labels, int[images].

    Returns:
        The numbers of images and classes, and shares by name.

    Raises:
        ValueError: If there are too few images or classes.
    """
    pairs = metrics.draw_pairs(labels, _NUM_PAIRS, _PAIRS_SEED)
    if len(labels) <= R:
        raise ValueError(f"MAP@{R} takes more than {R} images, found {len(labels)}")
    cosines = metrics.pair_cosines(features, pairs)
    search = metrics.search_for(features, len(labels))
    with progress.bar("Searching", total=len(labels), unit="images") as bar:
        scores = metrics.retrieval_scores(features, labels, R, search, bar.update)
    return {
        "images": len(labels),
        "classes": len(np.unique(labels)),
        "map_at_10": scores.map_at_r,
        "map_at_own_r": scores.map_at_own_r,
        "recall_at_1": scores.recall_at_1,
        "recall_at_10": scores.recall_at_r,
        "r_precision": scores.r_precision,
        "center_top1": metrics.center_accuracy(features, labels),
        "tar_at_far": metrics.tar_at_far(cosines, pairs.is_same, far),
    }


def _groups(images: Any, trained_names: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Returns the groups of images to measure: all, trained classes and new classes."""
    groups = {"all": np.arange(len(images))}
    if trained_names is not None:
        known = frozenset(trained_names)
        is_known = np.array([name in known for name in images.class_names])
        is_known = is_known[images.labels]
        if is_known.any() and not is_known.all():
            groups["trained classes"] = np.flatnonzero(is_known)
            groups["new classes"] = np.flatnonzero(~is_known)
    return groups


def as_text(name: str, measured: Mapping[str, Mapping[str, Any]], far: float) -> str:
    """Returns the table: a row for each measure, a column for each group of images."""
    titles = {**_TITLES, "tar_at_far": f"TAR@FAR={far:g}"}
    rows = [
        ["images", *(f"{m['images']:,}" for m in measured.values())],
        ["classes", *(f"{m['classes']:,}" for m in measured.values())],
        *(
            [title, *(f"{100 * m[key]:.1f} %" for m in measured.values())]
            for key, title in titles.items()
        ),
    ]
    return table.as_text([name, *measured], rows)


if __name__ == "__main__":
    program.run(main, Config())
