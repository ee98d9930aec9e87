"""What stands above a table of the paper: of which runs it is, and how they came to be.

Every line follows from the folders of the runs, or from the command that was given.
"""

import collections
import pathlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from experiments.fedss import paper_values, table_results

# Of cells or runs that are an exception, so many are named.
_MOST_NAMES = 4
_PLACES = ("data_dir", "clients_csv", "pretrained")


def is_papers_data(results: table_results.Results, paper: paper_values.Table) -> bool:
    """Returns whether the runs are of the paper's own data set."""
    return results.dataset == paper.dataset


def paper_title(results: table_results.Results, paper: paper_values.Table) -> str:
    """Returns what to call the paper's numbers: with their data set, if it is another.

    Args:
        results: The runs.
        paper: The paper's table.
    """
    if is_papers_data(results, paper):
        return "paper"
    return f"paper ({paper.short_title})"


def header(
    results: table_results.Results,
    paper: paper_values.Table,
    scale: str,
    expected_seeds: Mapping[str, int],
    command: Sequence[str] | None = None,
) -> list[str]:
    """Writes the lines above a table, in Markdown.

    Args:
        results: The runs.
        paper: The paper's table.
        scale: Which cells there were to be.
        expected_seeds: How many seeds each cell is to have, by its name.
        command: What was given to write the table, argument by argument.
    """
    runs = results.runs
    described = [run.description for run in runs if run.description]
    n = results.num_classes
    facts = [
        f"{results.dataset_title}"
        + (f", n = {n:,} classes" if n else "")
        + (
            f", |P_k| = {results.mean_positives:.1f} on average"
            if results.mean_positives is not None
            else ""
        )
    ]
    machines = [d["machine"] for d in described if "machine" in d]
    versions = [d["versions"] for d in described if "versions" in d]
    commits = _distinct(str(v.get("git_commit") or "unknown") for v in versions)
    others = _other_differences(runs)
    return [
        f"# Table {paper.number}, --scale={scale}: {results.dataset_title}",
        "",
        f"- Data: {', '.join(facts)}",
        f"- Metric: {_metric_titles(results, paper)}, in percent, on held-out images "
        "after the last round",
        f"- Rounds: {_rounds(runs, paper)}",
        f"- Seeds: {_seeds(results, expected_seeds)}",
        *([f"- Command: `{_as_shell(command)}`"] if command else []),
        f"- Runs: {_commands(runs)}",
        "- Versions: " + _distinct(map(_version_text, versions)),
        f"- Commit: {commits}"
        + (' ("+": with changes that are in no commit)' if "+" in commits else ""),
        "- Machine: " + _distinct(map(_machine_text, machines)),
        f"- Hours: {sum(run.hours for run in runs):.2f}, summed over the runs (their "
        "rounds and evaluations)",
        *(
            [f"- Settings that differ between cells: {'; '.join(others)}"]
            if others
            else []
        ),
    ]


def _metric_titles(results: table_results.Results, paper: paper_values.Table) -> str:
    title = results.task.metric_title
    return title if len(paper.metrics) == 1 else f"{title} (and top-1 on train images)"


def _rounds(runs: Sequence[table_results.Run], paper: paper_values.Table) -> str:
    """How many rounds the runs have, and which are not there yet."""
    cells = collections.defaultdict(list)
    for run in runs:
        if run.cell not in cells[run.num_rounds]:
            cells[run.num_rounds].append(run.cell)
    numbers = {f"{number:,}": names for number, names in cells.items()}
    text = _by_group(numbers) if len(numbers) > 1 else "".join(numbers)
    if list(cells) != [paper.rounds]:
        text += f" (paper: {paper.rounds:,})"
    unfinished = [
        f"{run.cell} seed {run.seed} (after {run.rounds_done:,})"
        for run in runs
        if not run.is_done
    ]
    if unfinished:
        text += f"; not there yet: {_some(unfinished)}"
    return text


def _seeds(results: table_results.Results, expected_seeds: Mapping[str, int]) -> str:
    """Which seeds the cells have, and how many runs are done of those to be."""
    names = collections.defaultdict(list)
    for cell in results.cells.values():
        names[", ".join(str(run.seed) for run in cell.runs)].append(cell.name)
    begun = {cell.name for cell in results.cells.values()}
    missing = [name for name in expected_seeds if name not in begun]
    num_done = sum(run.is_done for run in results.runs)
    return "; ".join(
        [
            _by_group(names, is_all=not missing),
            *([f"none yet in {_cells(missing)}"] if missing else []),
            f"{num_done} of {sum(expected_seeds.values())} runs are done",
        ]
    )


def _by_group(cells: Mapping[str, Sequence[str]], is_all: bool = True) -> str:
    """Writes values with the cells that have them, the most frequent first.

    Args:
        cells: By value, names.
        is_all: Whether there are no other cells.
    """
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


def _commands(runs: Sequence[table_results.Run]) -> str:
    """The commands of the runs, with CELL and SEED for what each has of its own."""
    patterns: dict[str, None] = {}
    num_unknown = 0
    for run in runs:
        command = (run.description or {}).get("command")
        if not command:
            num_unknown += 1
            continue
        program = pathlib.PurePath(command[0]).stem
        arguments = [
            _without_names(argument, run.cell, run.seed) for argument in command[1:]
        ]
        patterns[_as_shell(["./run.sh", program, *arguments])] = None
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


def _other_differences(runs: Sequence[table_results.Run]) -> list[str]:
    """Flags that differ between cells and are not what the table is about."""
    expected = {"seed", *_PLACES, *table_results.KIND.cell_flags}
    names = sorted({name for run in runs for name in run.flags} - expected)
    found = {
        name: sorted({run.flags.get(name, "(unset)") for run in runs}) for name in names
    }
    return [
        f"--{name}={' and '.join(values)}"
        for name, values in found.items()
        if len(values) > 1
    ]
