"""The header of a table: its runs and their provenance.

Every line is computed from the files of the runs, or from the command; or, if a table
is measured by the process that writes it, from that process.
"""

import collections
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from experiments.common import results
from tff_fedss.training import provenance

# Number of exceptional cells or runs that are listed.
_MOST_NAMES = 4
_PLACES = ("data_dir", "pretrained")

Cells = Mapping[str, Sequence[results.Run]]


def lines(
    cells: Cells,
    command: Sequence[str] | None = None,
    expected_seeds: Mapping[str, int] | None = None,
) -> list[str]:
    """Describes runs: their number, commit, machine and so on.

    Args:
        cells: The runs of each cell, by its name; there must be one.
        command: The command that writes the table, argument by argument.
        expected_seeds: The expected number of seeds of each cell, by name; None: its
            current number.

    Returns:
        Items of a list in Markdown.
    """
    runs = [run for own in cells.values() for run in own]
    expected_seeds = expected_seeds or {name: len(own) for name, own in cells.items()}
    described = [run.description for run in runs if run.description]
    machines = [d["machine"] for d in described if "machine" in d]
    versions = [d["versions"] for d in described if "versions" in d]
    commits = _distinct(str(v.get("git_commit") or "unknown") for v in versions)
    others = _other_differences(runs)
    return [
        f"- {runs[0].kind.length.capitalize()}: {_rounds(cells)}",
        f"- Seeds: {_seeds(cells, expected_seeds)}",
        *([f"- Command: `{_as_shell(command)}`"] if command else []),
        f"- Runs: {_commands(cells)}",
        "- Versions: " + _distinct(map(_version_text, versions)),
        _commit_line(commits),
        "- Machine: " + _distinct(map(_machine_text, machines)),
        f"- Hours: {sum(run.hours for run in runs):.2f}, summed over the runs (their "
        "rounds and evaluations)",
        *(
            [f"- Settings that differ between cells: {'; '.join(others)}"]
            if others
            else []
        ),
    ]


def of_this_process(flags: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Describes the provenance of numbers that this process has measured."""
    described = provenance.describe(flags)
    versions = described["versions"]
    return [
        f"- Command: `{_as_shell(command)}`",
        f"- Versions: {_version_text(versions)}",
        _commit_line(str(versions["git_commit"] or "unknown")),
        f"- Machine: {_machine_text(described['machine'])}",
    ]


def _commit_line(commits: str) -> str:
    return f"- Commit: {commits}" + (
        ' ("+": with changes that are in no commit)' if "+" in commits else ""
    )


def _rounds(cells: Cells) -> str:
    """Returns the number of rounds of the runs, and which are unfinished."""
    by_length = collections.defaultdict(dict)
    unfinished = []
    for name, runs in cells.items():
        for run in runs:
            by_length[run.num_rounds][name] = None
            if not run.is_done:
                after = f"(after {run.rounds_done:,})"
                unfinished.append(f"{name} seed {run.seed} {after}")
    numbers = {f"{number:,}": [*names] for number, names in by_length.items()}
    text = _by_group(numbers) if len(numbers) > 1 else "".join(numbers)
    if unfinished:
        text += f"; not there yet: {_some(unfinished)}"
    return text


def _seeds(cells: Cells, expected_seeds: Mapping[str, int]) -> str:
    """Returns the seeds of the cells, and how many of the expected runs are done."""
    names = collections.defaultdict(list)
    for name, runs in cells.items():
        names[", ".join(str(run.seed) for run in runs)].append(name)
    missing = [name for name in expected_seeds if name not in cells]
    num_done = sum(run.is_done for runs in cells.values() for run in runs)
    return "; ".join(
        [
            _by_group(names, is_all=not missing),
            *([f"none yet in {_cells(missing)}"] if missing else []),
            f"{num_done} of {sum(expected_seeds.values())} runs are done",
        ]
    )


def _by_group(cells: Mapping[str, Sequence[str]], is_all: bool = True) -> str:
    """Writes values with the cells that have them, the most frequent first."""
    groups = sorted(cells.items(), key=lambda item: -len(item[1]))
    if len(groups) == 1 and is_all:
        value, names = groups[0]
        return f"{value} in each of {len(names)} cells" if len(names) > 1 else value
    return "; ".join(f"{value} in {_cells(names)}" for value, names in groups)


def _cells(names: Sequence[str]) -> str:
    return f"{len(names)} cells" if len(names) > _MOST_NAMES else ", ".join(names)


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMES
    shown = ", ".join(texts[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _as_shell(command: Sequence[str]) -> str:
    return " ".join(shlex.join(command).split())


def _commands(cells: Cells) -> str:
    """Returns the commands of the runs, with CELL and SEED for their differences."""
    patterns: dict[str, None] = {}
    num_unknown = 0
    for name, runs in cells.items():
        for run in runs:
            command = (run.description or {}).get("command")
            if not command:
                num_unknown += 1
                continue
            own = [_without_names(part, name, run.seed) for part in command[1:]]
            patterns[_as_shell(["./run.sh", run.kind.program, *own])] = None
    texts = [f"`{pattern}`" for pattern in patterns]
    if num_unknown:
        texts.append(f"{num_unknown} unknown")
    return _some(texts)


def _without_names(argument: str, cell: str, seed: int) -> str:
    argument = re.sub(rf"(?<![^/=]){re.escape(cell)}(?=[/.]|$)", "CELL", argument)
    return re.sub(rf"(?<=[/-])(-?seed=?){seed}(?=/|$)", r"\1SEED", argument)


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(sorted(set(texts))) or "unknown"


def _version_text(versions: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {version}"
        for name, version in versions.items()
        if name != "git_commit"
    )


def _machine_text(machine: Mapping) -> str:
    gpus = machine.get("gpus") or []
    return (
        f"{machine.get('processor') or 'unknown processor'}, {machine.get('cpus')} "
        f"CPUs, {machine.get('memory_gib')} GiB, "
        + (f"{len(gpus)} GPUs" if gpus else "no GPU")
    )


def _other_differences(runs: Sequence[results.Run]) -> list[str]:
    """Returns flags that differ between cells and do not define them."""
    expected = {"seed", *_PLACES, *runs[0].kind.cell_flags}
    names = sorted({name for run in runs for name in run.flags} - expected)
    found = {
        name: sorted({run.flags.get(name, "(unset)") for run in runs}) for name in names
    }
    return [
        f"--{name}={' and '.join(values)}"
        for name, values in found.items()
        if len(values) > 1
    ]
