"""The steps of Partial FC by the number of classes n and the rate r.

    ./run.sh python -m experiments.partial_fc.scale

trains the small CNN on 28x28 images with W in shards on 8 logical devices of the CPU, d
= 64, mini-batches of 64, for n from 1e4 to 1e7 and r of 1 (the model-parallel full
softmax), 0.3, 0.1 and 0.01: steps, peak memory, and the share of a step spent on
sampling. Images are noise and classes are uniform, without effect on the speed. Every
case is a separate process, one after the other.

Prints a table and writes partial_fc.csv and partial_fc.md. About 10 minutes on 2 quiet
cores; ten million classes need 8 GiB of memory.
"""

import collections
import dataclasses
import itertools
import os
import statistics
import time

import numpy as np
import pandas as pd

from experiments.benchmarks import measured
from experiments.common import config, program
from tff_fedss import algorithms, losses, models, runtime

_IMAGE_SHAPE = (28, 28, 1)


@dataclasses.dataclass(frozen=True)
class Case:
    """A case, measured in one process: n, r, and the mini-batch of all devices."""

    num_classes: int
    sample_rate: float
    num_devices: int = 8
    batch_size: int = 64
    embedding_dim: int = 64


@dataclasses.dataclass(frozen=True)
class Config(measured.Config):
    """The flags of the program."""

    repeats: int = config.flag(
        5, "Steps of each case that count, after the first.", low=1
    )
    num_classes: tuple[int, ...] = config.flag(
        (10_000, 100_000, 1_000_000, 10_000_000), "n.", low=1
    )
    sample_rates: tuple[float, ...] = config.flag(
        (1.0, 0.3, 0.1, 0.01), "r, with each n.", low=1e-9, high=1.0
    )


def main(config: Config) -> None:
    """Measures, prints and writes."""
    folder, rows = config.folder(), []
    for n, rate in itertools.product(config.num_classes, config.sample_rates):
        case = Case(n, rate)
        with measured.process() as worker:
            rows.append(worker.submit(_measure, case, config.repeats).result())
        print(f"{case}: {rows[-1]['seconds']:.3f} s a step", flush=True)
        measured.write(folder, "partial_fc", with_ratios(pd.DataFrame(rows)), _text())
    measured.show(folder, "partial_fc")


def _measure(case: Case, repeats: int) -> dict[str, float]:
    """Trains, in the process of a case."""
    mesh = runtime.local_mesh(case.num_devices)
    begin = time.perf_counter()
    algorithm = algorithms.PartialFC(
        models.ImageEncoder(models.small_cnn(_IMAGE_SHAPE, case.embedding_dim)),
        case.num_classes,
        case.embedding_dim,
        mesh,
        margin=losses.Margin("none", 30.0),
        sample_rate=case.sample_rate,
        num_strata=case.num_devices,
    )
    build_seconds = time.perf_counter() - begin
    rng = np.random.default_rng(0)
    seconds, sums = [], collections.Counter()
    for step in range(repeats + 1):
        images = rng.integers(0, 256, (case.batch_size, *_IMAGE_SHAPE), np.uint8)
        labels = rng.integers(0, case.num_classes, case.batch_size, np.int32)
        start = time.perf_counter()
        sums.update(algorithm.update(images, labels))
        seconds.append(time.perf_counter() - start)
        if not np.isfinite(sums["loss"]):
            raise RuntimeError(f"the loss of step {step} is not finite")
    start = time.perf_counter()
    algorithm.draw_sample(labels)
    sampling_seconds = time.perf_counter() - start
    first, *counted = seconds
    median = statistics.median(counted)
    return {
        **dataclasses.asdict(case),
        "seconds": median,
        "seconds_min": min(counted),
        "seconds_max": max(counted),
        "examples_per_second": case.batch_size / median,
        "classes_per_step": algorithm.round_metrics(sums)["classes_per_step"],
        "sampling_seconds": sampling_seconds,
        "build_seconds": build_seconds,
        "first_seconds": first,
        "w_and_momentum_mib": 8 * case.num_classes * case.embedding_dim / 2**20,
        "peak_mib": measured.memory_bytes("VmHWM") / 2**20,
    }


def with_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds the time of r = 1 relative to the row (of_full), and W's peak memory."""
    full = rows[rows.sample_rate == 1].set_index("num_classes").seconds
    return rows.assign(
        of_full=rows.num_classes.map(full) / rows.seconds,
        peak_over_w_and_momentum=rows.peak_mib / rows.w_and_momentum_mib,
    )


def _text() -> str:
    return (
        "# Steps of Partial FC\n\n"
        f"The small CNN at 28x28, logical devices on {os.cpu_count()} CPU cores, SGD "
        "with momentum; medians. of_full: the seconds of r = 1 over those of the row. "
        "Peak: of the process, TensorFlow included."
    )


if __name__ == "__main__":
    program.run(main, Config())
