"""Miniatures of the Stanford Online Products archive, in the layout of the original."""

import numpy as np
from PIL import Image

from tests.datasets.images import own_images

FOLDER = "Stanford_Online_Products"
SUPER_CLASSES = (
    "bicycle cabinet chair coffee_maker fan kettle lamp mug sofa stapler table toaster"
).split()
HEADER = "image_id class_id super_class_id path"


def made_up_products(sizes: list[int]) -> list[list[str]]:
    """Names of files in the real form, for products of given numbers of images."""
    return [
        [
            f"{SUPER_CLASSES[i % 12]}_final/{111085122871 + 7919 * i}_{j}.JPG"
            for j in range(size)
        ]
        for i, size in enumerate(sizes)
    ]


def listings(
    train: list[list[str]], test: list[list[str]]
) -> tuple[list[list], list[list]]:
    """The rows of Ebay_train.txt and Ebay_test.txt, from the paths of each product.

    Products and images are numbered as in the original: all training ones first.
    """
    rows = []
    for class_id, product in enumerate([*train, *test], 1):
        super_class = product[0].split("_final")[0]
        for path in product:
            super_class_id = SUPER_CLASSES.index(super_class) + 1
            rows.append([len(rows) + 1, class_id, super_class_id, path])
    num_train = sum(map(len, train))
    return rows[:num_train], rows[num_train:]


def text(rows: list[list]) -> bytes:
    """The content of Ebay_train.txt or Ebay_test.txt."""
    lines = [HEADER, *(" ".join(map(str, row)) for row in rows)]
    return "".join(f"{line}\n" for line in lines).encode()


def jpeg(image_id: int) -> bytes:
    """A JPEG of one color, and so of one size in bytes; see `color`."""
    image = Image.new("RGB", (40, 32), color(image_id))
    return own_images.encoded(image, "JPEG", quality=95)


def color(image_id: int) -> tuple[int, int, int]:
    """A color that tells images apart: no two of 1..512 are close to each other."""
    i = image_id - 1
    return tuple(int(step) * 32 + 8 for step in (i % 8, i // 8 % 8, i // 64 % 8))


def image_id_of(pixels: np.ndarray) -> int:
    """The image_id of an image made by `jpeg`, from its pixels uint8[h, w, 3]."""
    r, g, b = np.round((pixels.reshape(-1, 3).mean(0) - 8) / 32).astype(int)
    return int(1 + r + 8 * g + 64 * b)


def files(train_rows: list[list], test_rows: list[list]) -> dict[str, bytes]:
    """All files of an archive, by their paths in it."""
    contents = {
        "Ebay_train.txt": text(train_rows),
        "Ebay_test.txt": text(test_rows),
        "Ebay_info.txt": text([*train_rows, *test_rows]),
    }
    for image_id, _, _, path in [*train_rows, *test_rows]:
        contents[path] = jpeg(image_id)
    return {f"{FOLDER}/{path}": content for path, content in contents.items()}
