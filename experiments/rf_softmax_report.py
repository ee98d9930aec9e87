"""Curves and a table of sampled softmax runs, a sampler a row.

    ./run.sh rf_softmax_report --results_dir=DIR --output_dir=DIR --name=ptb

reads DIR/SAMPLER/, the results folders of `./run.sh rf_softmax`, finished or not, and
writes NAME.png, NAME.csv and NAME.md. For precision@k, the poster's numbers on its
(much larger) data sets stand below the table.
"""

import pathlib
from typing import Any

from absl import flags

from experiments import output_files, program, sampler_curves
from tff_fedss import samplers, training
from tff_fedss.errors import InvalidInputError

_RESULTS_DIR = flags.DEFINE_string(
    "results_dir", None, "Holds the results folders, named by their samplers."
)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where to write.")
_NAME = flags.DEFINE_string("name", "curves", "Of the files, without an ending.")

_ORDER = (*samplers.SAMPLERS, "full")
_TITLES = {
    "perplexity": "validation perplexity",
    "precision_at_1": "P@1",
    "precision_at_3": "P@3",
    "precision_at_5": "P@5",
    "top1": "top-1",
}
# Data set: n, and sampler: P@1, P@3, P@5.
_POSTER = {
    "AmazonCat-13k (n = 13,330)": {
        "exp": (0.87, 0.76, 0.62),
        "uniform": (0.83, 0.69, 0.55),
        "quadratic": (0.84, 0.74, 0.60),
        "rff": (0.87, 0.75, 0.61),
    },
    "Delicious-200k (n = 205,443)": {
        "exp": (0.42, 0.38, 0.37),
        "uniform": (0.36, 0.34, 0.32),
        "quadratic": (0.40, 0.36, 0.34),
        "rff": (0.41, 0.37, 0.36),
    },
    "WikiLSHTC (n = 325,056)": {
        "exp": (0.58, 0.37, 0.29),
        "uniform": (0.47, 0.29, 0.22),
        "quadratic": (0.57, 0.37, 0.28),
        "rff": (0.56, 0.35, 0.26),
    },
}


def main() -> None:
    """Reads and writes."""
    for flag in (_RESULTS_DIR, _OUTPUT_DIR):
        if not flag.value:
            raise InvalidInputError(f"--{flag.name}=DIR is needed.")
    curves = _read(pathlib.Path(_RESULTS_DIR.value))
    folder = output_files.create_folder(_OUTPUT_DIR.value)
    metrics = [
        m for m in _TITLES if any(m in row for r in curves.values() for row in r)
    ]
    sampler_curves.plot(
        curves,
        metrics[0],
        _TITLES[metrics[0]],
        folder / f"{_NAME.value}.png",
        is_share=metrics[0] != "perplexity",
    )
    columns = ["steps", *metrics]
    output_files.write_csv(
        folder / f"{_NAME.value}.csv",
        [
            {"sampler": name, **{c: row[c] for c in columns}}
            for name, rows in curves.items()
            for row in rows
            if metrics[0] in row
        ],
        ["sampler", *columns],
    )
    text = _as_markdown(curves, metrics)
    output_files.write_text(folder / f"{_NAME.value}.md", text)
    print(text)


def _read(results_dir: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
    """Reads the rows of all samplers that are there, with numbers as numbers."""
    curves = {}
    for name in _ORDER:
        rows = training.read_metrics(results_dir / name)
        for row in rows:
            row.setdefault("steps", 0)
        if any(set(_TITLES) & set(row) for row in rows):
            curves[name] = rows
    if not curves:
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no SAMPLER/metrics.csv with a "
            f"measurement, for a sampler of {', '.join(_ORDER)}."
        )
    return curves


def _as_markdown(curves: dict[str, list[dict[str, Any]]], metrics: list[str]) -> str:
    lines = [
        "| sampler | steps | "
        + " | ".join(_TITLES[m] for m in metrics)
        + " | clipped |",
        "|---" * (len(metrics) + 3) + "|",
    ]
    for name, rows in curves.items():
        last = [row for row in rows if metrics[0] in row][-1]
        values = [_format(m, last[m]) for m in metrics]
        clipped = last.get("clipped_share", "")
        clipped = f"{clipped:.1%}" if clipped else ""
        lines.append(
            f"| {name} | {last['steps']:,} | {' | '.join(values)} | {clipped} |"
        )
    if metrics[0] == "precision_at_1":
        lines += ["", "The poster's:", "", "| data | sampler | P@1 | P@3 | P@5 |"]
        lines.append("|---|---|---|---|---|")
        for data, rows in _POSTER.items():
            for name, values in rows.items():
                cells = " | ".join(f"{value:.2f}" for value in values)
                lines.append(f"| {data} | {name} | {cells} |")
    return "\n".join(lines) + "\n"


def _format(metric: str, value: float) -> str:
    return f"{value:.1f}" if metric == "perplexity" else f"{value:.3f}"


if __name__ == "__main__":
    program.run(main)
