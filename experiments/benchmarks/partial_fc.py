"""Measures the steps of Partial FC, by the number of classes n and the rate r.

    ./run.sh python -m experiments.benchmarks.partial_fc

trains the small CNN on 28x28 images with W in shards on 8 logical devices of the CPU,
d = 64, mini-batches of 64, for n from 1e4 to 1e7 and r of 1 (the model-parallel full
softmax), 0.3, 0.1 and 0.01: steps, memory at the peak, and the shares of a step that
the sampling takes. Images are noise and classes are uniform: neither matters to the
speed. Every case is a process of its own, one after the other. `--cases=1e7:0.1,1e7:1`
measures some only; what partial_fc.csv has of the same settings is not measured again.

Prints a table and writes partial_fc.csv, .md and .png. About 10 minutes on 2 quiet
cores; ten million classes need 8 GiB of memory.
"""

import collections
import csv
import dataclasses
import multiprocessing
import os
import pathlib
import statistics
import time
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any

import numpy as np

from experiments.benchmarks.peak_memory import peak_bytes
from experiments.common import config, output_files, plots, program
from experiments.common.table import as_markdown
from tff_fedss import algorithms, losses, models, runtime
from tff_fedss.errors import InvalidInputError

_IMAGE_SHAPE = (28, 28, 1)
_NUM_CLASSES = (10_000, 100_000, 1_000_000, 10_000_000)
_RATES = (1.0, 0.3, 0.1, 0.01)


@dataclasses.dataclass(frozen=True)
class Case:
    """What is measured in one process.

    Attributes:
        num_classes: n.
        sample_rate: r.
        num_devices: Of the mesh.
        batch_size: Of all devices together.
        embedding_dim: d.
    """

    num_classes: int
    sample_rate: float
    num_devices: int = 8
    batch_size: int = 64
    embedding_dim: int = 64

    @property
    def classifier_bytes(self) -> int:
        """The size of W."""
        return 4 * self.num_classes * self.embedding_dim


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    output_dir: str = config.flag("results/benchmarks", "Where the files go.")
    repeats: int = config.flag(
        5, "Steps of each case that count, after the first.", low=1
    )
    num_devices: int = config.flag(8, "Of the mesh.", low=1)
    batch_size: int = config.flag(64, "Of all devices together.", low=1)
    embedding_dim: int = config.flag(64, "d.", low=1)
    cases: tuple[str, ...] = config.flag(
        tuple(f"{n:g}:{r:g}" for n in _NUM_CLASSES for r in _RATES),
        "n:r of each case.",
    )


def main(config: Config) -> None:
    """Runs the program as the flags say."""
    cases = []
    for text in config.cases:
        n, _, r = text.partition(":")
        try:
            case = Case(
                int(float(n)),
                float(r),
                config.num_devices,
                config.batch_size,
                config.embedding_dim,
            )
        except ValueError as error:
            raise InvalidInputError(
                f"--cases={text}: expected n:r, such as 1e6:0.1."
            ) from error
        if not (0 < case.sample_rate <= 1 and case.num_classes >= case.num_devices):
            raise InvalidInputError(
                f"--cases={text}: expected 0 < r <= 1, and n of at least "
                f"--num_devices={case.num_devices}."
            )
        cases.append(case)
    measure(cases, config.repeats, config.output_dir)


def measure(cases: Sequence[Case], repeats: int, folder: str) -> None:
    """Measures, prints and writes.

    Args:
        cases: What to measure, one after the other.
        repeats: Steps of each that count.
        folder: Where the files go; cases that partial_fc.csv has are left out.
    """
    output_dir = output_files.create_folder(folder)
    path = output_dir / "partial_fc.csv"
    rows = _read(path)
    for case in cases:
        known = {_key(row) for row in rows}
        if _key(dataclasses.asdict(case)) in known:
            continue
        row = _measure(case, repeats)
        print(
            f"n={case.num_classes:,} r={case.sample_rate:g}: "
            f"{row['seconds']:.3f} s a step, {row['peak_mib']:,.0f} MiB",
            flush=True,
        )
        rows.append(row)
        rows.sort(key=_key)
        output_files.write_csv(path, rows, list(row))
        output_files.write_text(output_dir / "partial_fc.md", _as_markdown(rows))
        _plot(rows, output_dir / "partial_fc.png")
    print(
        f"\n{_as_markdown(rows)}\nWritten to {output_dir}/partial_fc.csv, .md and .png"
    )


def _read(path: pathlib.Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def _key(row: dict[str, Any]) -> tuple[float, ...]:
    n, r, *others = (float(row[field.name]) for field in dataclasses.fields(Case))
    return (*others, n, -r)


def _measure(case: Case, repeats: int) -> dict[str, Any]:
    """Measures one case in a process of its own, whose peak is then its own."""
    # Not forked: TensorFlow's threads would not be there.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(case, repeats, there), daemon=True)
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError as error:
        raise RuntimeError(
            f"The process of {case} has died (out of memory?); its message is above."
        ) from error
    finally:
        process.kill()
        process.join()


def _serve(case: Case, repeats: int, pipe: connection.Connection) -> None:
    """Trains and reports."""
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
    built = time.perf_counter()
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
    sampling = time.perf_counter() - start
    first, *counted = seconds
    median = statistics.median(counted)
    peak = peak_bytes()
    pipe.send(
        {
            **dataclasses.asdict(case),
            "seconds": median,
            "seconds_min": min(counted),
            "seconds_max": max(counted),
            "examples_per_second": case.batch_size / median,
            "classes_per_step": algorithm.round_metrics(sums)["classes_per_step"],
            "sampling_seconds": sampling,
            "build_seconds": built - begin,
            "first_seconds": first,
            "classifier_mib": case.classifier_bytes / 2**20,
            "peak_mib": peak / 2**20,
            "cores": os.cpu_count(),
        }
    )


def _as_markdown(rows: list[dict[str, Any]]) -> str:
    """The table, each case beside r = 1 of the same n."""
    full = {
        (row["num_classes"], row["num_devices"]): row["seconds"]
        for row in rows
        if float(row["sample_rate"]) == 1
    }
    first = rows[0]
    cells = []
    for row in rows:
        whole = full.get((row["num_classes"], row["num_devices"]))
        w = row["classifier_mib"]
        cells.append(
            (
                f"{row['num_classes']:,.0f}",
                f"{row['sample_rate']:g}",
                f"{row['seconds']:.3f}",
                f"{row['seconds_min']:.3f}-{row['seconds_max']:.3f}",
                f"{row['examples_per_second']:,.0f}",
                f"{whole / row['seconds']:.2f} times" if whole else "",
                f"{row['classes_per_step']:,.0f}",
                f"{row['sampling_seconds']:.3f}",
                f"{2 * w:,.0f}",
                f"{row['peak_mib']:,.0f}",
                f"{row['peak_mib'] / (2 * w):,.2f}",
                f"{row['peak_mib'] / w:,.2f}",
            )
        )
    header = "n|r|s a step|min-max|examples/s|r = 1 takes|classes a step|sampling, s"
    header += "|W + m, MiB|peak, MiB|of W + m|of W"
    return (
        "# Steps of Partial FC\n\n"
        f"The small CNN at 28x28, {first['num_devices']:.0f} logical devices on "
        f"{first['cores']:.0f} CPU cores, mini-batches of {first['batch_size']:.0f}, "
        f"d = {first['embedding_dim']:.0f}, SGD with momentum; medians. Peak: of the "
        "process, TensorFlow included; W + m: the bytes of W and its momentum.\n\n"
        f"{as_markdown(header.split('|'), cells)}\n"
    )


def _plot(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Examples a second and peak memory by n, a line for each rate."""
    columns = {"examples_per_second": "examples a second", "peak_mib": "peak, MiB"}
    curves = {column: [] for column in columns}
    rates = sorted({row["sample_rate"] for row in rows}, reverse=True)
    for i, rate in enumerate(rates):
        group = [row for row in rows if row["sample_rate"] == rate]
        n = [row["num_classes"] for row in group]
        for column, own in curves.items():
            y = [row[column] for row in group]
            own.append(plots.Curve(f"r = {rate:g}", n, y, plots.style(i)))
    n = sorted({row["num_classes"] for row in rows})
    per_class = 2 * rows[0]["classifier_mib"] / rows[0]["num_classes"]
    least = [k * per_class for k in n]
    look = plots.REFERENCE._replace(linestyle=":")
    curves["peak_mib"].append(plots.Curve("W and momentum", n, least, look))
    plots.write_curves(
        path,
        [
            plots.Panel(curves[column], "classes n", title, log="xy")
            for column, title in columns.items()
        ],
    )


if __name__ == "__main__":
    program.run(main, Config())
