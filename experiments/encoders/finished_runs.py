"""The feature extractor of a finished run of any program."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from experiments.common import run_encoder
from tff_fedss import files, models
from tff_fedss.errors import InvalidInputError
from tff_fedss.models import ImageInput
from tff_fedss.training import run_files


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A feature extractor and its origin.

    Attributes:
        phi: The feature extractor with the run's weights.
        image_input: The preprocessing of its images.
        facts: For the metadata of the encoder, for JSON.
        scores: The run's final table.
        percent: The metric of the run; None: it has several, or none.
        num_test_images: Number of images of the metric; None: unknown.
    """

    phi: tf.keras.Model
    image_input: ImageInput
    facts: Mapping[str, Any]
    scores: str
    percent: float | None = None
    num_test_images: int | None = None


def read(results_dir: str, method: str | None = None) -> FinishedRun:
    """Reads a run's files; its data are not needed.

    Args:
        results_dir: The run's folder.
        method: The name of its weights, METHOD.npz. None: the only ones.

    Raises:
        InvalidInputError: If it is not the folder of a finished run of images, the run
            does not have the method, or a file is damaged.
    """
    folder = pathlib.Path(results_dir)
    where = f"--results_dir={results_dir}"
    if not folder.is_dir():
        raise InvalidInputError(f"{where} is not a folder; expected that of a run.")
    flags = run_files.read_flags(folder / run_files.FLAGS)
    done = run_files.read_json(folder / run_files.DONE)
    if done is None:
        raise InvalidInputError(
            f"{where}: its run is not finished: first run its command again."
        )
    model, phi, image_input = run_encoder.read(folder)
    weights = _weights_file(folder, where, method)
    models.load_pretrained(phi, weights)
    description = run_files.read_json(folder / run_files.RUN) or {}
    facts = {
        "method": weights.stem,
        "model": model,
        "class_names": done.get("class_names"),
        "weights_sha256": files.sha256(weights),
        "flags": flags,
        "run": {k: v for k, v in description.items() if k in ("started", "versions")},
    }
    data = run_files.read_json(folder / run_files.DATA) or {}
    return FinishedRun(
        phi,
        image_input,
        facts,
        done.get("table", "none"),
        done.get("outcomes", {}).get(weights.stem, {}).get("percent"),
        data.get("data", {}).get("test images"),
    )


def _weights_file(folder: pathlib.Path, where: str, method: str | None) -> pathlib.Path:
    found = sorted(p for p in folder.glob("*.npz") if p.name != "losses.npz")
    names = ", ".join(path.stem for path in found)
    if not found:
        raise InvalidInputError(f"{where} has no METHOD.npz, the weights.")
    if method is None and len(found) > 1:
        raise InvalidInputError(
            f"{where} has the weights of {names}: choose one by --method."
        )
    chosen = [path for path in found if method in (None, path.stem)]
    if not chosen:
        raise InvalidInputError(
            f"--method={method}: there is no {folder / method}.npz, but {names}."
        )
    return chosen[0]
