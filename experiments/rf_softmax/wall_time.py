"""The cost of drawing negatives, and of updating samplers.

    OPENBLAS_NUM_THREADS=1 \
        ./run.sh python -m experiments.rf_softmax.wall_time --output_dir=DIR

The setting of the RF-softmax poster's wall-time table: a batch of 10, m = 10 and d =
64, for n = 10,000 and 500,000 classes, and one n between them, to show the growth.
`draw` is one call for the batch; `update` updates the sampler for the drawn classes, as
in a training step. The samplers take turns, so that other load on the machine affects
all. The table has the median wall time, the fastest, and the median processor time,
which a busy machine does not lengthen; the ratios are of processor time. exp's matrix
product has one thread, as the others.

Prints the table beside the poster's and writes wall_time.csv and wall_time.md. About 4
minutes on 2 quiet cores, and 5 GB of memory.
"""

import dataclasses
import gc
import statistics
import time

import numpy as np
import pandas as pd

from experiments.benchmarks import measured
from experiments.common import config, program
from tff_fedss import progress, samplers


@dataclasses.dataclass(frozen=True)
class Config(measured.Config):
    """The flags of the program."""

    classes: tuple[int, ...] = config.flag((10_000, 70_000, 500_000), "n.", low=2)
    repeats: int = config.flag(50, "How many calls to measure.", low=1)


_BATCH_SIZE, _NUM_NEGATIVES, _DIM = 10, 10, 64
_LOGIT_SCALE, _NU = 12.0, 4.0
_SETTINGS = (
    ("exp", None),
    ("quadratic", None),
    ("rff", 50),
    ("rff", 200),
    ("rff", 500),
    ("rff", 1000),
)
# In ms, for n and (sampler, D). The other cells are missing in the poster's text.
_POSTER = {
    (10_000, "exp", None): 1.4,
    (10_000, "quadratic", None): 6.5,
    (10_000, "rff", 50): 0.5,
    (10_000, "rff", 200): 0.6,
    (10_000, "rff", 500): 1.2,
    (10_000, "rff", 1000): 1.4,
    (500_000, "exp", None): 32.3,
    (500_000, "quadratic", None): 8.2,
    (500_000, "rff", 50): 1.6,
    (500_000, "rff", 200): 1.7,
}


def main(config: Config) -> None:
    """Measures and prints."""
    folder = config.folder()
    rows = pd.DataFrame(
        row for n in config.classes for row in _measure(n, config.repeats)
    )
    # Ratios of exp's time, here and on the poster.
    exp = rows[rows.sampler == "exp"].set_index("classes")
    for ratio, column in (("exp_ratio", "draw_cpu_ms"), ("poster_ratio", "poster_ms")):
        rows[ratio] = rows.classes.map(exp[column]) / rows[column]
    text = (
        f"Batch of {_BATCH_SIZE}, m = {_NUM_NEGATIVES}, d = {_DIM}; medians of "
        f"{config.repeats} calls, in turns. cpu: processor time, one thread. Ratios: "
        "exp over this, here in processor time."
    )
    measured.write(folder, "wall_time", rows, text)
    measured.show(folder, "wall_time")


def _measure(num_classes: int, repeats: int) -> list[dict]:
    """Measures all samplers on n classes."""
    generator = np.random.Generator(np.random.Philox(0))
    embeddings = generator.standard_normal((num_classes, _DIM), np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    built, rows = [], []
    for name, frequencies in _SETTINGS:
        start = time.perf_counter()
        options = samplers.SamplerOptions(
            num_classes, _DIM, _LOGIT_SCALE, nu=_NU, num_frequencies=frequencies or 1
        )
        sampler = samplers.SAMPLERS[name](options)
        sampler.rebuild(embeddings)
        built.append(sampler)
        rows.append(
            {
                "classes": num_classes,
                "sampler": name,
                "frequencies": frequencies or "",
                "build_s": time.perf_counter() - start,
                "leaf_size": getattr(sampler, "leaf_size", ""),
                "poster_ms": _POSTER.get((num_classes, name, frequencies)),
            }
        )
    draws, cpu_draws, updates = ([[] for _ in built] for _ in range(3))
    for _ in progress.bar(
        f"n={num_classes:,}", unit="batches", items=range(repeats + 1)
    ):
        targets = generator.integers(num_classes, size=_BATCH_SIZE)
        noise = generator.standard_normal((_BATCH_SIZE, _DIM), np.float32)
        queries = embeddings[targets] + 0.1 * noise
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        for i, sampler in enumerate(built):
            start, cpu_start = time.perf_counter(), time.process_time()
            ids, _ = sampler.draw(queries, targets, _NUM_NEGATIVES, generator)
            draws[i].append(time.perf_counter() - start)
            cpu_draws[i].append(time.process_time() - cpu_start)
            changed = np.unique(np.append(ids, targets))
            start = time.process_time()
            sampler.update(changed, embeddings[changed])
            updates[i].append(time.process_time() - start)
    for row, drawn, cpu, updated in zip(rows, draws, cpu_draws, updates, strict=True):
        # Not the first call, which may compile and touches the memory first.
        row["draw_ms"] = 1000 * statistics.median(drawn[1:])
        row["fastest_draw_ms"] = 1000 * min(drawn[1:])
        row["draw_cpu_ms"] = 1000 * statistics.median(cpu[1:])
        row["update_cpu_ms"] = 1000 * statistics.median(updated[1:])
    built.clear()
    gc.collect()
    return rows


if __name__ == "__main__":
    program.run(main, Config())
