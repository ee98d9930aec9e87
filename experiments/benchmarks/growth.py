"""Measures how a round grows with the number of classes, with d and with the cohort.

    ./run.sh python -m experiments.benchmarks.growth

runs rounds of FedSS with training (the small CNN at 28x28; clients of 96 images, 90
positives, 80 sampled negatives; in-process runtime): for n from 2 k to 1 M at d = 64,
from 2 k to 200 k at d = 1280 (where W of a million classes and its momentum would need
more than 20 GB), and for K from 8 to 128. FullSoftmax stands beside it up to 200 k
classes. Every case is a process of its own, which waits while another is at work; they
take turns, so that other load meets all of them.

`--series=memoised,...` runs rounds of FedSS at a million classes, with and without what
hides requests, rare rows or, by noise on all of W, clients (docs/privacy.md), K = 8, in
turns, two processes at a time:

    ./run.sh python -m experiments.benchmarks.growth --output_dir=results/defences
        --series=memoised,randomized_response,pool,secure,union,all,dp_gaussian,dp_ftrl

Prints tables and writes growth.csv, growth.md and growth.png. About 15 minutes on 2
quiet cores, up to 10 GB of memory at a time.
"""

import dataclasses
import functools
import itertools
import multiprocessing
import os
import pathlib
import statistics
import time
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.benchmarks import peak_memory
from experiments.common import config, output_files, plots, program
from experiments.common.table import as_markdown
from tff_fedss import algorithms, class_set_defences, metrics, models, runtime
from tff_fedss.algorithms import aggregation, exchange, user_level_dp

_IMAGE_SHAPE = (28, 28, 1)
_NUM_IMAGES, _BATCH_SIZE = 96, 32
_NUM_POSITIVES, _NUM_NEGATIVES = 90, 80
# Of what is compared with and without something that hides.
_LARGE_N, _SMALL_K = 1_000_000, 8


@dataclasses.dataclass(frozen=True)
class Case:
    """What is measured in one process.

    Attributes:
        method: "fedss" or "full_softmax".
        num_classes: n.
        embedding_dim: d.
        cohort_size: K.
        defence: Of `_DEFENCES`; "" is none.
    """

    method: str = "fedss"
    num_classes: int = 20_000
    embedding_dim: int = 64
    cohort_size: int = 64
    defence: str = ""

    @property
    def classifier_mib(self) -> float:
        """The size of W."""
        return 4 * self.num_classes * self.embedding_dim / 2**20


_CASES = {
    "n_d64": [Case(num_classes=n) for n in (2_000, 20_000, 200_000, 1_000_000)],
    "n_d1280": [
        Case(num_classes=n, embedding_dim=1280) for n in (2_000, 20_000, 200_000)
    ],
    "cohort": [Case(cohort_size=k) for k in (8, 16, 32, 64, 128)],
    "full_softmax": [
        Case("full_softmax", num_classes=n) for n in (2_000, 20_000, 200_000)
    ],
}


def _private(**kwargs: Any) -> dict[str, Any]:
    """User-level DP with dense noise, at the size of `_BY_DEFENCE`."""
    return {
        "joint_aggregator": user_level_dp.PrivateMeanFactory(
            num_classes=_LARGE_N,
            clients_per_round=_SMALL_K,
            noise_multiplier=0.01,
            clip=1.0,
            seed=0,
            **kwargs,
        ),
        "client_weighting": "uniform",
    }


# Arguments of `class_set_defences.builder`, of `ClassSets` or of `ServerUpdate`.
_DEFENCES = {
    "memoised": {},
    # With m / n so small, less would ask for hardly any class: p is 0.93 here.
    "randomized_response": {"epsilon": 12.0},
    "pool": {"pool_size": 3 * _NUM_NEGATIVES},
    "secure": {"rows_aggregator": aggregation.SparseRowsFactory(2)},
    "union": {"requests": "union"},
    "all": {"requests": "all"},
    "dp_gaussian": _private(),
    # Three nodes of the size of phi and W are kept; more rounds need more.
    "dp_ftrl": _private(restart_every=8),
}
_BY_DEFENCE = {
    name: [
        Case(num_classes=_LARGE_N, cohort_size=_SMALL_K, defence=defence)
        for defence in ("", name)
    ]
    for name in _DEFENCES
}


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    output_dir: str = config.flag(
        "results/benchmarks", "Where growth.csv, .md and .png go."
    )
    repeats: int = config.flag(
        5, "Rounds of each case that count, after the first two.", low=1
    )
    series: tuple[str, ...] = config.flag(
        tuple(_CASES),
        "What to vary: n at d = 64 or at d = 1280, K, or n of FullSoftmax; or what the "
        "server sees, at a million classes.",
        choices=(*_CASES, *_BY_DEFENCE),
    )


def main(config: Config) -> None:
    """Runs the program as the flags say."""
    measure(config.series, config.repeats, config.output_dir)


def measure(all_series: Sequence[str], repeats: int, folder: str) -> None:
    """Measures, prints and writes.

    Args:
        all_series: What to vary, of `_CASES` and `_BY_DEFENCE`.
        repeats: Rounds of each case that count.
        folder: Where the files go.
    """
    output_dir = output_files.create_folder(folder)
    rows: list[dict[str, Any]] = []
    for series in all_series:
        print(f"{series}:", flush=True)
        rows += _measure(series, (_CASES | _BY_DEFENCE)[series], repeats)
        output_files.write_csv(output_dir / "growth.csv", rows)
        text = _as_markdown(rows, repeats)
        output_files.write_text(output_dir / "growth.md", text)
        _plot(rows, output_dir / "growth.png")
    print(f"\n{text}\nWritten to {output_dir}/growth.csv, .md and .png")


def _measure(series: str, cases: list[Case], repeats: int) -> list[dict[str, Any]]:
    """Runs the cases of a series, in turns."""
    # Not forked: TensorFlow's threads would not be there.
    context = multiprocessing.get_context("spawn")
    ours, theirs, processes = [], [], []
    for case in cases:
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(case, there), daemon=True)
        process.start()
        there.close()
        ours.append(case)
        theirs.append(here)
        processes.append(process)
    rows = []
    try:
        reports = [_ask(pipe, "start") for pipe in theirs]
        seconds: list[list[float]] = [[] for _ in cases]
        for _ in range(repeats):
            for times, pipe in zip(seconds, theirs, strict=True):
                times.append(_ask(pipe, "round"))
        for case, pipe, report, times in zip(
            ours, theirs, reports, seconds, strict=True
        ):
            median = statistics.median(times)
            rows.append(
                {
                    "series": series,
                    **dataclasses.asdict(case),
                    "classifier_mib": case.classifier_mib,
                    "seconds": median,
                    "seconds_min": min(times),
                    "seconds_max": max(times),
                    "images_per_second": case.cohort_size * _NUM_IMAGES / median,
                    "build_seconds": report["build"],
                    "first_seconds": report["first"],
                    "peak_mib": _ask(pipe, "peak"),
                    "bytes_down": report["bytes_down"],
                    "bytes_up": report["bytes_up"],
                }
            )
            print(
                f"  {_title(case.method, case.defence)} n={case.num_classes:,} "
                f"d={case.embedding_dim} K={case.cohort_size}: {median:.2f} s a round",
                flush=True,
            )
    finally:
        for process in processes:
            process.kill()
            process.join()
    return rows


def _ask(pipe: connection.Connection, question: str) -> Any:
    pipe.send(question)
    try:
        return pipe.recv()
    except EOFError as error:
        raise RuntimeError(
            "The process of a case has died (out of memory?); its message is above."
        ) from error


def _serve(case: Case, pipe: connection.Connection) -> None:
    """Answers questions about a case: the other side of `_ask`."""
    runtime.set_in_process_context(clients_per_device=len(os.sched_getaffinity(0)))
    clients = _clients(case)
    state = process = None
    while True:
        question = pipe.recv()
        begin = time.perf_counter()
        if question == "start":
            process = _process(case)
            state = process.initialize()
            built = time.perf_counter()
            state, round_metrics = process.next(state, clients)
            first = time.perf_counter() - built
            state, _ = process.next(state, clients)
            is_known = case.defence in exchange.REQUESTS
            protocol = metrics.Protocol(
                asks_by_id=case.method == "fedss",
                requests=case.defence if is_known else "sampled",
                aggregation="secure" if case.defence == "secure" else "plain",
                threshold=2 if case.defence == "secure" else 1,
            )
            traffic = metrics.classifier_traffic(
                float(round_metrics["classes_per_client"]),
                case.embedding_dim,
                protocol=protocol,
                rows_per_client=float(round_metrics["rows_per_client"]),
            )
            pipe.send(
                {
                    "build": built - begin,
                    "first": first,
                    "bytes_down": traffic.bytes_down,
                    "bytes_up": traffic.bytes_up,
                }
            )
        elif question == "round":
            state, _ = process.next(state, clients)
            pipe.send(time.perf_counter() - begin)
        else:
            pipe.send(peak_memory.peak_bytes() / 2**20)


def _process(case: Case) -> tff.learning.templates.LearningProcess:
    options = _DEFENCES.get(case.defence, {})
    num_negatives = _NUM_NEGATIVES if case.method == "fedss" else 0
    class_sets = algorithms.ClassSets(_NUM_POSITIVES, num_negatives)
    server = algorithms.ServerUpdate()
    if case.defence in class_set_defences.NEGATIVES:
        sizes = (case.num_classes, _NUM_NEGATIVES, _NUM_POSITIVES)
        builder = class_set_defences.builder(case.defence, *sizes, **options)
        class_sets = algorithms.ClassSets(builder=builder)
    elif "requests" in options:
        class_sets = dataclasses.replace(class_sets, **options)
    else:
        server = algorithms.ServerUpdate(**options)
    return algorithms.build_fedss(
        functools.partial(models.small_cnn, _IMAGE_SHAPE, case.embedding_dim),
        case.num_classes,
        class_sets,
        algorithms.ClientTraining(
            tff.learning.optimizers.build_sgdm(0.01), _BATCH_SIZE
        ),
        server,
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
        client = {
            "data": tf.data.Dataset.from_tensor_slices(data),
            "seed": rng.integers(0, 2**31 - 1, 2).astype(np.int32),
        }
        if case.defence in class_set_defences.NEGATIVES:
            client["permanent_seed"] = client["seed"]
        clients.append(client)
    return clients


def _by_series(rows: list[dict[str, Any]]):
    for series, group in itertools.groupby(rows, lambda row: row["series"]):
        yield series, list(group)


def _as_markdown(rows: list[dict[str, Any]], repeats: int) -> str:
    """The tables, a series each, with what its first row is to the others."""
    parts = [
        "# Growth of a round",
        "FedSS in the in-process runtime, training included: the small CNN at 28x28, "
        f"{_NUM_IMAGES} images a client, batches of {_BATCH_SIZE}, {_NUM_POSITIVES} "
        f"positives and {_NUM_NEGATIVES} sampled negatives. Medians of "
        f"{repeats} rounds, the cases of a table in turns, on "
        f"{os.cpu_count()} CPU cores. Memory over W: what the process needs at its "
        "peak beyond that of the first row, in bytes of W (likewise). Bytes are those "
        "of the classifier, per client and round.",
    ]
    header = "method|n|d|K|s a round|of the first row|images/s|first round, s"
    header += "|of the median|W, MiB|peak, MiB|memory over W|bytes down|bytes up"
    for series, group in _by_series(rows):
        first = group[0]
        cells = []
        for row in group:
            larger = row["classifier_mib"] - first["classifier_mib"]
            needs = row["peak_mib"] - first["peak_mib"]
            cells.append(
                (
                    _title(row["method"], row["defence"]),
                    f"{row['num_classes']:,}",
                    row["embedding_dim"],
                    row["cohort_size"],
                    f"{row['seconds']:.2f}",
                    f"{row['seconds'] / first['seconds']:.2f}",
                    f"{row['images_per_second']:,.0f}",
                    f"{row['first_seconds']:.1f}",
                    f"{row['first_seconds'] / row['seconds']:.1f}",
                    f"{row['classifier_mib']:,.1f}",
                    f"{row['peak_mib']:,.0f}",
                    f"{needs / larger:.2f}" if larger else "",
                    f"{row['bytes_down']:,.0f}",
                    f"{row['bytes_up']:,.0f}",
                )
            )
        parts.append(f"## {series}\n\n{as_markdown(header.split('|'), cells)}")
    return "\n\n".join(parts) + "\n"


def _title(method: str, defence: str) -> str:
    return f"{method}, {defence}" if defence else method


def _plot(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Seconds of a round and peak memory by n, and seconds by K."""
    by_n, memory, by_cohort = [], [], []
    for i, (series, group) in enumerate(_by_series(rows)):
        if series in _BY_DEFENCE:
            continue
        seconds = [row["seconds"] for row in group]
        label = f"{group[0]['method']}, d = {group[0]['embedding_dim']}"
        if series == "cohort":
            cohorts = [row["cohort_size"] for row in group]
            by_cohort.append(plots.Curve(label, cohorts, seconds, plots.style(0)))
            continue
        n, look = [row["num_classes"] for row in group], plots.style(i)
        by_n.append(plots.Curve(label, n, seconds, look))
        peaks = [row["peak_mib"] for row in group]
        memory.append(plots.Curve(label, n, peaks, look))
    plots.write_curves(
        path,
        [
            plots.Panel(by_n, "classes n", "seconds a round", log="xy"),
            plots.Panel(memory, "classes n", "peak memory, MiB", log="xy"),
            plots.Panel(
                by_cohort, "clients a round K", "seconds a round", from_zero=True
            ),
        ],
    )


if __name__ == "__main__":
    program.run(main, Config())
