"""Runs what is missing of a table, and writes the table.

    ./run.sh table 1 --scale=mini --data_dir=DIR --results_dir=DIR

runs every cell of the paper's Table 1 (a flagfile in experiments/table1/mini/) with
three seeds, and writes table1.md, table1.csv and the figures into the results folder.
Numbers of the paper stand beside ours. `--scale=paper` takes the paper's own settings.

A run that is done is skipped; one that was stopped or killed goes on from its last
checkpoint; one that fails is reported and does not stop the others. So the same
command, given again, does what is left. `--status` runs nothing and says how far it is.

Each run has a folder, RESULTS_DIR/CELL/seedK, and a log beside it, seedK.log.
"""

import contextlib
import ctypes
import dataclasses
import fnmatch
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import tqdm
from absl import flags

from experiments import program, report
from tff_fedss.errors import InvalidInputError

_HERE = pathlib.Path(__file__).parent
_TABLES = ("table1", "table2", "table3", "table4", "figure6", "learning_rate")
# Runs of the first are those of the second, or stand beside them.
_SAME_FOLDER = {"table4": "table2", "figure6": "table1"}
_SECONDS_BETWEEN_LINES = 60.0
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass
class _Job:
    """One run of a cell with one seed."""

    cell: str
    seed: int
    flagfile: pathlib.Path
    folder: pathlib.Path
    process: subprocess.Popen | None = None
    slot: int | None = None
    exit_code: int | None = None

    @property
    def name(self) -> str:
        return f"{self.cell} seed {self.seed}"

    @property
    def log(self) -> pathlib.Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def is_done(self) -> bool:
        return (self.folder / "done.json").exists()

    def num_rounds(self) -> int:
        """How many rounds the run has in all; 0 if that cannot be told yet."""
        path = self.folder / "flags.txt"
        text = path.read_text() if path.exists() else self.flagfile.read_text()
        for line in text.splitlines():
            if line.startswith("--rounds="):
                return int(line.partition("=")[2])
        return 0

    def last_row(self) -> list[str]:
        """The newest whole row of metrics.csv: method, round, and so on."""
        with contextlib.suppress(OSError):
            text = (self.folder / "metrics.csv").read_text()
            return text[: text.rfind("\n")].rpartition("\n")[2].split(",")
        return []

    def rounds_done(self) -> int:
        """How many rounds are done."""
        row = self.last_row()
        return int(row[1]) if len(row) > 1 and row[1].isdecimal() else 0

    def why_failed(self) -> str:
        """The last thing that the log says."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "its log is empty"


def _define_flags() -> None:
    # Not at the import: other programs have flags of these names, and a test may
    # import more than one of them.
    flags.DEFINE_enum(
        "scale",
        "mini",
        list(report.SCALES),
        "`paper`: the paper's data sets and settings. `mini`: Omniglot, on 2 cores. "
        "`tiny_imagenet`: photographs, on 2 cores; Table 1 alone has cells.",
    )
    flags.DEFINE_string(
        "data_dir", None, "Where the data set is, as for ./run.sh train."
    )
    flags.DEFINE_string(
        "results_dir",
        None,
        "Where the runs are. Default: results/TABLE_SCALE. Table 4 shares the runs of "
        "Table 2, and Figure 6 stands beside those of Table 1.",
    )
    flags.DEFINE_string(
        "flagfiles",
        None,
        "A folder of flagfiles to take for the cells. Default: "
        "experiments/TABLE/SCALE.",
    )
    flags.DEFINE_list(
        "cells",
        None,
        "Only cells with these names; `*` stands for anything. Default: all of them.",
    )
    flags.DEFINE_list("seeds", ["0", "1", "2"], "The seeds of each cell.")
    flags.DEFINE_integer(
        "workers",
        None,
        "How many runs at once. Each gets its share of the cores. Default: one for "
        "each of --gpus, else one for each core.",
        lower_bound=1,
    )
    flags.DEFINE_list(
        "gpus", [], "Numbers of the GPUs to use: every run at work gets one."
    )
    flags.DEFINE_string(
        "pretrained", None, "As for ./run.sh train, for all runs: ImageNet-1k weights."
    )
    flags.DEFINE_bool("status", False, "Only say how far everything is.")


def main(arguments: list[str]) -> None:
    """Runs the jobs and writes the report."""
    table = _table(arguments)
    results_dir = pathlib.Path(
        flags.FLAGS.results_dir
        or f"results/{_SAME_FOLDER.get(table, table)}_{flags.FLAGS.scale}"
    )
    folder = pathlib.Path(flags.FLAGS.flagfiles or _HERE / table / flags.FLAGS.scale)
    jobs = _jobs(folder, flags.FLAGS.cells, flags.FLAGS.seeds, results_dir)
    if not flags.FLAGS.status:
        try:
            _run_all(jobs)
        finally:
            print(_status(jobs), flush=True)
    else:
        print(_status(jobs))
    if any(job.is_done for job in jobs):
        if table.startswith("table"):
            number = int(table.removeprefix("table"))
            print(report.write(results_dir, number, flags.FLAGS.scale))
        elif table == "figure6":
            print(report.write_figure(results_dir, 6))
        print(f"Written to {results_dir}/")
    failed = [job for job in jobs if job.exit_code]
    for job in failed:
        print(f"FAILED: {job.name} ({job.log}): {job.why_failed()}", file=sys.stderr)
    if failed:
        sys.exit(1)


def _table(arguments: list[str]) -> str:
    by_name = {name.removeprefix("table"): name for name in _TABLES}
    if len(arguments) == 1 and arguments[0] in by_name:
        return by_name[arguments[0]]
    raise InvalidInputError(
        f"say which table, one of {', '.join(by_name)}; found "
        f"{' '.join(arguments) or 'none'}."
    )


def _jobs(
    folder: pathlib.Path,
    patterns: Sequence[str] | None,
    seeds: Sequence[str],
    results_dir: pathlib.Path,
) -> list[_Job]:
    """Lists the runs: the first seed of every cell, then the second, and so on."""
    flagfiles = sorted(folder.glob("*.flags"), key=_by_name_and_number)
    if not flagfiles:
        raise InvalidInputError(f"there are no flagfiles of cells in {folder}.")
    chosen = [
        path
        for path in flagfiles
        if not patterns or any(fnmatch.fnmatch(path.stem, p) for p in patterns)
    ]
    if not chosen:
        raise InvalidInputError(
            f"--cells={','.join(patterns)} matches none of "
            f"{', '.join(path.stem for path in flagfiles)}."
        )
    if not seeds or not all(seed.isdecimal() for seed in seeds):
        raise InvalidInputError(f"--seeds={','.join(seeds)} must be whole numbers.")
    return [
        _Job(path.stem, int(seed), path, results_dir / path.stem / f"seed{int(seed)}")
        for seed in seeds
        for path in chosen
    ]


def _by_name_and_number(path: pathlib.Path) -> list[str | int]:
    """Sorts m5 before m10."""
    return [
        int(part) if part.isdecimal() else part
        for part in re.split(r"(\d+)", path.stem)
    ]


def _run_all(jobs: list[_Job]) -> None:
    """Keeps all slots at work until every job is done or has failed."""
    slots = len(flags.FLAGS.gpus) or len(os.sched_getaffinity(0))
    free = list(range(flags.FLAGS.workers or slots))
    num_slots = len(free)
    waiting = [job for job in jobs if not job.is_done]
    running: list[_Job] = []
    view = _View(jobs)
    try:
        while waiting or running:
            while waiting and free:
                job = waiting.pop(0)
                job.slot = free.pop(0)
                _start(job, num_slots)
                running.append(job)
            time.sleep(0.5)
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                free.append(job.slot)
                job.exit_code = job.process.returncode
                view.ended(job)
            view.update(running)
    finally:
        # They save what they have.
        for job in running:
            job.process.terminate()
        for job in running:
            job.process.wait()
        view.close()


def _start(job: _Job, num_slots: int) -> None:
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-P",
        "-m",
        "experiments.train",
        f"--flagfile={job.flagfile}",
        f"--seed={job.seed}",
        f"--results_dir={job.folder}",
        f"--warm_start_cache={job.folder.parent.parent / 'warm_starts'}",
    ]
    for name in ("data_dir", "pretrained"):
        if flags.FLAGS[name].value is not None:
            command.append(f"--{name}={flags.FLAGS[name].value}")
    environment = dict(os.environ)
    if flags.FLAGS.gpus:
        gpu = flags.FLAGS.gpus[job.slot % len(flags.FLAGS.gpus)]
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    cores = sorted(os.sched_getaffinity(0))
    share = cores[job.slot % len(cores) :: num_slots]

    def prepare() -> None:
        # TensorFlow makes as many threads as it may use cores.
        os.sched_setaffinity(0, share)
        # If this process is killed, its runs save what they have and end.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    with open(job.log, "a") as log:
        job.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=prepare,
            # Ctrl-C is for this process, which tells the runs.
            start_new_session=True,
        )


class _View:
    """A progress bar over the rounds of all jobs; lines where there is no terminal."""

    def __init__(self, jobs: list[_Job]):
        self._jobs = jobs
        self._last_line = time.monotonic()
        self._start = time.monotonic()
        self._before = sum(job.rounds_done() for job in jobs)
        self._bar = None
        if sys.stderr.isatty():
            total = sum(job.num_rounds() for job in jobs)
            self._bar = tqdm.tqdm(
                total=total, initial=self._before, unit="round", dynamic_ncols=True
            )

    def ended(self, job: _Job) -> None:
        """Says how a job ended."""
        if job.exit_code == 0:
            self._say(f"done: {job.name}: {_final(job)}")
        else:
            self._say(f"FAILED (exit {job.exit_code}): {job.name}; see {job.log}")

    def update(self, running: list[_Job]) -> None:
        """Shows what is running, from time to time."""
        now = time.monotonic()
        if self._bar is None and now - self._last_line < _SECONDS_BETWEEN_LINES:
            return
        text = ", ".join(
            f"{job.name} round {job.rounds_done()}/{job.num_rounds()}"
            for job in running
        )
        done = sum(job.rounds_done() for job in self._jobs)
        if self._bar is not None:
            self._bar.set_description_str(text, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        self._last_line = now
        left = sum(job.num_rounds() for job in self._jobs) - done
        eta = "?"
        if done > self._before:
            seconds = (now - self._start) / (done - self._before) * left
            eta = tqdm.tqdm.format_interval(seconds)
        num_done = sum(job.is_done for job in self._jobs)
        self._say(f"{num_done}/{len(self._jobs)} done; {text}; ETA {eta}")

    def close(self) -> None:
        """Leaves the screen in order."""
        if self._bar is not None:
            self._bar.close()

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)


def _final(job: _Job) -> str:
    outcomes = json.loads((job.folder / "done.json").read_text())["outcomes"]
    return ", ".join(f"{o['percent']:.2f} %" for o in outcomes.values())


def _status(jobs: list[_Job]) -> str:
    """A line per job that has begun, and how many there are."""
    lines = []
    for job in jobs:
        if job.is_done:
            lines.append(f"  {job.name}: done, {_final(job)}")
        elif job.exit_code:
            lines.append(f"  {job.name}: FAILED, exit {job.exit_code}; see {job.log}")
        elif job.rounds_done():
            lines.append(f"  {job.name}: round {job.rounds_done()}/{job.num_rounds()}")
    num_done = sum(job.is_done for job in jobs)
    return "\n".join([f"{num_done} of {len(jobs)} runs are done.", *lines])


if __name__ == "__main__":
    _define_flags()
    program.run(main, takes_arguments=True)
