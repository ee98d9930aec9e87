"""A miniature of Landmarks-User-160k: the split's CSV files and a folder of jpgs."""

import csv
import dataclasses
import pathlib

import numpy as np
from PIL import Image

from data import prepare_landmarks
from tests.datasets.images import own_images
from tests.experiments import program_server

_ROWS = 5  # An image spells its number in stripes: black 0, white 1.
_STRIPE = 12  # pixels
_GREY_NUMBER = 4  # This image has one channel, as a few of the real ones do.


@dataclasses.dataclass
class Miniature:
    """What was written, and what is in it.

    Attributes:
        split_dir: The folder of federated_train.csv and test.csv.
        image_dir: The folder of `<image_id>.jpg`.
        clients: For each client, its image ids in the order of the file.
        test: The test images' ids, in the order of the file.
        classes: The class of each image id.
        numbers: The number that each image shows.
    """

    split_dir: pathlib.Path
    image_dir: pathlib.Path
    clients: dict[str, list[str]]
    test: list[str]
    classes: dict[str, int]
    numbers: dict[str, int]

    def encoded(self, image_id: str) -> bytes:
        return (self.image_dir / f"{image_id}.jpg").read_bytes()


def jpeg(number: int) -> bytes:
    """A JPEG of 60 rows of pixels, more in other directions, that shows a number."""
    stripes = np.array([number >> row & 1 for row in range(_ROWS)], np.uint8) * 255
    width = 40 + number
    pixels = np.broadcast_to(stripes.repeat(_STRIPE)[:, None], (_ROWS * _STRIPE, width))
    image = Image.fromarray(np.ascontiguousarray(pixels))
    mode = "L" if number == _GREY_NUMBER else "RGB"
    return own_images.encoded(image.convert(mode), "JPEG")


def number_of(pixels: np.ndarray) -> int:
    """Reads the number off an image, uint8[h, w, 3] of any size."""
    assert pixels.dtype == np.uint8 and pixels.shape[2] == 3
    height = pixels.shape[0]
    middles = [height * (2 * row + 1) // (2 * _ROWS) for row in range(_ROWS)]
    means = pixels[middles].mean(axis=(1, 2))
    assert np.all((means < 40) | (means > 215)), means
    return sum(int(mean > 128) << row for row, mean in enumerate(means))


def make(folder: pathlib.Path) -> Miniature:
    """Writes 3 clients with 5, 3 and 4 images and 6 test images.

    The clients' rows are interleaved in federated_train.csv, as nothing says that they
    are not in the real one.
    """
    split_dir, image_dir = folder / "landmarks-user-160k", folder / "images"
    split_dir.mkdir(parents=True)
    image_dir.mkdir()
    owners = [*("7", "12", "101") * 3, "7", "101", "7", *["test"] * 6]
    clients, test, classes, numbers = {}, [], {}, {}
    train_rows, test_rows = [("user_id", "image_id", "class")], [("image_id", "class")]
    for number, owner in enumerate(owners):
        image_id = f"{(number + 3) * 0x9E3779B97F4A7C15 % 2**64:016x}"
        label = number * 3 % 7
        classes[image_id], numbers[image_id] = label, number
        (image_dir / f"{image_id}.jpg").write_bytes(jpeg(number))
        if owner == "test":
            test.append(image_id)
            test_rows.append((image_id, label))
        else:
            clients.setdefault(owner, []).append(image_id)
            train_rows.append((owner, image_id, label))
    write_csv(split_dir / "federated_train.csv", train_rows)
    write_csv(split_dir / "test.csv", test_rows)
    return Miniature(split_dir, image_dir, clients, test, classes, numbers)


def prepare(miniature: Miniature, output_dir: pathlib.Path, *flags: str) -> int:
    """Runs `data.prepare_landmarks` in this process and returns its exit code."""
    flags = (*preparation_flags(miniature, output_dir), *flags)
    return program_server.run_here(prepare_landmarks, *flags)


def preparation_flags(
    miniature: Miniature, output_dir: pathlib.Path
) -> tuple[str, ...]:
    return (
        f"--split_dir={miniature.split_dir}",
        f"--image_dir={miniature.image_dir}",
        f"--output_dir={output_dir}",
        "--allow_other_split",
    )


def write_csv(path: pathlib.Path, rows) -> None:
    with path.open("w", newline="") as lines:
        csv.writer(lines, lineterminator="\n").writerows(rows)
