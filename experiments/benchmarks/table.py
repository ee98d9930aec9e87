"""The benchmark's results as CSV, Markdown and a plot."""

import dataclasses
import datetime
import itertools
import os
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from experiments.benchmarks import contest
from experiments.benchmarks.contest import Result
from experiments.common import output_files, plots
from experiments.common.table import as_markdown
from tff_fedss import training

_OURS = ("ours_in_process", "ours_native")
_TFF = "tff_fed_avg"
# Frameworks for federated learning; the plain loops are limits, not peers.
_PEERS = (_TFF, "fedjax", "pfl_research", "flower")
_COLOURS = {"ours": plots.COLORS[0], "plain": "0.7", "peer": plots.COLORS[4]}
_HEADER = (
    "contender|images/s|of plain TensorFlow|s a round (min-max, rounds)|build, s"
    "|first round, s|peak MiB|weights, loss differ|settings"
)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Where and when the numbers were measured.

    Attributes:
        processor: Its name.
        cores: How many the processes may use.
        load: The load average of the last minute when the benchmark began.
        begun: When.
    """

    processor: str
    cores: int
    load: float
    begun: str

    @classmethod
    def here(cls) -> "Machine":
        """Looks at this machine."""
        return cls(
            processor=training.processor() or "unknown processor",
            cores=len(os.sched_getaffinity(0)),
            load=os.getloadavg()[0],
            begun=datetime.datetime.now().isoformat(" ", "minutes"),
        )

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.processor}, {self.cores} cores, load average {self.load:.1f} "
            f"before the first process, {self.begun}."
        )


def write(
    output_dir: pathlib.Path, results: Sequence[Result], machine: Machine, check: str
) -> None:
    """Writes benchmark.csv, benchmark_rounds.csv, benchmark.md, .png and .pdf.

    Args:
        output_dir: Where to.
        results: Of all workloads so far, workload by workload.
        machine: Where they were measured.
        check: The tolerances, in words.
    """
    groups = [list(g) for _, g in itertools.groupby(results, lambda r: r.workload)]
    rows = [_row(result, group) for group in groups for result in group]
    output_files.write_csv(output_dir / "benchmark.csv", rows)
    output_files.write_csv(output_dir / "benchmark_rounds.csv", _rounds(results))
    output_files.write_text(
        output_dir / "benchmark.md", markdown(groups, machine, check)
    )
    _plot(groups, output_dir / "benchmark.png")


def _row(result: Result, group: Sequence[Result]) -> dict[str, Any]:
    seconds = result.seconds
    return {
        "workload": result.workload.name,
        "num_clients": result.workload.num_clients,
        "contender": result.contender,
        "status": result.status,
        "images_per_second": result.images_per_second,
        "of_plain_tensorflow": _of(result, _named(group, contest.REFERENCE)),
        "seconds_median": statistics.median(seconds) if seconds else None,
        "seconds_min": min(seconds, default=None),
        "seconds_max": max(seconds, default=None),
        "build_seconds": result.build_seconds,
        "first_round_seconds": result.first_seconds,
        "peak_mib": result.peak_mib,
        "weights_difference": result.weights_difference,
        "loss_difference": result.loss_difference,
        "note": result.note,
    }


def _rounds(results: Iterable[Result]) -> Iterable[dict[str, Any]]:
    for result in results:
        times = [("build", result.build_seconds), ("first", result.first_seconds)]
        for what, seconds in [*times, *enumerate(result.seconds, 1)]:
            yield {
                "workload": result.workload.name,
                "num_clients": result.workload.num_clients,
                "contender": result.contender,
                "status": result.status,
                "round": what,
                "seconds": seconds,
            }


def markdown(groups: Sequence[Sequence[Result]], machine: Machine, check: str) -> str:
    """Returns the tables.

    Args:
        groups: The results of each workload.
        machine: Where they were measured.
        check: The tolerances, in words.

    Returns:
        Markdown: a table for each workload, and what follows from it for this project.
    """
    parts = [f"# Benchmark\n\n{machine}\n\nEqual to plain_tensorflow means: {check}."]
    for group in groups:
        w = group[0].workload
        cells = [_line(result, group) for result in group]
        parts.append(
            f"## {w.name}, {w.num_clients} clients of {w.num_examples} images\n\n"
            f"{as_markdown(_HEADER.split('|'), cells, left=(0, 8))}"
        )
        if claims := list(_claims(group)):
            parts.append("\n".join(f"- {claim}" for claim in claims))
    return "\n\n".join(parts) + "\n"


def _line(result: Result, group: Sequence[Result]) -> list[str]:
    if result.status in ("failed", "none"):
        blanks = [""] * (_HEADER.count("|") - 1)
        return [result.contender, f"{result.status}: {_cell(result.note)}", *blanks]
    name = result.contender
    if result.status != "ok":
        name += f" **{result.status}**"
    rate, ratio = (
        result.images_per_second,
        _of(result, _named(group, contest.REFERENCE)),
    )
    s = result.seconds
    spread = (
        f"{statistics.median(s):.2f} ({min(s):.2f}-{max(s):.2f}, {len(s)})"
        if s
        else "none"
    )
    differences = (
        "unknown"
        if result.weights_difference is None
        else f"{result.weights_difference:.1e}, {result.loss_difference:.1e}"
    )
    return [
        name,
        "" if rate is None else f"{rate:,.0f}",
        "" if ratio is None else f"{ratio:.2f}",
        spread,
        f"{result.build_seconds:.1f}",
        f"{result.first_seconds:.1f}",
        "" if result.peak_mib is None else f"{result.peak_mib:,.0f}",
        differences,
        _cell(result.note),
    ]


def _cell(text: str) -> str:
    return " ".join(text.split())


def _claims(group: Sequence[Result]) -> Iterable[str]:
    """What follows for this project, from the contenders that are right."""
    right = [r for r in group if r.status == "ok" and r.seconds]
    peers = [r for r in right if r.contender.split(":")[0] in _PEERS]
    best = max(peers, key=lambda r: r.images_per_second, default=None)
    for ours in right:
        if ours.contender.split(":")[0] not in _OURS:
            continue
        words = []
        for other, what in (
            (_named(right, contest.REFERENCE), "plain TensorFlow"),
            (_named(right, _TFF), "TFF's FedAvg"),
            (best, f"the best peer ({best.contender})" if best else ""),
        ):
            if (ratio := _of(ours, other)) is not None:
                words.append(f"{ratio:.2f} of {what}")
        first = ours.first_seconds / statistics.median(ours.seconds)
        words.append(f"first round {first:.1f} of the median")
        yield f"{ours.contender}: {', '.join(words)}."


def _named(group: Sequence[Result], name: str) -> Result | None:
    return next((r for r in group if r.contender == name), None)


def _of(result: Result, other: Result | None) -> float | None:
    """The median of how often as fast it was as another, turn by turn."""
    if other is None or not result.seconds or not other.seconds:
        return None
    return statistics.median(
        b / a for a, b in zip(result.seconds, other.seconds, strict=False)
    )


def _plot(groups: Sequence[Sequence[Result]], path: pathlib.Path) -> None:
    """Bars of images/s, a panel for each workload."""
    drawn = [[r for r in group if r.seconds] for group in groups]
    height = 0.7 * len(drawn) + 0.3 * sum(map(len, drawn)) + 0.3
    options = {"squeeze": False, "height_ratios": [1 + len(d) for d in drawn]}
    with plots.figure(path, len(drawn), 1, figsize=(8, height), **options) as (_, grid):
        for ax, group, all_of_it in zip(grid[:, 0], drawn, groups, strict=True):
            w = all_of_it[0].workload
            ax.set_title(f"{w.name}, {w.num_clients} clients", loc="left", fontsize=9)
            ax.xaxis.set_major_formatter("{x:,.0f}")
            rounds = {
                r.contender: [w.images_per_round / s for s in r.seconds] for r in group
            }
            right = [r for r in group if r.status == "ok"] or group
            # A wrong one may be so fast that the others would not be seen.
            limit = 1.2 * max(max(rounds[r.contender]) for r in right)
            ax.set_xlim(0, limit)
            for i, result in enumerate(group):
                rate, speeds = result.images_per_second, rounds[result.contender]
                kind = result.contender.split("_")[0]
                ax.barh(
                    i,
                    rate,
                    color=_COLOURS.get(kind, _COLOURS["peer"]),
                    edgecolor="white",
                    hatch="xx" if result.status != "ok" else None,
                    xerr=[[rate - min(speeds)], [max(speeds) - rate]],
                    capsize=2,
                )
                ax.text(
                    min(max(speeds) + 0.01 * limit, 0.9 * limit),
                    i,
                    f"{rate:,.0f}",
                    va="center",
                    fontsize=8,
                    bbox={"color": "white", "pad": 1},
                )
            ax.set_yticks(
                range(len(group)),
                [r.contender + (" WRONG" if r.status != "ok" else "") for r in group],
                fontsize=8,
            )
            ax.grid(axis="y", visible=False)
            ax.invert_yaxis()
            ax.tick_params(axis="x", labelsize=8)
        ax.set_xlabel("images/s: median, slowest and fastest round")
