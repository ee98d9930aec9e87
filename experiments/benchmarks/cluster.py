"""Measures what a round costs over a cluster, beside the same round in one process.

    ./run.sh python -m experiments.benchmarks.cluster
    ./run.sh python -m experiments.benchmarks.cluster --simulation

The first runs rounds of FedSS with training on a Ray cluster of this machine alone, an
actor for each two cores or as --actors says, and in this process: for n of 2 k and 1 M,
cohorts of 16, 256 and 2,048 clients, and for two networks. Clients make their data
where they train, 8 images each of 8 classes, with 20 sampled negatives. A row whose
weights are not those of the other runtime in every byte says WRONG. It also says how
long this process takes to select the rows that clients ask for and, instead of that, to
send W to an actor, where they would be selected otherwise.

The second trains 100,000 clients of glyphs, --cohort of them a round, and says how the
memory of this process, of the actors, of Ray's own processes and of its store of
objects grows.

Both print a table and write cluster.csv and cluster.md, or cluster_memory.csv and
cluster_memory.md. The first takes half an hour on 2 cores, the second as much.
"""

import contextlib
import dataclasses
import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff

from experiments.benchmarks import cluster_clients
from experiments.benchmarks.cluster_clients import (
    NUM_IMAGES,
    NUM_POSITIVES,
    SHAPES,
    Case,
)
from experiments.common import config, output_files, program
from experiments.common.table import as_markdown
from tff_fedss import models, runtime, training
from tff_fedss.algorithms import fedss

_EMBEDDING_DIM, _NUM_NEGATIVES = 64, 20


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    output_dir: str = config.flag("results/benchmarks", "Where the tables go.")
    actors: int | None = config.flag(
        None, "How many actors. Default: one for each two cores.", low=1
    )
    models: tuple[str, ...] = config.flag(
        ("small_cnn", "mobilenet_v3_small"), "The networks.", choices=tuple(SHAPES)
    )
    num_classes: tuple[str, ...] = config.flag(("2000", "1000000"), "n.")
    num_clients: tuple[str, ...] = config.flag(("16", "256", "2048"), "K.")
    most_images: int = config.flag(
        20_000,
        "Leave out cases of more images a round than this, of which one of MobileNetV3 "
        "counts for ten.",
        low=1,
    )
    repeats: int = config.flag(3, "Rounds that count, after the first.", low=1)
    simulation: bool = config.flag(False, "Measure the memory of a long run instead.")
    rounds: int = config.flag(50, "How many rounds that has.", low=10)
    cohort: int = config.flag(2048, "K of that.", low=1, high=100_000)


def main(config: Config) -> None:
    """Measures, prints and writes."""
    # As in the actors: else the gradients of convolutions differ in their last digits.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    actors = config.actors or max(1, len(os.sched_getaffinity(0)) // 2)
    context = runtime.ClusterContext("local", num_actors=actors, packages=())
    output_dir = output_files.create_folder(config.output_dir)
    if config.simulation:
        rows = _simulate(context, config.rounds, config.cohort)
        output_files.write_csv(output_dir / "cluster_memory.csv", rows)
        text = _memory_as_markdown(rows, config.cohort, actors)
        output_files.write_text(output_dir / "cluster_memory.md", text)
        print(text)
        return
    cases = [
        Case(model, int(n), int(k))
        for k in config.num_clients
        for model in config.models
        for n in config.num_classes
        if int(k) * NUM_IMAGES * (1 if model == "small_cnn" else 10)
        <= config.most_images
    ]
    rows = []
    for case in cases:
        rows += _measure(case, context, config.repeats)
        output_files.write_csv(output_dir / "cluster.csv", rows)
        text = _as_markdown(rows, config.repeats, actors)
        output_files.write_text(output_dir / "cluster.md", text)
    print(text)


def _measure(
    case: Case, cluster: runtime.ClusterContext, repeats: int
) -> list[dict[str, Any]]:
    """Runs the rounds of a case in both runtimes, in turns."""
    process = fedss.build_fedss(
        functools.partial(
            models.FEATURE_EXTRACTORS[case.model], SHAPES[case.model], _EMBEDDING_DIM
        ),
        case.num_classes,
        NUM_POSITIVES,
        num_negatives=_NUM_NEGATIVES,
        client_optimizer=tff.learning.optimizers.build_sgdm(0.01),
    )
    load = functools.partial(cluster_clients.load, case)
    make, _ = load()
    contexts = {
        "in_process": (runtime.InProcessContext(), make),
        "cluster": (cluster, cluster.share(load, make, {})),
    }
    selecting = _Timed(cluster._select)
    cluster._select = selecting
    states: dict[str, Any] = {}
    seconds: dict[str, list[float]] = {name: [] for name in contexts}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in contexts}
    for round_num in range(repeats + 1):
        for name, (context, client_fn) in contexts.items():
            with tff.framework.get_context_stack().install(context):
                state = states.get(name) or process.initialize()
                selecting.seconds.append(0.0)
                begin, used = time.perf_counter(), _cpu_seconds()
                clients = [
                    client_fn(str(k), np.array([k, round_num], np.int32))
                    for k in range(case.cohort_size)
                ]
                states[name] = process.next(state, clients).state
                seconds[name].append(time.perf_counter() - begin)
                cpu_seconds[name].append(_cpu_seconds() - used)
    difference = max(
        float(np.abs(a - b).max())
        for a, b in zip(
            tf.nest.flatten(states["in_process"]),
            tf.nest.flatten(states["cluster"]),
            strict=True,
        )
    )
    del cluster._select
    more = {
        **dataclasses.asdict(cluster.traffic),
        "select_seconds": statistics.median(selecting.seconds[3::2]),
        "w_seconds": _send(np.asarray(states["cluster"].classifier)),
    }
    rows = []
    for name, times in seconds.items():
        rows.append(
            {
                **dataclasses.asdict(case),
                "runtime": name,
                "seconds": statistics.median(times[1:]),
                "cpu_seconds": statistics.median(cpu_seconds[name][1:]),
                "first_seconds": times[0],
                "difference": difference,
                "is_right": difference == 0,
                **(more if name == "cluster" else dict.fromkeys(more)),
            }
        )
        print(rows[-1], flush=True)
    contexts["in_process"][0].close()
    return rows


def _cpu_seconds() -> float:
    """Of this process and all that it has started: Ray's and the actors."""
    here = psutil.Process()
    total = 0.0
    for process in [here, *here.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


class _Timed:
    """A function that adds its seconds to the last number of a list."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.seconds: list[float] = []

    def __call__(self, *args: Any) -> Any:
        begin = time.perf_counter()
        result = self.function(*args)
        self.seconds[-1] += time.perf_counter() - begin
        return result


def _send(w: np.ndarray) -> float:
    """Seconds to send W to a process of the cluster, up to a copy of its own there."""
    import ray

    @ray.remote(num_cpus=0)
    def take(array):
        return float(array.copy()[0, 0])

    ray.get(take.remote(w[:1]))  # It is there then.
    begin = time.perf_counter()
    ray.get(take.remote(ray.put(w)))
    return time.perf_counter() - begin


def _simulate(
    context: runtime.ClusterContext, rounds: int, cohort_size: int
) -> list[dict[str, Any]]:
    """Trains a large population, and looks at memory."""
    make, _ = cluster_clients.load_glyphs()
    data = make.__self__.dataset
    num_classes, ids = data.num_classes, data.train.client_ids
    process = fedss.build_fedss(
        functools.partial(models.small_cnn, (28, 28, 1), _EMBEDDING_DIM),
        num_classes,
        data.max_positives,
        num_negatives=_NUM_NEGATIVES,
        client_optimizer=tff.learning.optimizers.build_sgdm(0.01),
    )
    client_fn = context.share(cluster_clients.load_glyphs, make, {})
    tff.framework.set_default_context(context)
    state, rows = process.initialize(), []
    print(f"{len(ids):,} clients, n = {num_classes:,}", flush=True)
    for round_num in range(1, rounds + 1):
        begin = time.perf_counter()
        cohort = training.cohort(0, round_num, ids, cohort_size)
        clients = [
            client_fn(client_id, training.client_seed(0, round_num, client_id))
            for client_id in cohort
        ]
        state, metrics = process.next(state, clients)
        rows.append(
            {
                "round": round_num,
                "seconds": time.perf_counter() - begin,
                **_memory(context),
                "loss": float(metrics["loss"]),
            }
        )
        print(rows[-1], flush=True)
    return rows


def _memory(context: runtime.ClusterContext) -> dict[str, float]:
    """MiB of the processes' own, and of the objects that they share."""
    here = psutil.Process()
    actors = [psutil.Process(pid) for pid in context.actor_pids]
    rays = [p for p in here.children() if p.name() in ("raylet", "gcs_server")]
    return {
        "driver_mib": _own_mib([here]),
        "actors_mib": _own_mib(actors),
        "ray_mib": _own_mib(rays),
        "store_mib": max(map(_shared_mib, rays)),
    }


def _own_mib(processes: Sequence[psutil.Process]) -> float:
    infos = [process.memory_info() for process in processes]
    return sum(info.rss - info.shared for info in infos) / 2**20


def _shared_mib(process: psutil.Process) -> float:
    # The raylet holds the store, which is memory that all processes share.
    return process.memory_info().shared / 2**20


def _memory_as_markdown(
    rows: Sequence[dict[str, Any]], cohort_size: int, actors: int
) -> str:
    names = ("driver_mib", "actors_mib", "ray_mib", "store_mib")
    step = max(1, len(rows) // 10)
    shown = [rows[0], *rows[step - 1 :: step]] if step > 1 else rows
    half = rows[len(rows) // 2 :]
    numbers = [row["round"] for row in half]
    slopes = [np.polyfit(numbers, [r[name] for r in half], 1)[0] for name in names]
    cells = [
        (str(row["round"]), f"{row['seconds']:.0f}", *(f"{row[n]:,.0f}" for n in names))
        for row in shown
    ]
    cells.append(("a round, second half", "", *(f"{s:+.2f}" for s in slopes)))
    return (
        "# Memory over the rounds of a large simulation\n\n"
        f"100,000 clients of glyphs, {cohort_size:,} a round, FedSS with m = "
        f"{_NUM_NEGATIVES}, small CNN; a Ray cluster of this machine alone, {actors} "
        "actor(s). MiB after the round: what the processes have for themselves, and "
        "what Ray's store of objects takes.\n\n"
        + as_markdown(["round", "s", "driver", "actors", "Ray", "store"], cells)
        + "\n"
    )


def _as_markdown(rows: Sequence[dict[str, Any]], repeats: int, actors: int) -> str:
    header = (
        "phi|n|K|in process, s|cluster, s|ratio|in process, CPU s|cluster, CPU s|ratio"
    )
    header += "|first rounds, s|to all|keys|rows"
    header += "|sums|W|selecting, s|sending W, s|"
    cells = []
    for here, there in zip(rows[::2], rows[1::2], strict=True):
        w_bytes = 4 * here["num_classes"] * _EMBEDDING_DIM
        cells.append(
            (
                here["model"],
                f"{here['num_classes']:,}",
                f"{here['cohort_size']:,}",
                f"{here['seconds']:.2f}",
                f"{there['seconds']:.2f}",
                f"{there['seconds'] / here['seconds']:.2f}",
                f"{here['cpu_seconds']:.2f}",
                f"{there['cpu_seconds']:.2f}",
                f"{there['cpu_seconds'] / here['cpu_seconds']:.2f}",
                f"{here['first_seconds']:.0f}, {there['first_seconds']:.0f}",
                *(_mib(there[name]) for name in ("broadcasts", "keys", "rows", "sums")),
                _mib(w_bytes),
                f"{there['select_seconds']:.2f}",
                f"{there['w_seconds']:.2f}",
                "" if there["is_right"] else "WRONG",
            )
        )
    return (
        "# A round over a cluster\n\n"
        f"FedSS with training, {NUM_IMAGES} images a client, |P_k| at most "
        f"{NUM_POSITIVES}, m = {_NUM_NEGATIVES}, d = {_EMBEDDING_DIM}; a Ray cluster "
        f"of this machine alone with {os.cpu_count()} cores, {actors} actor(s). "
        f"Medians of {repeats} rounds, the runtimes in turns; CPU s are those of all "
        "processes together, which a busy machine changes less. MiB that travel: "
        "phi to all clients, the keys that they ask for, the rows that they get and "
        "the parts' sums; beside them W, which does not, how long selecting the rows "
        "takes, and how long sending W to one machine instead would. Weights of both "
        "runtimes are the same in every byte, or the row says WRONG.\n\n"
        + as_markdown(header.split("|"), cells)
        + "\n"
    )


def _mib(number: int) -> str:
    return f"{number / 2**20:.2f}"


if __name__ == "__main__":
    program.run(main, Config())
