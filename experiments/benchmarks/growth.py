"""The growth of a round with the number of classes, with d and with the cohort.

    ./run.sh python -m experiments.benchmarks.growth

runs rounds of FedSS with training (the small CNN at 28x28; clients of 96 images, 90
positives, 80 sampled negatives; in-process runtime): for n from 2 k to 10 M at d = 64,
from 2 k to 200 k at d = 1280 (where W of a million classes and its momentum would need
more than 20 GB), and for K from 8 to 2,000. FullSoftmax is measured beside it up to
200 k classes. Every case is a separate process, which waits while another runs; they
take turns, so that other load affects all.

Prints tables and writes growth.csv and growth.md. About 35 minutes on 2 quiet cores, up
to 20 GB of memory at a time.
"""

import contextlib
import dataclasses
import functools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf
import tensorflow_federated as tff

from experiments.benchmarks import measured
from experiments.common import config, program
from tff_fedss import algorithms, metrics, models, runtime

_IMAGE_SHAPE = (28, 28, 1)
_NUM_IMAGES, _BATCH_SIZE = 96, 32
_NUM_POSITIVES, _NUM_NEGATIVES = 90, 80


@dataclasses.dataclass(frozen=True)
class Case:
    """A case, measured in one process: a method, n, d and K."""

    method: str = "fedss"
    num_classes: int = 20_000
    embedding_dim: int = 64
    cohort_size: int = 64


_SERIES = {
    "n_d64": [
        Case(num_classes=n) for n in (2_000, 20_000, 200_000, 1_000_000, 10_000_000)
    ],
    "n_d1280": [
        Case(num_classes=n, embedding_dim=1280) for n in (2_000, 20_000, 200_000)
    ],
    "cohort": [Case(cohort_size=k) for k in (8, 32, 128, 512, 2_000)],
    "full_softmax": [
        Case("full_softmax", num_classes=n) for n in (2_000, 20_000, 200_000)
    ],
}


@dataclasses.dataclass(frozen=True)
class Config(measured.Config):
    """The flags of the program."""

    repeats: int = config.flag(
        5, "Rounds of each case that count, after the first two.", low=1
    )


def main(config: Config) -> None:
    """Measures, prints and writes."""
    folder, rows = config.folder(), []
    for name, cases in _SERIES.items():
        rows += [{"series": name, **row} for row in _measure(cases, config.repeats)]
        table = with_ratios(pd.DataFrame(rows))
        measured.write(folder, "growth", table, _text(config.repeats))
    measured.show(folder, "growth")


def _measure(cases: Sequence[Case], repeats: int) -> list[dict[str, Any]]:
    """Runs cases in turns."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(measured.process()) for _ in cases]
        reports = [
            worker.submit(_start, case).result()
            for worker, case in zip(workers, cases, strict=True)
        ]
        seconds = np.transpose(
            [
                [worker.submit(_round).result() for worker in workers]
                for _ in range(repeats)
            ]
        )
        peaks = [
            worker.submit(measured.memory_bytes, "VmHWM").result() for worker in workers
        ]
    rows = []
    for case, report, peak, times in zip(cases, reports, peaks, seconds, strict=True):
        median = statistics.median(times)
        rows.append(
            {
                **dataclasses.asdict(case),
                "seconds": median,
                "seconds_min": min(times),
                "seconds_max": max(times),
                "images_per_second": case.cohort_size * _NUM_IMAGES / median,
                "classifier_mib": 4 * case.num_classes * case.embedding_dim / 2**20,
                "peak_mib": peak / 2**20,
                **report,
            }
        )
        print(f"  {case}: {median:.2f} s a round", flush=True)
    return rows


# Does a round of this process's case; returns its seconds and its metrics.
_next_round: Callable[[], tuple[float, Mapping[str, Any]]]


def _start(case: Case) -> dict[str, float]:
    """Begins to train a case; returns the costs of its building and first round."""
    global _next_round
    runtime.use_one_thread_per_operation()
    runtime.set_in_process_context(clients_per_device=len(os.sched_getaffinity(0)))
    clients = _clients(case)
    start = time.perf_counter()
    process = _process(case)
    state = process.initialize()
    build_seconds = time.perf_counter() - start

    def next_round() -> tuple[float, Mapping[str, Any]]:
        nonlocal state
        start = time.perf_counter()
        state, of_round = process.next(state, clients)
        return time.perf_counter() - start, of_round

    _next_round = next_round
    first_seconds, of_round = next_round()
    next_round()
    traffic = metrics.classifier_traffic(
        float(of_round["classes_per_client"]),
        case.embedding_dim,
        metrics.Protocol(asks_by_id=case.method == "fedss"),
    )
    return {
        "build_seconds": build_seconds,
        "first_seconds": first_seconds,
        "bytes_down": traffic.bytes_down,
        "bytes_up": traffic.bytes_up,
    }


def _round() -> float:
    return _next_round()[0]


def _process(case: Case) -> tff.learning.templates.LearningProcess:
    num_negatives = _NUM_NEGATIVES if case.method == "fedss" else 0
    return algorithms.build_fedss(
        functools.partial(models.small_cnn, _IMAGE_SHAPE, case.embedding_dim),
        case.num_classes,
        algorithms.ClassSets(_NUM_POSITIVES, num_negatives),
        algorithms.ClientTraining(
            tff.learning.optimizers.build_sgdm(0.01), _BATCH_SIZE
        ),
        method=case.method,
    )


def _clients(case: Case) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(case.cohort_size):
        classes = rng.choice(case.num_classes, _NUM_POSITIVES, replace=False)
        data = {
            "image": rng.integers(0, 256, (_NUM_IMAGES, *_IMAGE_SHAPE), np.uint8),
            "label": np.resize(classes, _NUM_IMAGES).astype(np.int32),
        }
        clients.append(
            {
                "data": tf.data.Dataset.from_tensor_slices(data),
                "seed": rng.integers(0, 2**31 - 1, 2).astype(np.int32),
            }
        )
    return clients


def with_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds ratios of each row to the first row of its series.

    Returns:
        The rows with of_first (seconds), first_round (over the median) and
        memory_over_w: the memory beyond that of the first row, in bytes of W beyond
        the W of the first row.
    """
    columns = ["seconds", "classifier_mib", "peak_mib"]
    first = rows.groupby("series")[columns].transform("first")
    larger = rows.classifier_mib - first.classifier_mib
    return rows.assign(
        of_first=rows.seconds / first.seconds,
        first_round=rows.first_seconds / rows.seconds,
        memory_over_w=(rows.peak_mib - first.peak_mib) / larger.where(larger > 0),
    )


def _text(repeats: int) -> str:
    return (
        "# Growth of a round\n\n"
        "FedSS in the in-process runtime, training included: the small CNN at 28x28, "
        f"{_NUM_IMAGES} images a client, batches of {_BATCH_SIZE}, {_NUM_POSITIVES} "
        f"positives and {_NUM_NEGATIVES} sampled negatives. Medians of {repeats} "
        "rounds, the cases of a series in turns, on "
        f"{len(os.sched_getaffinity(0))} CPU cores. of_first: seconds over "
        "those of the series' first row; first_round: its seconds over the median; "
        "memory_over_w: memory at the peak beyond that of the first row, in bytes of "
        "W. Bytes are those of the classifier, per client and round."
    )


if __name__ == "__main__":
    program.run(main, Config())
