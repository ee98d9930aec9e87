"""Kills a run again and again, and compares what comes of it with a run left alone.

    ./run.sh check_resume --results_dir=DIR -- --dataset=omniglot --data_dir=DATA ...
    ./run.sh check_resume --program=moco --results_dir=DIR -- --data_dir=DATA ...

What follows `--` are flags of `./run.sh train`, or of another --program. The run is
done once undisturbed, in DIR/undisturbed, and once in DIR/killed, where every attempt
but the last is killed with SIGKILL: one in five at any time after its start, a share of
--in_checkpoint while a checkpoint is being written, the others at any time after their
first round (in a round, an evaluation, a checkpoint). The next attempt goes on from
what is there. In the end metrics.csv and the weights must be the same bytes. Prints a
line for every kill; exits 0 if they are, 1 if not.

leap needs --in_turn for that, and partial_fc the same --num_devices. With Omniglot, 400
rounds of 4 clients and 20 kills: about 20 minutes on 2 cores.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from experiments.common import config, program
from tff_fedss.errors import InvalidInputError

# Those with a results folder and checkpoints.
PROGRAMS = {
    "train": "experiments.fedss.train",
    "compare": "experiments.fedss.compare",
    **{
        name: f"experiments.{name}.train"
        for name in ("rf_softmax", "partial_fc", "leap", "moco")
    },
}


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    program: str = config.flag("train", "What to run and kill.", choices=PROGRAMS)
    results_dir: str = config.flag(
        None,
        "An empty or new folder for both runs.",
        needed="DIR is needed, for both runs.",
    )
    kills: int = config.flag(20, "How often to kill.", low=1)
    seed: int = config.flag(0, "Of the moments.", low=0)
    max_seconds: float = config.flag(
        20.0, "No kill comes later after the start, or after the first round.", low=0.0
    )
    in_checkpoint: float = config.flag(
        0.2,
        "The share of the kills that come while a checkpoint is being written.",
        low=0.0,
        high=0.8,
    )


_AT_ANY_TIME = 0.2  # The share of kills that may come before the first round.
# What a checkpoint is called that is being written.
_UNFINISHED = "checkpoints/*/.round_*.tmp"


def main(config: Config, run_flags: list[str]) -> None:
    """Runs, kills and compares."""
    folder = pathlib.Path(config.results_dir)
    undisturbed, killed = folder / "undisturbed", folder / "killed"
    for path in (undisturbed, killed):
        if path.exists():
            raise InvalidInputError(
                f"--results_dir={folder}: {path} is there already; remove it, or name "
                "another folder."
            )
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "undisturbed.log"
    if _attempt(config, undisturbed, run_flags, log) != 0:
        raise InvalidInputError(
            f"the undisturbed run failed ({_last_line(log)}); see {log}."
        )
    log = folder / "killed.log"
    kills = _kill_repeatedly(config, killed, run_flags, log)
    if _attempt(config, killed, run_flags, log) != 0:
        print(
            f"DIFFERENT: the killed run could not go on ({_last_line(log)}); see {log}."
        )
        sys.exit(1)
    names = ["metrics.csv", *sorted(p.name for p in undisturbed.glob("*.npz"))]
    different = [n for n in names if not _is_same(undisturbed / n, killed / n)]
    if different:
        print(f"DIFFERENT after {kills} kills: {', '.join(different)}.")
        sys.exit(1)
    print(f"THE SAME after {kills} kills: {', '.join(names)}.")


def _kill_repeatedly(
    config: Config, folder: pathlib.Path, run_flags: list[str], log: pathlib.Path
):
    """Kills attempt after attempt; returns how many were killed."""
    rng = np.random.default_rng(config.seed)
    for kill in range(1, config.kills + 1):
        seconds = rng.uniform(0.0, config.max_seconds)
        draw = rng.random()
        before = _rounds_done(folder)
        if draw < _AT_ANY_TIME:
            moment, when = f"{seconds:4.1f} s after the start", _after(seconds)
        elif draw < _AT_ANY_TIME + config.in_checkpoint:
            moment, when = "in a checkpoint", _in_a_checkpoint(folder)
        else:
            moment = f"{seconds:4.1f} s after a round"
            when = _after(seconds, _a_row_in(folder / "metrics.csv"))
        if _attempt(config, folder, run_flags, log, when) is not None:
            print(
                f"The run came to its end after {kill - 1} kills, before the next one: "
                "give it more rounds, or a smaller --max_seconds.",
                flush=True,
            )
            return kill - 1
        print(
            f"kill {kill:2d}, {moment}: rows up to round {before} -> "
            f"{_rounds_done(folder)}, checkpoints {_checkpoints(folder)}",
            flush=True,
        )
    return config.kills


# --- Moments ----------------------------------------------------------------------

# A moment is a function of the process: whether it has come. It is asked again and
# again; the process is stopped when it says so, until it is killed.
_Moment = Callable[[subprocess.Popen], bool]


def _after(seconds: float, event: _Moment = lambda _: True) -> _Moment:
    """So many seconds after an event."""
    deadline: float | None = None

    def has_come(process: subprocess.Popen) -> bool:
        nonlocal deadline
        if deadline is None and event(process):
            deadline = time.monotonic() + seconds
        return deadline is not None and time.monotonic() >= deadline

    return has_come


def _a_row_in(metrics: pathlib.Path) -> _Moment:
    """When the process has appended to its metrics."""
    # At its start a run replaces the file; after that, it only grows.
    old = metrics.stat().st_ino if metrics.exists() else None
    size: int | None = None

    def has_come(_: subprocess.Popen) -> bool:
        nonlocal size
        with contextlib.suppress(FileNotFoundError):
            found = metrics.stat()
            if found.st_ino != old:
                size = found.st_size if size is None else size
                return found.st_size > size
        return False

    return has_come


def _in_a_checkpoint(folder: pathlib.Path) -> _Moment:
    """While the process writes a checkpoint, after its first round."""
    # What a killed attempt has left is cleared away before that.
    has_begun = _a_row_in(folder / "metrics.csv")
    old: set[tuple[pathlib.Path, int]] | None = None

    def has_come(process: subprocess.Popen) -> bool:
        nonlocal old
        if old is None:
            if has_begun(process):
                old = _unfinished(folder)
            return False
        if not _unfinished(folder) - old:
            return False
        # It may be whole by now; only a stopped process leaves it as it is.
        process.send_signal(signal.SIGSTOP)
        ended_or_stopped = os.WEXITED | os.WSTOPPED | os.WNOWAIT
        os.waitid(os.P_PID, process.pid, ended_or_stopped)
        if _unfinished(folder) - old:
            return True
        process.send_signal(signal.SIGCONT)
        return False

    return has_come


def _unfinished(folder: pathlib.Path) -> set[tuple[pathlib.Path, int]]:
    """Returns the checkpoints that are being written, and when they last changed."""
    found = set()
    for path in folder.glob(_UNFINISHED):
        with contextlib.suppress(FileNotFoundError):
            found.add((path, path.stat().st_ctime_ns))
    return found


def _attempt(
    config: Config,
    folder: pathlib.Path,
    run_flags: Sequence[str],
    log: pathlib.Path,
    moment: _Moment | None = None,
) -> int | None:
    """Runs the program, and kills it at a moment if one is given.

    Args:
        config: Which program it is.
        folder: Of the run.
        run_flags: Its other flags.
        log: Where its output goes.
        moment: When to kill it.

    Returns:
        The exit code; None if it was killed.
    """
    module = PROGRAMS[config.program]
    command = [sys.executable, "-P", "-m", module, *run_flags]
    with open(log, "a") as output:
        process = subprocess.Popen(
            [*command, f"--results_dir={folder}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            if moment is None:
                return process.wait()
            while process.poll() is None:
                if moment(process):
                    process.kill()
                    process.wait()
                    time.sleep(0.5)  # What it has started ends with it.
                    return None
                time.sleep(0.001)
            return process.returncode
        except BaseException:
            process.terminate()
            process.wait()
            raise


# --- What is there ----------------------------------------------------------------


def _rounds_done(folder: pathlib.Path) -> str:
    path = folder / "metrics.csv"
    if not path.exists():
        return "none"
    last = path.read_text().rstrip().rpartition("\n")[2].split(",")
    return last[1] if len(last) > 1 and last[1].isdecimal() else "none"


def _checkpoints(folder: pathlib.Path) -> list[str]:
    return sorted(
        os.path.relpath(path, folder / "checkpoints")
        for path in folder.glob("checkpoints/*/*")
    )


def _is_same(a: pathlib.Path, b: pathlib.Path) -> bool:
    return a.exists() and b.exists() and a.read_bytes() == b.read_bytes()


def _last_line(log: pathlib.Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


if __name__ == "__main__":
    program.run(main, Config(), takes_arguments=True)
