"""Folders of small images of all kinds, as other people have them."""

import io
import pathlib
import tarfile
import zipfile
from collections.abc import Mapping

import numpy as np
from PIL import Image

from tff_fedss.datasets import sources


def picture(number: int, size: tuple[int, int] = (12, 10)) -> np.ndarray:
    """A picture of its own for each number, uint8[h, w, 3]."""
    return np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)


def encoded(pixels: np.ndarray | Image.Image, kind: str = "PNG", **options) -> bytes:
    """The content of a file."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write(path: pathlib.Path, contents: Mapping[str, bytes]) -> pathlib.Path:
    """Writes a folder, zip or tar, by the suffix; names that end in / are folders."""
    suffix = path.suffix.lower()[1:]
    path.parent.mkdir(parents=True, exist_ok=True)
    if suffix == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
    elif path.name.lower().endswith(sources.SUFFIXES):
        kind = {"tgz": "gz", "txz": "xz", "tbz2": "bz2", "tar": ""}.get(suffix, suffix)
        path.write_bytes(tar(contents, kind))
    else:
        for name, content in contents.items():
            is_folder = name.endswith("/")
            folder = path / name if is_folder else (path / name).parent
            folder.mkdir(parents=True, exist_ok=True)
            if not is_folder:
                (path / name).write_bytes(content)
    return path


def tar(contents: Mapping[str, bytes], kind: str = "") -> bytes:
    """The bytes of a tar, as GNU's program writes it, or of a compressed one."""
    buffer = io.BytesIO()
    with tarfile.open(None, f"w:{kind}", buffer, format=tarfile.GNU_FORMAT) as file:
        for name, content in contents.items():
            member = tarfile.TarInfo(name.rstrip("/"))
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Reads all files below a folder, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def images(*names: str, size: tuple[int, int] = (12, 10)) -> dict[str, bytes]:
    """A picture for each name."""
    return {name: encoded(picture(k, size)) for k, name in enumerate(names)}


def of_classes(
    root: pathlib.Path,
    *classes: str,
    count: int = 6,
    sides: tuple[int, ...] = (16,),
    first: int = 0,
) -> pathlib.Path:
    """Writes folders of classes, whose images have one of some sizes in turn.

    With another `first`, other images of the same classes.
    """
    contents = {}
    for k, name in enumerate(classes):
        for i in range(count):
            side = sides[i % len(sides)]
            pixels = picture(100 * k + first + i, (side, side)) // 2
            pixels[..., k % 3] += 120
            contents[f"{name}/{i}.png"] = encoded(pixels)
    return write(root, contents)
