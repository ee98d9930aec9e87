"""Memory that a client leaks: the growth over many rounds of tiny clients.

    ./run.sh python -m experiments.benchmarks.memory

runs 2,000 FedSS rounds of 64 clients (8 images of 8x8 pixels, n = 500, phi of one
layer) in each runtime, in separate processes, one after another. The resident memory of
the process, and of a cluster's actor, is read after each round; a line is fitted to the
last three quarters. Prints a table and writes memory.csv and memory.md. About 10
minutes a runtime on 2 cores.
"""

import dataclasses

import numpy as np
import pandas as pd
import tensorflow as tf
import tensorflow_federated as tff

from experiments.benchmarks import measured
from experiments.common import config, program
from tff_fedss import algorithms, progress, runtime, tasks, training
from tff_fedss.datasets.federated.dataset import FederatedDataset

_RUNTIMES = ("in_process", "cluster", "native")
_NUM_CLIENTS, _COHORT_SIZE, _NUM_IMAGES, _NUM_CLASSES = 640, 64, 8, 500


@dataclasses.dataclass(frozen=True)
class Config(measured.Config):
    """The flags of the program."""

    runtimes: tuple[str, ...] = config.flag(
        _RUNTIMES, "The runtimes.", choices=_RUNTIMES
    )
    rounds: int = config.flag(
        2000, "Rounds in each runtime; the first quarter is not counted.", low=8
    )


def main(config: Config) -> None:
    """Measures, prints and writes."""
    folder, rows = config.folder(), []
    for name in config.runtimes:
        with measured.process() as worker:
            by_process = worker.submit(_measure, name, config.rounds).result()
        for process, resident in by_process.items():
            rows.append(
                {
                    "runtime": name,
                    "process": process,
                    "rounds": config.rounds,
                    "bytes_a_client": bytes_a_client(resident, _COHORT_SIZE),
                    "resident_mib": resident[-1] / 2**20,
                }
            )
    measured.write(folder, "memory", pd.DataFrame(rows), "# Memory by client")
    measured.show(folder, "memory")


def bytes_a_client(resident: list[int], cohort_size: int) -> float:
    """Returns the growth of a process's memory by client.

    Args:
        resident: Its bytes after each round.
        cohort_size: Clients in a round.

    Returns:
        The slope of the least-squares line through all rounds but the first quarter, in
        which the allocator finds its size.
    """
    later = np.array(resident[len(resident) // 4 :])
    return np.polyfit(np.arange(len(later)), later, 1)[0] / cohort_size


def _measure(name: str, rounds: int) -> dict[str, list[int]]:
    """Returns the resident bytes after each round, by process."""
    context = {
        "in_process": runtime.set_in_process_context,
        "native": runtime.set_native_context,
        "cluster": lambda: runtime.set_cluster_context("local", num_actors=1),
    }[name]()
    run = _run()
    resident: dict[str, list[int]] = {"driver": []}
    if name == "cluster":
        resident["actor"] = []
    for _ in progress.bar(name, unit="rounds", items=range(rounds)):
        run.run_round()
        for process, found in resident.items():
            pid = context.actor_pids[0] if process == "actor" else "self"
            found.append(measured.memory_bytes("VmRSS", pid))
    return resident


def _run() -> training.FederatedRun:
    rng = np.random.default_rng(0)
    arrays = {
        f"client_{k}": (
            rng.integers(0, 256, (_NUM_IMAGES, 8, 8, 1), np.uint8),
            rng.integers(0, _NUM_CLASSES, _NUM_IMAGES, np.int32),
        )
        for k in range(_NUM_CLIENTS)
    }
    dataset = FederatedDataset.from_arrays(
        arrays, arrays["client_0"], num_classes=_NUM_CLASSES
    )
    process = algorithms.build_fedss(
        _feature_extractor,
        _NUM_CLASSES,
        algorithms.ClassSets(dataset.max_positives, num_negatives=5),
        algorithms.ClientTraining(tff.learning.optimizers.build_sgdm(0.1)),
    )
    task = tasks.Classification(dataset, _feature_extractor)
    return training.FederatedRun(
        "fedss", process, task, cohort_size=_COHORT_SIZE, seed=0
    )


def _feature_extractor() -> tf.keras.Model:
    images = tf.keras.Input([8, 8, 1])
    kernel = tf.keras.initializers.GlorotUniform(seed=0)
    dense = tf.keras.layers.Dense(16, kernel_initializer=kernel)
    return tf.keras.Model(images, dense(tf.keras.layers.Flatten()(images)))


if __name__ == "__main__":
    program.run(main, Config())
