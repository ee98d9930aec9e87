"""Miniatures of ImageNet-21k's archives, in their layout and with their file names."""

import pathlib
from collections.abc import Mapping

import numpy as np
from PIL import Image

from tests.datasets.images import own_images

Classes = Mapping[str, Mapping[str, bytes]]


def jpeg(rng: np.random.Generator, mode: str = "RGB") -> bytes:
    """Returns a small JPEG of one random color, other bytes for other draws."""
    num_channels = len(Image.new(mode, (1, 1)).getbands())
    color = tuple(rng.integers(0, 256, num_channels).tolist())
    image = Image.new(mode, (40, 30), color if num_channels > 1 else color[0])
    return own_images.encoded(image, "JPEG")


def classes(num_images: list[int]) -> dict[str, dict[str, bytes]]:
    """Draws classes of some numbers of images: wnid -> name -> image; wnids ascend."""
    rng = np.random.default_rng(0)
    result = {}
    for i, count in enumerate(num_images):
        wnid = f"n{1440764 + 37 * i:08}"
        # The numbers of ImageNet's files have gaps and no leading zeros.
        numbers = np.sort(rng.choice(20 * count + 20, count, replace=False))
        result[wnid] = {f"{wnid}_{number}.JPEG": jpeg(rng) for number in numbers}
    return result


def class_tars(images: Classes) -> dict[str, bytes]:
    """Makes the tar of every class: `<wnid>.tar` -> content."""
    return {f"{wnid}.tar": own_images.tar(members) for wnid, members in images.items()}


def write_folder(path: pathlib.Path, images: Classes) -> pathlib.Path:
    """Writes a folder of class tars."""
    return own_images.write(path, class_tars(images))


def write_fall11(path: pathlib.Path, images: Classes) -> pathlib.Path:
    """Writes `fall11_whole.tar` into a folder: class tars at its top."""
    return own_images.write(path / "fall11_whole.tar", class_tars(images))


def write_winter21(path: pathlib.Path, images: Classes) -> pathlib.Path:
    """Writes `winter21_whole.tar.gz` into a folder: class tars below a folder."""
    tars = {f"winter21_whole/{name}": c for name, c in class_tars(images).items()}
    return own_images.write(path / "winter21_whole.tar.gz", tars)
