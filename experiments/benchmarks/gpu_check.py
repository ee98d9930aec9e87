"""Checks this project on the GPUs of this machine: run it first, send its file back.

    ./run.sh gpu_check                      # everything; writes results/gpu_check.json
    ./run.sh gpu_check --parts=operations   # what `./run.sh setup --gpu` ends with

- machine: devices, driver, libraries and versions.
- operations: a matrix product, a convolution and a training step of MobileNetV3-Small,
  on the GPU against the CPU; seconds of the first call and of a later one. The first
  start on a new kind of GPU compiles its kernels: half an hour, once.
- algorithms: three rounds of every federated method, three steps of every central one:
  all weights move and stay finite. After the first, the largest difference of a weight
  to what the CPU computes, in units of the largest change of any, is below 0.001: in
  float32 without TF32, that is.
- repeats: whether FedSS gives the same bytes twice. With --deterministic it must.
- speed: images a second of FedSS's rounds beside those of a plain TensorFlow loop.

Every check has a line here and an entry in the file. A check that fails does not stop
the others; the exit code is 1 then. Without a GPU the same runs on logical devices of
the CPU, and the last lines say what that cannot show: exit code 0. Three minutes on 2
quiet cores.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.benchmarks import small_runs
from experiments.benchmarks.contenders import ours, plain_tensorflow
from experiments.benchmarks.workload import Workload
from experiments.common import config, device_config, output_files, program
from tff_fedss import models, runtime
from tff_fedss.training import provenance

PARTS = (
    "machine",
    "operations",
    "algorithms",
    "repeats",
    "speed",
)
_MODELS = ("cnn", "mobilenet_v3_small")
# In units of the largest change of a weight, after a round or a step: float32 has seven
# digits, which a training loses some of, more from round to round.
_LARGEST_DIFFERENCE = 1e-3
_CPU = "CPU:0"


@dataclasses.dataclass(frozen=True)
class Config(device_config.DeviceConfig):
    """What a user asks for."""

    output: str = config.flag(
        "results/gpu_check.json", "The file to write.", group="The check"
    )
    parts: tuple[str, ...] = config.flag(PARTS, "What to check.", choices=PARTS)
    models: tuple[str, ...] = config.flag(
        _MODELS, "What to train for `speed`.", choices=_MODELS
    )
    clients: int | None = config.flag(
        None, "Clients of a round, for `speed`. Default: 8, or 2 without a GPU.", low=1
    )
    rounds: int = config.flag(3, "Rounds that count there, after two.", low=1)


@dataclasses.dataclass
class Check:
    """One thing that was looked at.

    Attributes:
        part: Of `PARTS`.
        name: What.
        ok: Whether it was right; None: nothing to be right or wrong about.
        found: Numbers and words, for JSON.
        error: What went wrong, with its traceback.
        seconds: How long it took.
    """

    part: str
    name: str
    ok: bool | None = None
    found: Any = None
    error: str | None = None
    seconds: float = 0.0


def main(config: Config) -> None:
    """Checks, writes the file, and says what could not be checked."""
    tf.get_logger().setLevel("ERROR")  # It warns of graphs that are traced again.
    output = pathlib.Path(config.output)
    output_files.create_folder(output.parent, "output")
    gpus = tf.config.get_visible_devices("GPU")
    device = "GPU:0" if gpus else _logical_device()
    wanted = list(_checks(config, device))
    checks: list[Check] = []
    for number, (check, function) in enumerate(wanted, 1):
        print(
            f"[{number}/{len(wanted)}] {check.part}: {check.name} ...",
            end=" ",
            flush=True,
        )
        _do(check, function)
        print(_as_line(check), flush=True)
        checks.append(check)
        # After each one: the next may end the process.
        _write(output, config, device, checks)
    failed = [check for check in checks if check.ok is False]
    print(f"{len(checks)} checks, {len(failed)} failed. Written to {output}")
    for text in _not_checked(config, gpus):
        print(f"NOT checked: {text}")
    if failed:
        for check in failed:
            why = (check.error or json.dumps(check.found)).strip().splitlines()[-1]
            print(f"FAILED: {check.part}, {check.name}: {why.strip()}", file=sys.stderr)
        sys.exit(1)


def _logical_device() -> str:
    """Makes a second device of the CPU, so that it can be seen where work goes."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    with contextlib.suppress(RuntimeError):  # TensorFlow runs already.
        tf.config.set_logical_device_configuration(cpu, logical)
    return f"CPU:{len(tf.config.list_logical_devices('CPU')) - 1}"


def _do(check: Check, function: Callable[[], tuple[bool | None, Any]]) -> None:
    begin = time.perf_counter()
    try:
        check.ok, check.found = function()
    except Exception:  # Whatever it is, a person is to send it back.
        check.ok, check.error = False, traceback.format_exc()
    check.seconds = time.perf_counter() - begin


def _as_line(check: Check) -> str:
    state = {True: "ok", False: "FAILED", None: "done"}[check.ok]
    found = check.found or {}
    shown = {k: v for k, v in found.items() if isinstance(v, str | int | float | bool)}
    texts = [
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in shown.items()
    ]
    return f"{state} ({', '.join([*texts, f'{check.seconds:.0f} s'])})"


def _write(
    output: pathlib.Path, config: Config, device: str, checks: Sequence[Check]
) -> None:
    gpus = tf.config.get_visible_devices("GPU")
    told = {
        "format": 1,
        **provenance.describe(config.deciding()),
        "device": device,
        "checks": [dataclasses.asdict(check) for check in checks],
        "not_checked": _not_checked(config, gpus),
    }
    output_files.write_text(output, json.dumps(told, indent=2) + "\n")


def _not_checked(config: Config, gpus: Sequence[Any]) -> list[str]:
    left = [f"--parts={part}" for part in PARTS if part not in config.parts]
    if not gpus:
        left.append(
            "anything on a GPU: TensorFlow sees none (docs/gpus.md). What is above "
            "compares two logical devices of the CPU: where work goes, how it comes "
            "back and that it stays finite, but no kernel, no memory and no speed of a "
            "GPU."
        )
    elif len(gpus) == 1:
        left.append("several GPUs: there is one.")
    return left


def _checks(
    config: Config, device: str
) -> Iterator[tuple[Check, Callable[[], tuple[bool | None, Any]]]]:
    """Yields what is to be checked, and how: -> (right or wrong, what was found)."""
    exact = not (config.tf32 or config.mixed_precision)
    for part in PARTS:
        if part not in config.parts:
            continue
        if part == "machine":
            yield Check(part, "devices, driver and libraries"), _machine
        elif part == "operations":
            for name, make in _OPERATIONS.items():
                yield (
                    Check(part, name),
                    lambda make=make: _operation(make, device, exact),
                )
        elif part == "algorithms":
            for name in (*small_runs.FEDERATED, *small_runs.CENTRAL):
                yield Check(part, name), lambda name=name: _trains(name, device, exact)
        elif part == "repeats":
            must = bool(config.deterministic) or device.startswith("CPU")
            yield Check(part, "fedss"), lambda must=must: _repeats(device, must)
        else:
            for name in config.models:
                yield Check(part, name), lambda name=name: _speed(config, name)


# --- The machine and single operations --------------------------------------------


def _machine() -> tuple[None, dict[str, Any]]:
    build = tf.sysconfig.get_build_info()
    gpus = tf.config.get_visible_devices("GPU")
    found: dict[str, Any] = {
        "gpus": len(gpus),
        "cuda": build.get("cuda_version", "none"),
        "cudnn": build.get("cudnn_version", "none"),
        "kernels_for": build.get("cuda_compute_capabilities", []),
        "details": [
            {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in tf.config.experimental.get_device_details(g).items()
            }
            for g in gpus
        ],
        "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("CUDA_", "TF_", "XLA_", "NVIDIA_"))
        },
    }
    command = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,compute_cap",
        "--format=csv,noheader",
    ]
    try:
        found["nvidia_smi"] = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        found["nvidia_smi"] = [f"not there: {error}"]
    return None, found


def _product() -> Callable[[], list[tf.Tensor]]:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 1024, 1024)).astype(np.float32)
    return lambda: [tf.matmul(a, b)]


def _convolution() -> Callable[[], list[tf.Tensor]]:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(16, 56, 56, 32)).astype(np.float32)
    kernel = rng.normal(size=(3, 3, 32, 64)).astype(np.float32)
    return lambda: [tf.nn.conv2d(images, kernel, 1, "SAME")]


def _mobilenet_step() -> Callable[[], list[tf.Tensor]]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (32, 96, 96, 3)).astype(np.float32)
    model = models.FEATURE_EXTRACTORS["mobilenet_v3_small"](images.shape[1:], 64)

    def gradient() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(images, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    return gradient


_OPERATIONS = {
    "a matrix product": _product,
    "a convolution": _convolution,
    "a step of MobileNetV3-Small": _mobilenet_step,
}


def _operation(
    make: Callable[[], Callable[[], list[tf.Tensor]]], device: str, exact: bool
) -> tuple[bool, dict[str, float]]:
    results, seconds = [], []
    for where in (_CPU, device):
        with tf.device(f"/{where}"):
            # The constants of a function are where it is made: a new one for each.
            function = tf.function(make())
            times = []
            for _ in range(2):
                begin = time.perf_counter()
                result = [np.asarray(tensor, np.float32) for tensor in function()]
                times.append(time.perf_counter() - begin)
            results.append(result)
            seconds.append(times)
    zeros = [np.zeros_like(tensor) for tensor in results[0]]
    difference = _difference(*results, zeros)
    (cpu_first, cpu_later), (first, later) = seconds
    return not exact or difference < _LARGEST_DIFFERENCE, {
        "difference": difference,
        "first_seconds": first,
        "later_seconds": later,
        "cpu_first_seconds": cpu_first,
        "cpu_later_seconds": cpu_later,
    }


# --- Algorithms -------------------------------------------------------------------


def _run(name: str, device: str, rounds: int = small_runs.ROUNDS) -> small_runs.Rounds:
    if name in small_runs.CENTRAL:
        return small_runs.central(name, device)
    context = _context([device])
    try:
        return small_runs.federated(name, context, rounds)
    finally:
        context.close()


def _context(devices: Sequence[str] | None) -> tff.framework.SyncContext:
    return runtime.InProcessContext(devices, clients_per_device=1)


def _difference(
    a: Sequence[np.ndarray], b: Sequence[np.ndarray], start: Sequence[np.ndarray]
) -> float:
    """The largest difference of a weight over the largest change of any."""
    change = max(np.abs(x - s).max(initial=0.0) for x, s in zip(a, start, strict=True))
    away = max(np.abs(x - y).max(initial=0.0) for x, y in zip(a, b, strict=True))
    return float(away / max(change, np.finfo(np.float32).tiny))


def _trains(name: str, device: str, exact: bool) -> tuple[bool, dict[str, Any]]:
    theirs, ours = _run(name, _CPU, rounds=1), _run(name, device)
    difference = _difference(theirs[1], ours[1], theirs[0])
    finite = all(np.isfinite(w).all() for w in ours[-1])
    moved = all((a != b).any() for a, b in zip(ours[0], ours[-1], strict=True))
    is_near = difference < _LARGEST_DIFFERENCE or not exact
    return bool(finite and moved and is_near), {
        "difference": difference,
        "finite": finite,
        "all_weights_moved": moved,
    }


def _repeats(device: str, must: bool) -> tuple[bool | None, dict[str, Any]]:
    first, second = (_run("fedss", device)[-1] for _ in range(2))
    same = all((a == b).all() for a, b in zip(first, second, strict=True))
    return same if must else None, {"same_bytes": same, "must_be": must}


# --- Speed ------------------------------------------------------------------------


def _speed(config: Config, name: str) -> tuple[bool, dict[str, Any]]:
    on_gpu = bool(tf.config.get_visible_devices("GPU"))
    num_clients = config.clients or (8 if on_gpu else 2)
    workload = Workload("fedss", name, num_clients)
    contenders = {
        "plain": plain_tensorflow.PlainTensorFlow(workload),
        "fedss": ours.Ours(workload, clients="1" if on_gpu else None),
    }
    found: dict[str, Any] = {"images_per_round": workload.images_per_round}
    for title, contender in contenders.items():
        begin = time.perf_counter()
        contender.build()
        built = time.perf_counter()
        times = []
        for _ in range(2 + config.rounds):
            begin_round = time.perf_counter()
            contender.one_round()
            times.append(time.perf_counter() - begin_round)
        median = statistics.median(times[2:])
        found |= {
            f"{title}_images_per_second": workload.images_per_round / median,
            f"{title}_build_seconds": built - begin,
            f"{title}_first_round_seconds": times[0],
            f"{title}_round_seconds": times[2:],
            f"{title}_loss": contender.loss(),
        }
        if on_gpu:
            memory = tf.config.experimental.get_memory_info("GPU:0")
            found[f"{title}_peak_gpu_mib"] = memory["peak"] / 2**20
            tf.config.experimental.reset_memory_stats("GPU:0")
        contender.close()
    found["of_plain"] = (
        found["fedss_images_per_second"] / found["plain_images_per_second"]
    )
    return bool(np.isfinite(found["fedss_loss"])), found


if __name__ == "__main__":
    program.run(main, Config())
