"""Exports the encoder of a finished run: images in, unit vectors out.

    ./run.sh export --results_dir=DIR --format=keras --output=encoder.keras

The encoder takes uint8 images [N, height, width, 3] of any size, preprocesses them as
in the run's evaluation, and returns float32 vectors [N, d] of length 1. It loads
without this project, in Keras (.keras), TensorFlow (the folder of a SavedModel),
TensorFlow's TFLite, or ONNX Runtime (.onnx). The file is loaded and compared with the
run's encoder, and described in model_card.md beside it. The run's data are not needed.
`embed`, `evaluate` and `neighbours` read it, and so does --pretrained of `train`,
except TFLite's and ONNX's.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.common import config, program, run_encoder
from tff_fedss import files, models
from tff_fedss.errors import InvalidInputError, RunStoppedError
from tff_fedss.models import ImageInput
from tff_fedss.training import run_files

# Largest deviation of an exported encoder's vectors from the run's.
_MOST_DEVIATION = 1e-4


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """The flags of the program."""

    results_dir: str | None = config.flag(
        None,
        "The folder of a finished run of train, compare, partial_fc, rf_softmax (with "
        "images) or moco.",
        needed="DIR is needed: the folder of a finished run.",
    )
    method: str | None = config.flag(
        None,
        "The run's method: the name of its weights METHOD.npz. Default: the only "
        "one.",
    )
    format: str = config.flag(
        "keras",
        "`keras`: a .keras file, for Keras 2; `saved_model`: a folder, for "
        "TensorFlow in any language; `tflite`: a .tflite file, which needs "
        "TensorFlow's operations in addition to TFLite's (the Flex delegate); "
        "`onnx`: a .onnx file, for ONNX Runtime.",
        choices=tuple(models.FORMATS),
    )
    output: str | None = config.flag(
        None,
        "The file or folder to write.",
        needed="FILE is needed: the file or folder to write.",
    )


def main(config: Config) -> None:
    """Exports the encoder and prints a summary."""
    models.check_output(config.output, config.format)
    run = read_run(config.results_dir, config.method)
    output = pathlib.Path(config.output)
    models.save_encoder(run.phi, run.image_input, output, config.format, run.facts)
    deviation = _deviation(run, output)
    if not deviation <= _MOST_DEVIATION:
        raise RunStoppedError(
            f"{output}: its vectors differ by up to {deviation:.1e} from the run's; "
            f"expected at most {_MOST_DEVIATION:g}."
        )
    size = run.image_input.image_size
    written = (p for p in (output, *output.rglob("*")) if p.is_file())
    num_bytes = sum(path.stat().st_size for path in written)
    print(
        f"{output}: {run.facts['model']} of {run.facts['method']}, "
        f"{run.phi.count_params():,} parameters, {size}x{size} pixels to "
        f"{run.phi.output_shape[-1]} numbers; {num_bytes:,} bytes; largest "
        f"deviation from the run's vectors {deviation:.1e}"
    )
    _write_card(output, _card(run, output.name, config.format))


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A feature extractor and its origin.

    Attributes:
        phi: The feature extractor with the run's weights.
        image_input: The preprocessing of its images.
        facts: For the metadata of the encoder, for JSON.
        length: Its rounds or epochs, in words.
        scores: The run's final table.
        percent: The metric of the run; None: it has several, or none.
        num_test_images: Number of images of the metric; None: unknown.
    """

    phi: tf.keras.Model
    image_input: ImageInput
    facts: Mapping[str, Any]
    length: str
    scores: str
    percent: float | None = None
    num_test_images: int | None = None


def read_run(results_dir: str, method: str | None = None) -> FinishedRun:
    """Reads a run's files; its data are not needed.

    Of several METHOD.npz, `method` says which.

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
    outcome = done.get("outcomes", {}).get(weights.stem, {})
    last_round = done.get("last_rounds", {}).get(weights.stem)
    return FinishedRun(
        phi,
        image_input,
        facts,
        _length(flags, outcome.get("kept_round", last_round)),
        done.get("table") or done.get("text", "none"),
        outcome.get("percent"),
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


def _write_card(output: pathlib.Path, text: str) -> None:
    """Writes model_card.md beside an encoder, unless there is one."""
    card = output.with_name("model_card.md")
    title = text.partition("\n")[0].encode()
    if card.exists() and card.read_bytes().partition(b"\n")[0] != title:
        card = output.with_name(f"{output.name}.model_card.md")  # It may be another's.
    if card.exists():
        print(f"{card} already exists and is not changed.")
    else:
        files.write_text(card, text)


def _deviation(run: FinishedRun, path: pathlib.Path) -> float:
    """Returns the largest difference between a file's and the run's vectors."""
    rng = np.random.default_rng(0)
    own = run.image_input.image_size
    exported = models.ExportedEncoder(path)
    ours = models.with_input_and_length(run.phi, run.image_input)
    result = 0.0
    for height, width in ((own, own), (2 * own, own + 5), (40, 61)):
        images = rng.integers(0, 256, (4, height, width, 3)).astype(np.uint8)
        difference = exported.embed(list(images)) - ours(images, training=False)
        result = np.maximum(result, np.abs(difference).max())
    return float(result)


def _card(run: FinishedRun, name: str, kind: str) -> str:
    flags, facts = run.facts["flags"], run.facts
    classes = facts["class_names"]
    return f"""# {name}

- Data: {flags.get("dataset", flags.get("task"))}\
{f", {len(classes):,} classes" if classes else ""}
- Method: {facts["method"]}; model: {facts["model"]}, \
{run.phi.count_params():,} parameters
- {run.length}
- Format: {kind}
- Input: uint8[N, height, width, 3], RGB images 0..255 of any size and number. Not \
floats in 0..1: all formats but Keras refuse floats, Keras those that are not whole.
- Output: float32[N, {run.phi.output_shape[-1]}], vectors of length 1
- SHA-256 of the run's weights: {facts["weights_sha256"]}
- Licence of data and weights: (to be filled in)

## Scores

{_interval(run)}    {run.scores.replace(chr(10), chr(10) + "    ")}
"""


def _length(flags: Mapping[str, str], rounds: int | None) -> str:
    if "epochs" in flags:
        return f"Epochs: {flags['epochs']}"
    if rounds is None:
        rounds = flags.get("rounds", "the default")
    return f"Rounds: {rounds}"


def _interval(run: FinishedRun) -> str:
    """Returns the metric with its 95 % interval; "" if the run does not have it.

    The standard error is that of a proportion p of N images, sqrt(p (1 - p) / N); the
    mean of values between 0 and 1, such as MAP@10, has at most that.
    """
    if run.percent is None or not run.num_test_images:
        return ""
    share = run.percent / 100
    is_validation = run.facts["flags"].get("on_validation") == "true"
    error = 196 * math.sqrt(share * (1 - share) / run.num_test_images)
    return (
        f"{run.facts['method']}: {run.percent:.1f} ± {error:.1f} % on "
        f"{run.num_test_images:,} {'validation' if is_validation else 'test'} images "
        "(95 %; another seed may differ by more).\n\n"
    )


if __name__ == "__main__":
    program.run(main, Config())
