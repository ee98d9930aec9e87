"""Measures how the memory of a training grows with its rounds.

    ./run.sh python -m experiments.benchmarks.memory --rounds=1000

runs FedSS rounds of a small network, each over new data sets of 8 clients, and prints
the memory of this process every tenth of them. A runtime that keeps something of every
round shows as a slope; allocators take a few hundred rounds to find their size.

Prints a table and writes memory.csv. A few minutes on 2 cores.
"""

import dataclasses
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.common import config, output_files, program
from tff_fedss import runtime
from tff_fedss.algorithms import fedss


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    output_dir: str = config.flag("results/benchmarks", "Where to write memory.csv.")
    rounds: int = config.flag(1000, "How many rounds.", low=20)
    runtime: str = config.flag(
        "in_process", "What runs them.", choices=("in_process", "native")
    )


_NUM_CLIENTS, _NUM_IMAGES, _NUM_CLASSES, _EMBEDDING_DIM = 8, 32, 5000, 16
_IMAGE_SHAPE = (8, 8, 1)


def main(config: Config) -> None:
    """Measures and prints."""
    if config.runtime == "in_process":
        runtime.set_in_process_context(clients_per_device=2)
    process = fedss.build_fedss(
        _feature_extractor,
        _NUM_CLASSES,
        10,
        num_negatives=20,
        client_optimizer=tff.learning.optimizers.build_sgdm(0.01),
        batch_size=16,
    )
    state = process.initialize()
    rng = np.random.default_rng(0)
    rows = []
    for round_num in range(1, config.rounds + 1):
        state, _ = process.next(state, [_client(rng) for _ in range(_NUM_CLIENTS)])
        if round_num % (config.rounds // 10) == 0:
            rows.append({"round": round_num, "mib": _resident_bytes() / 2**20})
            print(f"round {round_num:6d}  {rows[-1]['mib']:8.1f} MiB", flush=True)
    half = rows[len(rows) // 2 :]
    slope = np.polyfit([r["round"] for r in half], [r["mib"] for r in half], 1)[0]
    print(f"{config.runtime}: {1024 * slope:.2f} KiB a round over the second half.")
    output_dir = output_files.create_folder(config.output_dir)
    output_files.write_csv(output_dir / "memory.csv", rows)


def _feature_extractor() -> tf.keras.Model:
    images = tf.keras.Input(_IMAGE_SHAPE)
    x = tf.keras.layers.Conv2D(8, 3, activation="relu")(images)
    x = tf.keras.layers.Dense(_EMBEDDING_DIM)(tf.keras.layers.Flatten()(x))
    return tf.keras.Model(images, x)


def _client(rng: np.random.Generator) -> dict:
    classes = rng.choice(_NUM_CLASSES, 10, replace=False)
    data = {
        "image": rng.integers(0, 256, (_NUM_IMAGES, *_IMAGE_SHAPE), np.uint8),
        "label": rng.choice(classes, _NUM_IMAGES).astype(np.int32),
    }
    return {
        "data": tf.data.Dataset.from_tensor_slices(data),
        "seed": rng.integers(0, 2**31 - 1, 2).astype(np.int32),
    }


def _resident_bytes() -> int:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    program.run(main, Config())
