"""Reading photographs: the images of all clients, round after round.

    ./run.sh python -m experiments.benchmarks.reading

makes JPEGs of 500x375 pixels, a share of them for each of 10 clients, and reads every
client's images three times, as three rounds do: resized and kept by the cache, and
resized each time, as without a writable cache. Prints images per second of processor
time, and writes reading.csv and reading.md. Two minutes on 2 cores.
"""

import dataclasses
import io
import os
import pathlib
import tempfile
import time

import numpy as np
import pandas as pd
from PIL import Image, ImageFilter

from experiments.benchmarks import measured
from experiments.common import config, program
from tff_fedss.datasets import images
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.datasets.federated.partitioners import Iid

_NUM_CLIENTS, _ROUNDS = 10, 3


@dataclasses.dataclass(frozen=True)
class Config(measured.Config):
    """The flags of the program."""

    image_size: int = config.flag(96, "Height and width of the model's images.", low=1)
    num_images: int = config.flag(1000, "Images of all clients.", low=20)


def main(config: Config) -> None:
    """Measures, prints and writes."""
    folder, rows = config.folder(), []
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(temporary)
        size = _write_images(root / "data", config.num_images)
        (root / "not_a_folder").touch()
        for cache in ("cache", "not_a_folder"):
            os.environ["TFF_FEDSS_CACHE"] = str(root / cache)
            dataset = images.load_folder(
                root / "data", partition=Iid(_NUM_CLIENTS), image_size=config.image_size
            )
            speeds = [_images_per_second(dataset, k) for k in range(_ROUNDS)]
            kind = "kept" if cache == "cache" else "resized each time"
            rows.append({"images": kind} | dict(enumerate(speeds, start=1)))
    text = (
        "# Reading photographs\n\n"
        f"JPEGs of 500x375 pixels and {size / 1000:.0f} kB each, to "
        f"{config.image_size} pixels: images per second of processor time in rounds "
        f"1 to {_ROUNDS}."
    )
    measured.write(folder, "reading", pd.DataFrame(rows), text)
    measured.show(folder, "reading")


def _write_images(folder: pathlib.Path, count: int) -> float:
    """Writes JPEGs that compress like photographs; returns their mean size in bytes."""
    rng = np.random.default_rng(0)
    sizes = []
    for number in range(count):
        noise = Image.fromarray(rng.integers(0, 256, (375, 500, 3), np.uint8))
        coarse = noise.resize((25, 19)).resize(noise.size, Image.Resampling.BICUBIC)
        fine = noise.filter(ImageFilter.GaussianBlur(1.0))
        content = io.BytesIO()
        Image.blend(coarse, fine, 0.5).save(content, "JPEG", quality=90)
        path = folder / str(number % 2) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.getvalue())
        sizes.append(len(content.getvalue()))
    return float(np.mean(sizes))


def _images_per_second(dataset: FederatedDataset, round_num: int) -> float:
    begun, count = time.process_time(), 0
    for client_id in dataset.train.client_ids:
        seed = np.array([round_num, 0], np.int32)
        batches = dataset.client_examples(client_id, seed).batch(32)
        count += sum(len(batch["label"]) for batch in batches.as_numpy_iterator())
    return count / (time.process_time() - begun)


if __name__ == "__main__":
    program.run(main, Config())
