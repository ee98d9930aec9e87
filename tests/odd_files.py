"""What may lie where a file is expected: pipes, sockets, devices, links, folders."""

import io
import os
import pathlib
import socket

import numpy as np
from PIL import Image


def _prepared(path: pathlib.Path) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def _pipe(path):
    os.mkfifo(_prepared(path))
    return "it is a named pipe"


def _socket(path):
    _prepared(path)
    # Its address has room for a hundred characters only, so from within the folder.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
    return "it is a socket"


def _device(path):
    _prepared(path).symlink_to("/dev/zero")
    return "it is a device"


def _folder(path):
    _prepared(path).mkdir()
    return "Is a directory"


def _loop(path):
    _prepared(path).symlink_to(path.name)
    return "Too many levels of symbolic links"


def _dangling(path):
    _prepared(path).symlink_to("nowhere")
    return "No such file"


# Each puts something that is no file in the place of one, and says what it is.
UNREADABLE = {
    "pipe": _pipe,
    "socket": _socket,
    "device": _device,
    "folder": _folder,
    "loop": _loop,
    "dangling": _dangling,
}


def encoded(size=(32, 32), mode="RGB", colour=0, file_format="PNG", **options) -> bytes:
    """The file of an image of one colour."""
    content = io.BytesIO()
    Image.new(mode, size, colour).save(content, file_format, **options)
    return content.getvalue()


def sixteen_bits(size=32) -> bytes:
    """The file of a grey PNG of 16 bits: 0 on the left, near 65,535 on the right."""
    row = np.linspace(0, 65_535, size).astype(np.uint16)
    content = io.BytesIO()
    Image.fromarray(np.tile(row, (size, 1))).save(content, "PNG")
    return content.getvalue()


def bomb() -> bytes:
    """The small file of an image that would take gigabytes."""
    return encoded((20_000, 20_000), "1")


# Images that decode, whatever one may think of them.
USABLE_IMAGES = {
    "16 bits": sixteen_bits(),
    "CMYK": encoded(mode="CMYK", file_format="JPEG"),
    "grey and alpha": encoded(mode="LA"),
    "RGBA": encoded(mode="RGBA"),
    "palette": encoded(mode="P"),
    "animated": encoded(
        save_all=True, append_images=[Image.new("RGB", (32, 32), 9)] * 2
    ),
    "another size": encoded((9, 7)),
    "one pixel": encoded((1, 1)),
}
# And files that are no image, or no whole one.
UNUSABLE_IMAGES = {
    "empty": (b"", "is empty"),
    "text": (b"<html>404", "is no whole JPEG"),
    "GIF": (encoded(mode="P", file_format="GIF"), "is no whole JPEG"),
    "cut JPEG": (encoded(file_format="JPEG")[:400], "is cut off or damaged"),
    "cut PNG": (encoded()[:60], "is cut off or damaged"),
    "PNG with another end": (
        encoded().replace(b"\0\0\0\0IEND", b"\0\0\0\1IEND"),
        "is cut off or damaged",
    ),
    "JPEG padded with zeros": (
        encoded(file_format="JPEG")[:-2] + bytes(100),
        "is cut off or damaged",
    ),
    "bomb": (bomb(), "could be decompression bomb"),
}
