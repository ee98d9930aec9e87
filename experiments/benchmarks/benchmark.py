"""Speed and memory of this project beside TensorFlow and its peers, in one table.

    ./run.sh benchmark --setup_peers
    ./run.sh benchmark

The first command makes the peers' virtual environments (.venv-peers: 3 GB to download,
5 GB on disk, some minutes; without them the peers' rows report this). The second runs
rounds of FedAvg and FedSS (experiments/benchmarks/workload.py: data, models and
hyperparameters) in every contender:

    plain_tensorflow   a tf.function step per batch, called from Python: the limit
    ours_in_process    this project, in its in-process runtime
    ours_native        this project, in TFF's C++ runtime
    tff_fed_avg        tff.learning.algorithms.build_weighted_fed_avg
    plain_pytorch      the same loop in PyTorch
    fedjax             FedJAX
    pfl_research       pfl-research with PyTorch
    flower             Flower's simulation engine with PyTorch

Each is a separate process and may use all cores; the settings are in the table.
`--contenders=NAME:option=value` sets an option of a contender's module in
experiments/benchmarks/contenders; `ours_in_process:checkout=DIR` is another version of
this project. They take turns, a round each, so that other load affects all equally.
After the first round, and after --repeats more, each must have the same weights as
plain_tensorflow and the same loss on the same data; if not, it is reported as WRONG.
Rounding errors grow from step to step, in MobileNetV3 quickly:
plain_tensorflow:nudged=1 is the plain loop from weights one float32 step away, and ten
times its largest difference is the tolerance of all. A failed contender is reported
with the reason; its output is in OUTPUT_DIR/logs.

Writes benchmark.csv, benchmark_rounds.csv (every round's time), benchmark.md and
benchmark.png after each workload. All of it takes an hour on 2 cores, and all
contenders together 26 GiB with 64 clients of MobileNetV3-Small; --workloads,
--num_clients and --contenders select a part.
"""

import dataclasses
import subprocess
import time

from experiments.benchmarks import contest, measured, table
from experiments.benchmarks.workload import Workload
from experiments.common import config, program
from experiments.common.config import naming
from tff_fedss.errors import InvalidInputError

_WORKLOADS = (
    "fedavg/cnn",
    "fedss/cnn",
    "fedavg/mobilenet_v3_small",
    "fedss/mobilenet_v3_small",
)


@dataclasses.dataclass(frozen=True)
class Config(measured.Config):
    """The flags of the program."""

    setup_peers: bool = config.flag(
        False, "Make the peers' virtual environments, and nothing else."
    )
    contenders: tuple[str, ...] = config.flag(
        tuple(contest.CONTENDERS),
        "The contenders, each as name or name:option=value. plain_tensorflow always "
        "runs.",
        group="What is measured",
    )
    workloads: tuple[str, ...] = config.flag(
        _WORKLOADS, "The workloads.", choices=_WORKLOADS
    )
    num_clients: tuple[int, ...] = config.flag((8, 64), "K, clients in a round.", low=1)
    repeats: int = config.flag(
        3, "Least number of rounds that count, after the first.", low=1
    )
    seconds: float = config.flag(
        60.0,
        "How long to repeat short rounds of a workload, all contenders' together; at "
        f"most {contest.MOST_REPEATS} rounds of each.",
        low=0.0,
    )


def main(config: Config) -> None:
    """Runs the contest."""
    if config.setup_peers:
        script = contest.ROOT / "experiments/benchmarks/peers/setup.sh"
        if subprocess.run([script], check=False).returncode:
            raise InvalidInputError(f"{script.name} failed; its message is above.")
        return
    names = _names(config)
    workloads = [
        Workload(*name.split("/"), num_clients)
        for name in config.workloads
        for num_clients in config.num_clients
    ]
    output_dir = config.folder()
    results, begun = [], time.monotonic()
    machine = table.this_machine()
    for workload in workloads:
        print(
            f"{workload.name}, {workload.num_clients} clients "
            f"(after {(time.monotonic() - begun) / 60:.0f} min):",
            flush=True,
        )
        results += contest.run(
            workload,
            names,
            repeats=config.repeats,
            seconds=config.seconds,
            log_dir=output_dir / "logs",
            nudged=contest.NUDGED,
        )
        table.write(
            output_dir,
            results,
            machine,
            f"|w - w'| / |w - w0| <= {contest.WEIGHTS_TOLERANCE:g}, "
            f"loss within {contest.LOSS_TOLERANCE:g}; or within ten times what "
            f"{contest.NUDGED} differs by, if that is more",
        )
    print()
    print((output_dir / "benchmark.md").read_text())
    print(f"Written to {output_dir}/benchmark.csv, .md and .png")


def _names(config: Config) -> list[str]:
    names = [contest.REFERENCE, contest.NUDGED]
    for name in config.contenders:
        with naming("--contenders"):
            contest.parse_name(name)
        if name not in names:
            names.append(name)
    return names


if __name__ == "__main__":
    program.run(main, Config())
