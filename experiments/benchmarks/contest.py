"""Runs contenders beside each other: the driver's side of the benchmark.

Each contender is a process (see `experiments.benchmarks.protocol`). For a workload all
are started, do a round and are checked, one after the other. Then they take turns, a
round each, so that other load affects all equally, and are checked once again.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection

import numpy as np

from experiments.benchmarks.measured import memory_bytes
from experiments.benchmarks.workload import Workload

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / ".venv-peers"
_PACKAGE = "experiments.benchmarks.contenders"
_QUIT_SECONDS = 20.0
MOST_REPEATS = 12  # Of a contender in one contest, unless more are asked for.
# The largest `Result.weights_difference` and `Result.loss_difference`.
WEIGHTS_TOLERANCE, LOSS_TOLERANCE = 1e-3, 1e-5
_ROUNDINGS = 10  # The tolerance of all, in differences of a nudged start.
_TIMEOUT = 900.0  # Seconds that an answer may take.


@dataclasses.dataclass(frozen=True)
class Entry:
    """The start of a contender.

    Attributes:
        module: A program for `python -m`.
        environment: Its virtual environment under `PEERS`, or None for ours.
        options: Its fixed options.
    """

    module: str
    environment: str | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    algorithms: tuple[str, ...] = ("fedavg",)

    @property
    def python(self) -> pathlib.Path:
        """The interpreter."""
        if self.environment is None:
            return pathlib.Path(sys.executable)
        return PEERS / self.environment / "bin" / "python"


_BOTH = ("fedavg", "fedss")
REFERENCE = "plain_tensorflow"
# The reference again, to measure the effect of rounding.
NUDGED = f"{REFERENCE}:nudged=1"
CONTENDERS = {
    REFERENCE: Entry(f"{_PACKAGE}.plain_tensorflow", algorithms=_BOTH),
    "ours_in_process": Entry(
        f"{_PACKAGE}.ours", None, {"runtime": "in_process"}, _BOTH
    ),
    "ours_native": Entry(f"{_PACKAGE}.ours", None, {"runtime": "native"}, _BOTH),
    "tff_fed_avg": Entry(f"{_PACKAGE}.tff_fed_avg"),
    "plain_pytorch": Entry(f"{_PACKAGE}.plain_pytorch", "pfl"),
    "fedjax": Entry(f"{_PACKAGE}.fedjax", "fedjax"),
    "pfl_research": Entry(f"{_PACKAGE}.pfl_research", "pfl"),
    "flower": Entry(f"{_PACKAGE}.flower", "flower"),
}


@dataclasses.dataclass
class Result:
    """The result of one contender on one workload.

    Attributes:
        contender: Its name, with the user's options.
        status: "ok", "WRONG", "failed" or "none" (it does not implement the workload).
        note: Its configuration, or the reason of another status.
        build_seconds: Time to build the learning process.
        first_seconds: Time of the first round.
        seconds: Times of the rounds that count, in order.
        weights_difference: |w - w'| / |w - w_0| of all weights together, after the
            first round or after the next `repeats`, whichever is larger: w' the
            contender's, w the reference's, w_0 the initial ones.
        loss_difference: Relative difference of the global model's loss over all
            clients' data.
        peak_mib: The sum of the peaks of its processes' resident memory.
    """

    contender: str
    workload: Workload
    status: str = "ok"
    note: str = ""
    build_seconds: float | None = None
    first_seconds: float | None = None
    seconds: list[float] = dataclasses.field(default_factory=list)
    weights_difference: float | None = None
    loss_difference: float | None = None
    peak_mib: float | None = None

    @property
    def images_per_second(self) -> float | None:
        """Of the median round."""
        if not self.seconds:
            return None
        return self.workload.images_per_round / statistics.median(self.seconds)


class ContenderError(RuntimeError):
    """A contender reported a failure, died, or did not answer in time."""


class Process:
    """A contender's process."""

    def __init__(
        self,
        entry: Entry,
        workload: Workload,
        options: Mapping[str, str],
        log: pathlib.Path,
    ):
        """Starts it and waits until it has its data.

        Args:
            options: Its options, and `checkout`: a folder with another version of this
                project that has the contender.
        """
        self._log = log
        options = {**entry.options, **options}
        checkout = options.pop("checkout", str(ROOT))
        if not entry.python.exists():
            raise ContenderError(
                f"no {entry.python.relative_to(ROOT)}: run ./run.sh benchmark "
                "--setup_peers"
            )
        program = pathlib.Path(checkout, *entry.module.split(".")).with_suffix(".py")
        if not program.exists():  # Python would take the one of this checkout.
            raise ContenderError(f"no {program}, of checkout={checkout}")
        self._connection, theirs = connection.Pipe()
        log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, open(log, "w") as file:
            self._process = subprocess.Popen(
                [str(entry.python), "-P", "-m", entry.module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[theirs.fileno()],
                env={
                    **os.environ,
                    "PYTHONPATH": checkout,
                    # TensorFlow would take a whole GPU for the first contender.
                    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
                },
                # A group, so that its children can be ended with it.
                start_new_session=True,
            )
        try:
            self.ask((workload, options))
        except BaseException:
            self.kill()
            raise

    def ask(self, command: str | tuple) -> dict:
        """Sends a command and returns the reply.

        Raises:
            ContenderError: If it fails, with the last line of its output.
        """
        with contextlib.suppress(OSError):  # The reply has more information.
            self._connection.send(command)
        deadline = time.monotonic() + _TIMEOUT
        while not self._connection.poll(0.2):
            if self._process.poll() is not None and not self._connection.poll():
                # Its children may keep the connection open after its end.
                raise ContenderError(f"died: {self._last_words()}")
            if time.monotonic() > deadline:
                raise ContenderError(f"no answer in {_TIMEOUT:.0f} s")
        try:
            reply = self._connection.recv()
        except (EOFError, OSError):
            raise ContenderError(f"died: {self._last_words()}") from None
        if "error" in reply:
            raise ContenderError(_last_line(reply["error"]))
        return reply

    def _last_words(self) -> str:
        return _last_line(self._log.read_text(errors="replace"))

    def peak_mib(self) -> float:
        """The sum of the peaks of the living processes of its tree, in MiB.

        Shared memory counts for each process.
        """
        pids = _tree(self._process.pid)
        return sum(memory_bytes("VmHWM", pid) for pid in pids) / 2**20

    def quit(self) -> None:
        """Asks it to end, and ends its remaining processes."""
        pids = _tree(self._process.pid)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._connection.send("quit")
            self._process.wait(_QUIT_SECONDS)
        self._end(pids)

    def kill(self) -> None:
        """Ends it and its children."""
        self._end(_tree(self._process.pid))

    def _end(self, pids: Sequence[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Children of a contender that has died are no longer in its tree.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()


def run(
    workload: Workload,
    names: Sequence[str],
    *,
    repeats: int,
    seconds: float = 0.0,
    log_dir: pathlib.Path,
    nudged: str | None = None,
) -> list[Result]:
    """Measures contenders on one workload, and prints lines of progress.

    Args:
        names: The contenders: "name" or "name:option=value:option=value". The first is
            the reference for the checks.
        repeats: Least number of rounds that count, of each.
        seconds: Short rounds are repeated for this time, all contenders' together, but
            at most `MOST_REPEATS` times.
        log_dir: The folder of the contenders' output.
        nudged: The name, the second, of the reference with initial weights one float32
            step away. Ten times its differences are also allowed.

    Returns:
        A result for each name, in their order.
    """
    results = {name: Result(name, workload) for name in names}
    processes: dict[str, Process] = {}
    check = _Check(names[0], nudged)

    @contextlib.contextmanager
    def reporting(name: str):
        try:
            yield
        except ContenderError as error:
            results[name].status, results[name].note = "failed", str(error)
            print(f"  {name}: failed: {error}", flush=True)
            if name in processes:
                processes.pop(name).kill()
            if name == names[0]:
                check.reference = None

    try:
        for name in names:
            result = results[name]
            entry, options = parse_name(name)
            if workload.algorithm not in entry.algorithms:
                result.status, result.note = "none", "not implemented"
                continue
            with reporting(name):
                log = log_dir / f"{_file_name(workload, name)}.log"
                process = Process(entry, workload, options, log)
                processes[name] = process
                reply = process.ask("build")
                result.build_seconds = reply["seconds"]
                result.note = reply["settings"]
                result.first_seconds = process.ask("round")["seconds"]
                check(result, process)
                print(f"  {name}: {_checked(result)}", flush=True)
        begun = time.monotonic()
        for i in range(max(repeats, MOST_REPEATS)):
            if i >= repeats and time.monotonic() - begun > seconds:
                break
            for name in list(processes):
                with reporting(name):
                    results[name].seconds.append(
                        processes[name].ask("round")["seconds"]
                    )
            print(f"  round {i + 1} done by all", flush=True)
            if i + 1 != repeats:
                continue
            # Not later: rounding errors grow without bound.
            for name in list(processes):
                with reporting(name):
                    check(results[name], processes[name])
                    if results[name].status != "ok":
                        print(f"  {name}: {_checked(results[name])}", flush=True)
        for name in list(processes):
            with reporting(name):
                results[name].peak_mib = processes[name].peak_mib()
        while processes:
            processes.popitem()[1].quit()
    finally:  # Some are left only after an exception, such as Ctrl-C.
        for process in processes.values():
            process.kill()
    return list(results.values())


def parse_name(name: str) -> tuple[Entry, dict[str, str]]:
    """Splits "name:option=value:..." and looks the name up.

    Raises:
        ValueError: If there is no such contender or an option has no value.
    """
    base, *options = name.split(":")
    if base not in CONTENDERS:
        raise ValueError(
            f"no contender {base!r}: expected one of {', '.join(CONTENDERS)}"
        )
    if any("=" not in option for option in options):
        raise ValueError(f"options look like {base}:name=value, found {name!r}")
    return CONTENDERS[base], dict(option.split("=", 1) for option in options)


class _Check:
    """Compares contenders' models with the reference's, which must come first."""

    def __init__(self, reference: str, nudged: str | None):
        self._reference_name, self._nudged_name = reference, nudged
        self._bounds = np.array([WEIGHTS_TOLERANCE, LOSS_TOLERANCE])
        self.reference: tuple[dict[str, np.ndarray], float] | None = None

    def __call__(self, result: Result, process: Process) -> None:
        """Asks a contender for its model, and writes the differences into `result`."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "weights.npz")
            loss = process.ask(("weights", path))["loss"]
            with np.load(path) as file:
                weights = dict(file)
        if result.contender == self._reference_name:
            self.reference = weights, loss
        if self.reference is None:
            result.status = "WRONG"
            result.note = f"not checked, as the reference failed. {result.note}"
            return
        initial = result.workload.initial_weights()
        shapes = {name: value.shape for name, value in initial.items()}
        if {name: value.shape for name, value in weights.items()} != shapes:
            result.status, result.note = "WRONG", "other weights or shapes"
            return
        expected, expected_loss = self.reference
        differences = (
            _distance(expected, weights) / _distance(expected, initial),
            abs(loss - expected_loss) / abs(expected_loss),
        )
        # NaN is the largest of all, and also wrong.
        before = result.weights_difference or 0.0, result.loss_difference or 0.0
        largest = np.maximum(before, differences)
        result.weights_difference, result.loss_difference = largest.tolist()
        if result.contender == self._nudged_name:
            # The largest so far: effects of rounding on a loss may cancel by chance.
            self._bounds = np.fmax(self._bounds, _ROUNDINGS * largest)
        if not np.all(differences <= self._bounds):
            result.status = "WRONG"


def _distance(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    return float(
        np.sqrt(sum(np.sum(np.square(a[k] - b[k], dtype=np.float64)) for k in a))
    )


def _checked(result: Result) -> str:
    if result.weights_difference is None:
        differences = result.note
    else:
        differences = (
            f"weights differ by {result.weights_difference:.1e} of the update, "
            f"loss by {result.loss_difference:.1e}"
        )
    return (
        f"{result.status}, {differences}; built in {result.build_seconds:.1f} s, "
        f"first round {result.first_seconds:.1f} s"
    )


def _file_name(workload: Workload, name: str) -> str:
    text = f"{workload.name}_{workload.num_clients}_{name}"
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "without a word"


def _tree(root: int) -> list[int]:
    """Returns a process and its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything.
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    tree = [root]
    for pid in tree:  # It grows meanwhile.
        tree += children.get(pid, [])
    return tree
