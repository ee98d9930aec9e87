"""Exports the encoder of a finished run: images in, unit vectors out.

    ./run.sh export --results_dir=DIR --format=keras --output=encoder.keras

The encoder takes uint8 images [N, height, width, 3] of any size, makes them ready as
the run's evaluation does, and gives float32 vectors [N, d] of length 1. It loads
without this project, by Keras (.keras), TensorFlow (the folder of a SavedModel) or the
TFLite that is a part of TensorFlow. The run's data are not needed. `embed`, `evaluate`
and `neighbours` take it, and so does --pretrained of `train`, but for TFLite's.
"""

import dataclasses
import pathlib

from experiments.common import config, program
from experiments.encoders import finished_runs
from tff_fedss import models


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    results_dir: str | None = config.flag(
        None,
        "The folder of a finished run of train, compare, partial_fc, rf_softmax (with "
        "images) or moco.",
        needed="DIR is needed: the folder of a finished run.",
    )
    method: str | None = config.flag(
        None,
        "Which of the run's methods: the name of its weights METHOD.npz. Default: the "
        "only one.",
    )
    format: str = config.flag(
        "keras",
        "`keras`: a .keras file, for Keras 2; `saved_model`: a folder, for TensorFlow "
        "in any language; `tflite`: a .tflite file, which needs TensorFlow's "
        "operations beside TFLite's (the Flex delegate).",
        choices=tuple(models.FORMATS),
    )
    output: str | None = config.flag(
        None,
        "The file or folder to write.",
        needed="FILE is needed: what to write.",
    )


def main(config: Config) -> None:
    """Exports, and says what."""
    models.check_output(config.output, config.format)
    run = finished_runs.read(config.results_dir, config.method)
    models.save_encoder(
        run.phi, run.image_input, config.output, config.format, run.facts
    )
    size = run.image_input.image_size
    print(
        f"{config.output}: {run.facts['model']} of {run.facts['method']}, "
        f"{run.phi.count_params():,} parameters, {size}x{size} pixels to "
        f"{run.phi.output_shape[-1]} numbers; {_bytes(config.output):,} bytes"
    )


def _bytes(path: str) -> int:
    top = pathlib.Path(path)
    return sum(p.stat().st_size for p in (top, *top.rglob("*")) if p.is_file())


if __name__ == "__main__":
    program.run(main, Config())
