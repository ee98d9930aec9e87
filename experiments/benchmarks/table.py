"""The benchmark's results as CSV, Markdown and a plot."""

import datetime
import itertools
import os
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from experiments.benchmarks import contest
from experiments.benchmarks.contest import Result
from experiments.common import plots
from experiments.common import table as tables
from tff_fedss import files, training
from tff_fedss.training import run_files

_OURS = ("ours_in_process", "ours_native")
_TFF = "tff_fed_avg"
# Frameworks for federated learning; the plain loops are limits, not peers.
_PEERS = (_TFF, "fedjax", "pfl_research", "flower")
_COLOURS = {"ours": plots.COLORS[0], "plain": "0.7", "peer": plots.COLORS[4]}
# Of benchmark.csv: the title and the format in benchmark.md.
_COLUMNS = {
    "contender": ("contender", "{}"),
    "status": ("status", "{}"),
    "images_per_second": ("images/s", "{:,.0f}"),
    "of_plain_tensorflow": ("of plain TensorFlow", "{:.2f}"),
    "rounds": ("rounds", "{}"),
    "seconds_median": ("s a round", "{:.2f}"),
    "seconds_min": ("least", "{:.2f}"),
    "seconds_max": ("most", "{:.2f}"),
    "build_seconds": ("build, s", "{:.1f}"),
    "first_round_seconds": ("first round, s", "{:.1f}"),
    "peak_mib": ("peak MiB", "{:,.0f}"),
    "weights_difference": ("weights differ", "{:.1e}"),
    "loss_difference": ("loss differs", "{:.1e}"),
    "note": ("settings, or why", "{}"),
}


def this_machine() -> str:
    """Describes in a line where and when the numbers are measured."""
    return (
        f"{training.processor() or 'unknown processor'}, "
        f"{len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f} "
        "before the first process, "
        f"{datetime.datetime.now().isoformat(' ', 'minutes')}."
    )


def write(
    output_dir: pathlib.Path, results: Sequence[Result], machine: str, check: str
) -> None:
    """Writes benchmark.csv, benchmark_rounds.csv, benchmark.md, .png and .pdf.

    Args:
        results: Results of all workloads so far, workload by workload.
        machine: Where they were measured, see `this_machine`.
        check: The tolerances, in words.
    """
    groups = [list(g) for _, g in itertools.groupby(results, lambda r: r.workload)]
    page = [f"# Benchmark\n\n{machine}\n\nEqual to plain_tensorflow means: {check}."]
    rows = []
    for group in groups:
        own = [_row(result, group) for result in group]
        rows += own
        w = group[0].workload
        cells = [
            [
                "" if row[name] is None else look.format(row[name])
                for name, (_, look) in _COLUMNS.items()
            ]
            for row in own
        ]
        page += [
            f"## {w.name}, {w.num_clients} clients of {w.num_examples} images",
            tables.as_markdown([title for title, _ in _COLUMNS.values()], cells),
            "\n".join(f"- {claim}" for claim in _claims(group)),
        ]
    rounds = list(_rounds(results))
    for name, content in (
        ("benchmark.csv", run_files.as_csv(list(rows[0]), rows)),
        ("benchmark_rounds.csv", run_files.as_csv(list(rounds[0]), rounds)),
        ("benchmark.md", "\n\n".join(filter(None, page)) + "\n"),
    ):
        files.write_text(output_dir / name, content)
    _plot(groups, output_dir / "benchmark.png")


def _of_row(result: Result) -> dict[str, Any]:
    return {
        "workload": result.workload.name,
        "num_clients": result.workload.num_clients,
        "contender": result.contender,
        "status": result.status,
    }


def _row(result: Result, group: Sequence[Result]) -> dict[str, Any]:
    seconds = result.seconds
    return {
        **_of_row(result),
        "images_per_second": result.images_per_second,
        "of_plain_tensorflow": _of(result, _named(group, contest.REFERENCE)),
        "rounds": len(seconds),
        "seconds_median": statistics.median(seconds) if seconds else None,
        "seconds_min": min(seconds, default=None),
        "seconds_max": max(seconds, default=None),
        "build_seconds": result.build_seconds,
        "first_round_seconds": result.first_seconds,
        "peak_mib": result.peak_mib,
        "weights_difference": result.weights_difference,
        "loss_difference": result.loss_difference,
        # On one line, for a cell.
        "note": " ".join(result.note.replace("|", "/").split()),
    }


def _rounds(results: Iterable[Result]) -> Iterable[dict[str, Any]]:
    for result in results:
        times = [("build", result.build_seconds), ("first", result.first_seconds)]
        for what, seconds in [*times, *enumerate(result.seconds, 1)]:
            yield {**_of_row(result), "round": what, "seconds": seconds}


def _claims(group: Sequence[Result]) -> Iterable[str]:
    """Returns the conclusions for this project, from correct contenders."""
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
    """Returns the median ratio of its speed to another's, turn by turn."""
    if other is None or not result.seconds or not other.seconds:
        return None
    return statistics.median(
        b / a for a, b in zip(result.seconds, other.seconds, strict=False)
    )


def _plot(groups: Sequence[Sequence[Result]], path: pathlib.Path) -> None:
    """Draws bars of images/s, a panel for each workload."""
    drawn = [[r for r in group if r.seconds] for group in groups]
    height = 0.7 * len(drawn) + 0.3 * sum(map(len, drawn)) + 0.3
    options = {"squeeze": False, "height_ratios": [1 + len(d) for d in drawn]}
    with plots.figure(path, len(drawn), 1, figsize=(8, height), **options) as (_, grid):
        for ax, group in zip(grid[:, 0], drawn, strict=True):
            for i, result in enumerate(group):
                rate, w = result.images_per_second, result.workload
                speeds = [w.images_per_round / s for s in result.seconds]
                kind = result.contender.split("_")[0]
                ax.set_title(f"{w.name}, {w.num_clients} clients", loc="left")
                bar = ax.barh(
                    i,
                    rate,
                    color=_COLOURS.get(kind, _COLOURS["peer"]),
                    hatch="xx" if result.status != "ok" else None,
                    xerr=[[rate - min(speeds)], [max(speeds) - rate]],
                    capsize=2,
                )
                ax.bar_label(bar, fmt="{:,.0f}", padding=4, fontsize=8)
            wrong = {True: "", False: " WRONG"}
            names = [r.contender + wrong[r.status == "ok"] for r in group]
            ax.set_yticks(range(len(group)), names, fontsize=8)
            ax.grid(axis="y", visible=False)
            ax.invert_yaxis()
        ax.set_xlabel("images/s: median, slowest and fastest round")
