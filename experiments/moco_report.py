"""Tables 1 to 4 and figures 3 to 5 of focal contrastive learning, from our own runs.

    ./run.sh moco_report --results_dir=results/moco --output_dir=docs/results/moco

reads results/moco/CELL/seedN/, the results folders of finished runs of `./run.sh
moco`, and writes linear_accuracy.md, linear_accuracy.csv and losses.png, in a few
seconds. CELL is named as the flagfiles are: a_gamma0 for experiment A with gamma = 0,
and so on to d_gamma2; `untrained` is the random encoder. The paper's numbers
(Imagenette, ResNet-50, 1,250 epochs) stand beside ours.
"""

import json
import pathlib
import statistics
from typing import Any, NamedTuple

import numpy as np
from absl import flags

from experiments import figures, output_files, program
from tff_fedss import losses, tasks, training
from tff_fedss.errors import InvalidInputError

_TITLES = {
    "a": "Experiment A, from scratch (Table 1)",
    "b": "Experiment B, post-training (Table 2)",
    "c": "Experiment C, post-training, clustered (Table 3)",
    "d": "Experiment D, post-training, filtered (Table 4)",
}
_GAMMAS = ("0", "0.5", "1", "2")
# Accuracy in percent, by gamma.
_PAPER = {
    "a": (81.7, 81.4, 80.7, 80.7),
    "b": (84.1, 84.3, 84.2, 83.9),
    "c": (84.0, 84.1, 84.1, 83.8),
    "d": (84.2, 84.9, 85.1, 85.0),
}
_UNTRAINED = "untrained"
# The model whose losses figures 3 to 5 show.
_MEASURED = "a_gamma0"
_FIGURES = dict(zip(losses.INFO_NCE_FORMS, (3, 4, 5), strict=True))


class _Row(NamedTuple):
    cell: str
    gamma: str
    paper: float | None
    accuracies: list[float]  # In percent, a seed each.


def _define_flags() -> None:
    # Not at the import: other programs have flags of these names.
    flags.DEFINE_string("results_dir", None, "Holds CELL/seedN/.")
    flags.DEFINE_string("output_dir", None, "Where to write.")


def main() -> None:
    """Reads and writes."""
    for name in ("results_dir", "output_dir"):
        if not flags.FLAGS[name].value:
            raise InvalidInputError(f"--{name}=DIR is needed.")
    text = write(
        pathlib.Path(flags.FLAGS.results_dir), pathlib.Path(flags.FLAGS.output_dir)
    )
    print(text, end="")


def write(results_dir: pathlib.Path, output_dir: pathlib.Path) -> str:
    """Writes the tables and the figure.

    Args:
        results_dir: Holds CELL/seedN/.
        output_dir: Where to write; created if need be.

    Returns:
        The tables, in Markdown.

    Raises:
        InvalidInputError: If no run is finished, or a file of one is damaged.
    """
    rows = [_read(results_dir, _UNTRAINED, "", None)] + [
        _read(results_dir, f"{experiment}_gamma{gamma}", gamma, paper)
        for experiment, values in _PAPER.items()
        for gamma, paper in zip(_GAMMAS, values, strict=True)
    ]
    if not any(row.accuracies for row in rows):
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no finished run in CELL/seedN/, for a "
            f"CELL of {', '.join(row.cell for row in rows)}."
        )
    output_files.create_folder(output_dir)
    measured = _read_losses(results_dir)
    text = _as_markdown(rows) + _describe_losses(measured)
    output_files.write_text(output_dir / "linear_accuracy.md", text)
    output_files.write_csv(
        output_dir / "linear_accuracy.csv", [_csv_row(row) for row in rows]
    )
    if measured is not None:
        _plot(measured, output_dir / "losses.png")
    return text


def _csv_row(row: _Row) -> dict[str, Any]:
    mean, deviation = _moments(row.accuracies)
    return {
        "cell": row.cell,
        "paper": row.paper,
        "mean": mean,
        "deviation": deviation,
        "seeds": len(row.accuracies),
    }


def _read(
    results_dir: pathlib.Path, cell: str, gamma: str, paper: float | None
) -> _Row:
    accuracies = []
    for path in sorted(results_dir.glob(f"{cell}/seed*/done.json")):
        try:
            accuracy = float(json.loads(path.read_text())[tasks.Contrastive.metric])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInputError(f"{path} is damaged: {error!r}.") from error
        accuracies.append(100 * accuracy)
    return _Row(cell, gamma, paper, accuracies)


def _moments(values: list[float]) -> tuple[str, str]:
    """The mean and, of several values, their standard deviation."""
    mean = f"{statistics.mean(values):.2f}" if values else ""
    deviation = f"{statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return mean, deviation


def _as_markdown(rows: list[_Row]) -> str:
    lines = []
    for experiment, title in _TITLES.items():
        own = [row for row in rows if row.cell.startswith(f"{experiment}_")]
        if not any(row.accuracies for row in own):
            continue
        lines += [
            f"{title}:",
            "",
            "| gamma | paper, % | ours, % | seeds |",
            "|---|---|---|---|",
        ]
        for row in own:
            mean, deviation = _moments(row.accuracies)
            ours = f"{mean} ± {deviation}" if deviation else mean
            seeds = len(row.accuracies) or ""
            lines.append(f"| {row.gamma} | {row.paper} | {ours} | {seeds} |")
        lines.append("")
    untrained = next(row for row in rows if row.cell == _UNTRAINED)
    if untrained.accuracies:
        mean, deviation = _moments(untrained.accuracies)
        ours = f"{mean} ± {deviation}" if deviation else mean
        lines += [f"Random encoder, not trained: {ours} %.", ""]
    return "\n".join(lines)


def _read_losses(results_dir: pathlib.Path) -> dict[str, np.ndarray] | None:
    """The losses of all examples in all seeds of the model, by form."""
    measured = {form: [] for form in _FIGURES}
    for done in sorted(results_dir.glob(f"{_MEASURED}/seed*/done.json")):
        path = done.with_name("losses.npz")
        arrays = training.read_arrays(path)
        for form, parts in measured.items():
            if form not in arrays:
                raise InvalidInputError(f"{path} is damaged: it has no {form}.")
            parts.append(arrays[form])
    if not measured["plain"]:
        return None
    return {form: np.concatenate(parts) for form, parts in measured.items()}


def _describe_losses(measured: dict[str, np.ndarray] | None) -> str:
    if measured is None:
        return ""
    lines = [
        "",
        "Loss of each example under the model of experiment A with gamma = 0:",
        "",
        "| loss | figure | mean | median | below 0.5, % |",
        "|---|---|---|---|---|",
    ]
    for form, values in measured.items():
        low = 100 * np.mean(values < 0.5)
        lines.append(
            f"| {form} | {_FIGURES[form]} | {values.mean():.2f} | "
            f"{np.median(values):.2f} | {low:.1f} |"
        )
    return "\n".join([*lines, ""])


def _plot(measured: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Draws the three histograms on one scale, as figures 3 to 5 of the paper."""
    top = max(np.quantile(values, 0.999) for values in measured.values())
    with figures.png(path, 1, 3, figsize=(12, 3.2), sharey=True) as (_, panels):
        for panel, (form, values) in zip(panels, measured.items(), strict=True):
            panel.hist(np.minimum(values, top), bins=60, range=(0, top), density=True)
            panel.set(title=f"{form} (figure {_FIGURES[form]})", xlabel="loss")
            panel.grid(alpha=0.3)
        panels[0].set_ylabel("density of examples")


if __name__ == "__main__":
    _define_flags()
    program.run(main)
