"""Embeds images: writes a file with path, label and vector of each.

    ./run.sh embed --model=encoder.keras --images=DIR --output=vectors.parquet

The images may have no classes. The file is written whole, at the end, and replaces an
earlier one.
"""

import dataclasses
import pathlib

from experiments.common import config, program
from experiments.encoders import vectors
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class Config(vectors.SourcesConfig):
    """The flags of the program."""

    output: str | None = config.flag(
        None,
        "The file to write: .parquet (columns path, label, vector) or .npz (arrays of "
        "these names).",
        needed="FILE is needed: the .parquet or .npz file to write.",
    )


def main(config: Config) -> None:
    """Embeds the images and prints their number."""
    path = pathlib.Path(config.output)
    _check_output(path)
    encoder = config.load_encoder()
    images = config.load_images(needs_labels=False)
    found = vectors.compute(encoder, images)
    if warning := vectors.collapse_warning(found.vectors):
        print(warning)
    vectors.write(path, found)
    classes = (
        "without classes"
        if images.class_names is None
        else f"of {len(images.class_names):,} classes"
    )
    print(
        f"{path}: {len(images):,} images {classes}, {encoder.embedding_dim} numbers "
        f"each; {path.stat().st_size:,} bytes"
    )


def _check_output(path: pathlib.Path) -> None:
    """Checks in advance that vectors can be written to a file."""
    if path.suffix not in vectors.SUFFIXES:
        raise InvalidInputError(
            f"--output={path} must end in {' or '.join(vectors.SUFFIXES)}, which "
            "decides the format."
        )
    vectors.check_output(path)


if __name__ == "__main__":
    program.run(main, Config())
