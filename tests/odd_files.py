"""Files of unusual images: some that decode, some that do not."""

import io

import numpy as np
from PIL import Image


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
