"""A table and curves of Partial FC runs: are the positives what must be kept?

    ./run.sh partial_fc_report --results_dir=DIR --output_dir=DIR --name=omniglot

reads DIR/RUN/, the results folders of `./run.sh partial_fc`, finished or not, and
writes NAME.png (TAR@FAR, CA_pcc and the loss by steps), NAME.csv (a row per measurement
of CA_pcc) and NAME.md. Folders of one run name (`pprn_0.1`, ...) are one row: the mean
and the standard deviation over seeds; the curves are of the first. Takes seconds.
"""

import pathlib
import statistics
from typing import Any

from absl import flags

from experiments import output_files, partial_fc_curves, program
from tff_fedss import training
from tff_fedss.errors import InvalidInputError
from tff_fedss.tasks.identities import IdentityVerification

_TITLES = {
    "tar_at_far": IdentityVerification.metric_title,
    "pair_accuracy": "pair accuracy",
    "map_at_r": "MAP@R",
    "top1": "top-1",
    "ca_pcc": "CA_pcc",
    "trained_share": "examples with a target",
    "classes_per_step": "classes in a step",
}


def _define_flags() -> None:
    # Not at the import: other programs have flags of these names.
    flags.DEFINE_string("results_dir", None, "Holds the results folders.")
    flags.DEFINE_string("output_dir", None, "Where to write.")
    flags.DEFINE_string("name", "partial_fc", "Of the files, without an ending.")


def main() -> None:
    """Reads and writes."""
    for name in ("results_dir", "output_dir"):
        if not flags.FLAGS[name].value:
            raise InvalidInputError(f"--{name}=DIR is needed.")
    write(
        pathlib.Path(flags.FLAGS.results_dir),
        pathlib.Path(flags.FLAGS.output_dir),
        flags.FLAGS.name,
    )


def write(results_dir: pathlib.Path, output_dir: pathlib.Path, name: str) -> None:
    """Writes the curves and the table, and prints it.

    Args:
        results_dir: Holds the results folders.
        output_dir: Where to write; created if need be.
        name: Of the files.

    Raises:
        InvalidInputError: If there are no results, or damaged ones.
    """
    runs = _read(results_dir)
    output_files.create_folder(output_dir)
    firsts = {key: seeds[0] for key, seeds in runs.items()}
    partial_fc_curves.plot(firsts, _TITLES["tar_at_far"], output_dir / f"{name}.png")
    columns = ["steps", "loss", *_TITLES]
    output_files.write_csv(
        output_dir / f"{name}.csv",
        [
            {"run": key, "repeat": repeat, **{c: row.get(c, "") for c in columns}}
            for key, seeds in runs.items()
            for repeat, rows in enumerate(seeds)
            for row in rows
        ],
        ["run", "repeat", *columns],
    )
    text = _as_markdown(runs)
    output_files.write_text(output_dir / f"{name}.md", text)
    print(text)


def _read(results_dir: pathlib.Path) -> dict[str, list[list[dict[str, Any]]]]:
    """Reads the rows of all runs, by name and then by folder."""
    runs: dict[str, list[list[dict[str, Any]]]] = {}
    for path in sorted(results_dir.glob("**/metrics.csv")):
        raw = training.read_metrics(path.parent)
        rows = [
            {"steps": 0.0, **{k: float(v) for k, v in row.items() if k != "method"}}
            for row in raw
        ]
        if any("ca_pcc" in row for row in rows):
            runs.setdefault(raw[0]["method"], []).append(rows)
    if not runs:
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no RUN/metrics.csv with CA_pcc."
        )
    return dict(sorted(runs.items(), key=lambda item: (item[0] != "full", item[0])))


def _as_markdown(runs: dict[str, list[list[dict[str, Any]]]]) -> str:
    """A row for each name: the last measurement of each column, over its folders."""
    columns = [
        c
        for c in _TITLES
        if any(c in row for seeds in runs.values() for rows in seeds for row in rows)
    ]
    lines = [
        "| run | seeds | steps | " + " | ".join(_TITLES[c] for c in columns) + " |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for name, seeds in runs.items():
        steps = ", ".join(
            f"{n:,.0f}" for n in sorted({rows[-1]["steps"] for rows in seeds})
        )
        cells = [_cell(c, [_last(c, rows) for rows in seeds]) for c in columns]
        lines.append(f"| {name} | {len(seeds)} | {steps} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _last(column: str, rows: list[dict[str, Any]]) -> float | None:
    return next((row[column] for row in reversed(rows) if column in row), None)


def _cell(column: str, values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    digits = 0 if column == "classes_per_step" else 3
    text = f"{statistics.mean(known):,.{digits}f}"
    if len(known) > 1:
        text += f" ± {statistics.stdev(known):.{digits}f}"
    return text


if __name__ == "__main__":
    _define_flags()
    program.run(main)
