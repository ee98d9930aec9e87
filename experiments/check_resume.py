"""Kills a run again and again, and compares what comes of it with a run left alone.

    ./run.sh check_resume --results_dir=DIR -- --dataset=omniglot --data_dir=DATA ...

What follows `--` are flags of `./run.sh train`. The run is done once undisturbed, in
DIR/undisturbed, and once in DIR/killed, where every attempt but the last is killed with
SIGKILL at a random moment: one in five at any time after its start, the others at any
time after their first round (in a round, an evaluation, a checkpoint). The next attempt
goes on from what is there. In the end metrics.csv and the weights must be the same
bytes. Prints a line for every kill; exits 0 if they are, 1 if not.

With Omniglot, 400 rounds of 4 clients and 20 kills: about 20 minutes on 2 cores.
"""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np
from absl import flags

from experiments import program
from tff_fedss.errors import InvalidInputError

_RESULTS_DIR = flags.DEFINE_string(
    "results_dir", None, "An empty or new folder for both runs."
)
_KILLS = flags.DEFINE_integer("kills", 20, "How often to kill.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments.", lower_bound=0)
_MAX_SECONDS = flags.DEFINE_float(
    "max_seconds",
    20.0,
    "No kill comes later after the start, or after the first round.",
    lower_bound=0.0,
)


def main(train_flags: list[str]) -> None:
    """Runs, kills and compares."""
    if not _RESULTS_DIR.value:
        raise InvalidInputError("--results_dir=DIR is needed, for both runs.")
    folder = pathlib.Path(_RESULTS_DIR.value)
    folder.mkdir(parents=True, exist_ok=True)
    undisturbed, killed = folder / "undisturbed", folder / "killed"
    if killed.exists():
        raise InvalidInputError(f"{killed} is there already; remove it.")
    if _attempt(undisturbed, train_flags, folder / "undisturbed.log", None) != 0:
        raise InvalidInputError(
            f"the undisturbed run failed; see {folder / 'undisturbed.log'}."
        )
    rng = np.random.default_rng(_SEED.value)
    log = folder / "killed.log"
    kills = 0
    while kills < _KILLS.value:
        seconds = rng.uniform(0.0, _MAX_SECONDS.value)
        in_training = rng.random() < 0.8
        before = _rounds_done(killed)
        if _attempt(killed, train_flags, log, seconds, in_training) == 0:
            print(
                f"The run came to its end after {kills} kills, before the next one: "
                "give it more rounds, or a smaller --max_seconds.",
                flush=True,
            )
            break
        kills += 1
        print(
            f"kill {kills:2d}, {seconds:4.1f} s after "
            f"{'a round' if in_training else 'the start'}: rows up to round {before} "
            f"-> {_rounds_done(killed)}, checkpoints {_checkpoints(killed)}",
            flush=True,
        )
    if _attempt(killed, train_flags, log, None) != 0:
        print(f"DIFFERENT: the killed run could not go on; see {log}.")
        sys.exit(1)
    names = ["metrics.csv", *sorted(p.name for p in undisturbed.glob("*.npz"))]
    different = [n for n in names if not _is_same(undisturbed / n, killed / n)]
    if different:
        print(f"DIFFERENT after {kills} kills: {', '.join(different)}.")
        sys.exit(1)
    print(f"THE SAME after {kills} kills: {', '.join(names)}.")


def _attempt(
    folder: pathlib.Path,
    train_flags: list[str],
    log: pathlib.Path,
    seconds: float | None,
    in_training: bool = False,
) -> int | None:
    """Runs, and kills after some seconds if given. Returns the exit code, or None.

    Args:
        folder: Of the run.
        train_flags: Its other flags.
        log: Where its output goes.
        seconds: When to kill it.
        in_training: Whether to count from its first round, not from its start.
    """
    command = [sys.executable, "-P", "-m", "experiments.train", *train_flags]
    with open(log, "a") as output:
        process = subprocess.Popen(
            [*command, f"--results_dir={folder}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            if in_training:
                _wait_for_a_row(process, folder / "metrics.csv")
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            time.sleep(0.5)  # TFF's worker ends with its parent.
            return None
        except BaseException:
            process.terminate()
            process.wait()
            raise


def _wait_for_a_row(process: subprocess.Popen, metrics: pathlib.Path) -> None:
    """Waits until the process has appended to its metrics, or ended."""
    # At its start a run replaces the file; after that, it only grows.
    old = metrics.stat().st_ino if metrics.exists() else None
    size = None
    while process.poll() is None:
        if metrics.exists() and metrics.stat().st_ino != old:
            size = metrics.stat().st_size if size is None else size
            if metrics.stat().st_size > size:
                return
        time.sleep(0.02)


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


if __name__ == "__main__":
    program.run(main, takes_arguments=True)
