"""Folders of small images of all kinds, as other people have them."""

import io
import pathlib
import zipfile

import numpy as np
from PIL import Image


def picture(number: int, size: tuple[int, int] = (12, 10)) -> np.ndarray:
    """A picture of its own for each number, uint8[h, w, 3]."""
    return np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)


def encoded(pixels: np.ndarray | Image.Image, kind: str = "PNG", **options) -> bytes:
    """The content of a file."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write(root: pathlib.Path, contents: dict[str, bytes]) -> pathlib.Path:
    """Writes files below a folder."""
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def images(*names: str) -> dict[str, bytes]:
    """A picture for each name."""
    return {name: encoded(picture(k)) for k, name in enumerate(names)}


def of_classes(
    root: pathlib.Path, *classes: str, count: int = 6, sides: tuple[int, ...] = (16,)
) -> pathlib.Path:
    """Writes folders of classes, whose images have one of some sizes in turn."""
    contents = {}
    for k, name in enumerate(classes):
        for i in range(count):
            side = sides[i % len(sides)]
            pixels = picture(100 * k + i, (side, side)) // 2
            pixels[..., k % 3] += 120
            contents[f"{name}/{i}.png"] = encoded(pixels)
    return write(root, contents)


def zipped(path: pathlib.Path, contents: dict[str, bytes], **options) -> pathlib.Path:
    """Writes a zip."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path
