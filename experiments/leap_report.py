"""LEAP, SPLD and Random side by side: Table 1, and figures 2 to 11.

    ./run.sh leap_report --results_dir=results/leap --output_dir=docs/results/leap

reads results/leap/SETTING/METHOD/seedN/, the results folders of `./run.sh leap`,
finished or not, and writes table1.md and table1.csv with the paper's numbers beside
ours, and for each setting (any name, such as cifar10_mini) curves.png (figures 2, 4, 6,
7, 9, 10), selection.png, and embedding.png (figures 3, 5, 8, 11), with the setting's
name before each. It takes seconds, and about 10 more per setting for t-SNE.
"""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence

from absl import flags

from experiments import leap_figures, output_files, program
from tff_fedss import training
from tff_fedss.errors import InvalidInputError

_RESULTS_DIR = flags.DEFINE_string(
    "results_dir", None, "Holds SETTING/METHOD/seedN, the results folders."
)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where to write.")

# Table 1 of the paper: test accuracy in percent, five runs (four of the last two).
PAPER = {
    "mnist": {"leap": "99.31 ± 0.06", "spld": "99.20 ± 0.05", "random": "99.24 ± 0.06"},
    "fashion_mnist": {
        "leap": "93.76 ± 0.11",
        "spld": "93.17 ± 0.18",
        "random": "92.95 ± 0.14",
    },
    "cifar10": {
        "leap": "95.12 ± 0.16",
        "spld": "94.42 ± 0.21",
        "random": "94.49 ± 0.12",
    },
    "cifar100": {
        "leap": "79.17 ± 0.24",
        "spld": "74.67 ± 0.30",
        "random": "75.45 ± 0.25",
    },
    "svhn_cropped": {
        "leap": "97.65 ± 0.09",
        "spld": "97.38 ± 0.06",
        "random": "97.43 ± 0.11",
    },
}
_SEED_FOLDER = re.compile(r"seed(\d+)")


@dataclasses.dataclass(frozen=True)
class Run:
    """One results folder.

    Attributes:
        path: The folder.
        rows: Of its metrics.csv.
        flags: What decided it.
        is_done: Whether it came to its end.
    """

    path: pathlib.Path
    rows: Sequence[training.Metrics]
    flags: Mapping[str, str]
    is_done: bool


# By setting and method, the runs by seed.
Results = dict[str, dict[str, list[Run]]]


def main() -> None:
    """Reads and writes."""
    for flag in (_RESULTS_DIR, _OUTPUT_DIR):
        if not flag.value:
            raise InvalidInputError(f"--{flag.name}=DIR is needed.")
    results = _read(pathlib.Path(_RESULTS_DIR.value))
    folder = output_files.create_folder(_OUTPUT_DIR.value)
    for setting, methods in results.items():
        _draw(setting, methods, folder)
    table = [
        _table_row(setting, method, runs, methods.get("random"))
        for setting, methods in results.items()
        for method, runs in methods.items()
    ]
    output_files.write_csv(folder / "table1.csv", table)
    text = _as_markdown(table)
    output_files.write_text(folder / "table1.md", text)
    print(text)


def _read(results_dir: pathlib.Path) -> Results:
    results: Results = {}
    for setting in sorted(p for p in results_dir.glob("*") if p.is_dir()):
        methods: dict[str, list[Run]] = {}
        for method in leap_figures.METHODS:
            runs = [_read_run(path) for path in _seed_folders(setting / method)]
            if runs := [run for run in runs if run.rows]:
                methods[method] = runs
        if methods:
            _check_alike(setting, methods)
            results[setting.name] = methods
    if not results:
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no SETTING/METHOD/seedN/metrics.csv "
            f"with a row, for a method of {', '.join(leap_figures.METHODS)}."
        )
    return results


def _seed_folders(folder: pathlib.Path) -> list[pathlib.Path]:
    found = [(_SEED_FOLDER.fullmatch(p.name), p) for p in folder.glob("seed*")]
    return [path for _, path in sorted((int(m[1]), p) for m, p in found if m)]


def _read_run(path: pathlib.Path) -> Run:
    return Run(
        path,
        training.read_metrics(path),
        training.read_flags(path),
        (path / "done.json").exists(),
    )


def _check_alike(setting: pathlib.Path, methods: Mapping[str, Sequence[Run]]) -> None:
    """Checks that what stands side by side differs in method and seed alone."""
    free = {"method", "seed", "data_dir"}
    first = None
    for run in (run for runs in methods.values() for run in runs):
        first = first or run
        for name in sorted({*run.flags, *first.flags} - free):
            ours, theirs = run.flags.get(name), first.flags.get(name)
            if ours != theirs:
                raise InvalidInputError(
                    f"{setting}: {run.path} has --{name}={ours}, {first.path} "
                    f"--{name}={theirs}; one setting must have the same."
                )


def _draw(
    setting: str, methods: Mapping[str, Sequence[Run]], folder: pathlib.Path
) -> None:
    rows = {method: [run.rows for run in runs] for method, runs in methods.items()}
    leap_figures.plot_curves(rows, folder / f"{setting}_curves.png")
    leap_figures.plot_selection(rows, folder / f"{setting}_selection.png")
    for run in methods.get("leap", ()):
        path = run.path / "representations.npz"
        if path.exists():
            saved = training.read_arrays(path)
            leap_figures.plot_embedding(
                run.rows,
                saved["representations"],
                saved["labels"],
                saved["class_names"].tolist(),
                folder / f"{setting}_embedding.png",
            )
            return


def _table_row(
    setting: str, method: str, runs: Sequence[Run], random: Sequence[Run] | None
) -> dict[str, str]:
    """One row of the table, as text; blank is what is not known."""
    curve = leap_figures.mean_curve([run.rows for run in runs], "top1")
    steps, mean, spread = curve
    reached = ""
    if random is not None:
        _, random_mean, _ = leap_figures.mean_curve([r.rows for r in random], "top1")
        is_reached = mean >= random_mean[-1]
        reached = f"{steps[is_reached.argmax()]:,}" if is_reached.any() else "not"
    dataset = runs[0].flags.get("dataset", "")
    last = f"{100 * mean[-1]:.2f}"
    if len(runs) > 1:
        last += f" ± {100 * spread[-1]:.2f}"
    unfinished = sum(not run.is_done for run in runs)
    return {
        "setting": setting,
        "method": leap_figures.METHODS[method],
        "mini-batches": f"{steps[-1]:,}",
        "seeds": str(len(runs)) + (f" ({unfinished} unfinished)" * bool(unfinished)),
        "top-1 %": last,
        "reaches Random's last after": reached,
        "paper's Table 1": PAPER.get(dataset, {}).get(method, ""),
    }


def _as_markdown(table: Sequence[Mapping[str, str]]) -> str:
    columns = list(table[0])
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(row.values())} |" for row in table]
    lines += [
        "",
        "Mean and standard deviation over seeds, at the last mini-batch that all seeds "
        "have. The paper's numbers are of its full settings, whatever ours is.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    program.run(main)
