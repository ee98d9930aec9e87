"""Prints how the training images of a data set are split over clients, and draws it.

    ./run.sh describe --dataset=omniglot --data_dir=DIR

reads and checks the data as training would. The result is a table with minimum,
median, mean and maximum, and a PNG of histograms.
"""

import dataclasses
import pathlib
import textwrap
from collections.abc import Mapping

import numpy as np

from experiments.common import config, plots, program, table
from experiments.fedss import run_config, run_methods
from tff_fedss import files, progress
from tff_fedss.datasets.federated.dataset import FederatedDataset

# The counts, int[K] or int[n], by name, such as "images per client".
Counts = Mapping[str, np.ndarray]
_MAX_BARS = 50
_LABELS_AT_A_TIME = 10_000


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """The flags of the program."""

    results_dir: str = config.flag(
        "results/describe",
        "The folder to write the histograms into.",
        group="The run",
        decides=False,
    )


def counts_of(dataset: FederatedDataset) -> dict[str, np.ndarray]:
    """Counts images and classes of clients, and images and clients of classes.

    Args:
        dataset: The data set, with at least one client; no image is decoded.
    """
    positives, num_images = [], []
    client_ids = dataset.train.client_ids
    for client_id in progress.bar("Counting", unit="clients", items=client_ids):
        positives.append(dataset.positives(client_id))
        num_images.append(dataset.num_examples(client_id))
    holders = np.bincount(np.concatenate(positives), minlength=dataset.num_classes)
    per_class = _images_per_class(dataset)
    return {
        "images per client": np.array(num_images),
        "classes per client": np.array([len(classes) for classes in positives]),
        **({} if per_class is None else {"images per class": per_class}),
        "clients per class": holders,
    }


def _images_per_class(dataset: FederatedDataset) -> np.ndarray | None:
    """Returns int[n], or None if it would need every image."""
    labels_of = getattr(dataset.train, "labels", None)
    if labels_of is not None:
        batches = map(labels_of, dataset.train.client_ids)
    elif dataset.pooled is not None:
        # Stored examples are references, or bytes that are not decoded here.
        labels = dataset.pooled_examples().map(lambda example: example["label"])
        batches = labels.batch(_LABELS_AT_A_TIME).as_numpy_iterator()
    else:
        return None
    counts = np.zeros(dataset.num_classes, np.int64)
    with progress.bar("Counting labels") as bar:
        for batch in batches:
            counts += np.bincount(batch, minlength=dataset.num_classes)
            bar.update(len(batch))
    return counts


def as_text(counts: Counts) -> str:
    """Writes a table for the terminal."""
    functions = {"min": np.min, "median": np.median, "mean": np.mean, "max": np.max}
    rows = [
        [title, *(_number(float(f(values))) for f in functions.values())]
        for title, values in counts.items()
    ]
    return table.as_text(["", *functions], rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def plot(counts: Counts, title: str, note: str, path: pathlib.Path) -> None:
    """Draws a histogram of each row of the table, between a title and a note.

    Those of clients are above.
    """
    with plots.figure(path, 2, 2, figsize=(9, 6)) as (figure, grid):
        panels = {"client": list(grid[0]), "class": list(grid[1])}
        for what, values in counts.items():
            of = what.split()[-1]
            axes = panels[of].pop(0)
            width = -(-(int(np.ptp(values)) + 1) // _MAX_BARS)
            edges = np.arange(values.min(), values.max() + width + 1, width) - 0.5
            axes.hist(values, edges)
            axes.axvline(values.mean(), color="black", linestyle="--", linewidth=1)
            axes.set(xlabel=what, ylabel="clients" if of == "client" else "classes")
            axes.locator_params(integer=True)
        for axes in (*panels["client"], *panels["class"]):
            axes.set_axis_off()
        # Names of folders may have dollars, which are no formulas.
        options = {"parse_math": False}
        figure.suptitle(f"{title} (dashed: mean)", **options)
        wrapped = "\n".join(textwrap.wrap(note, 120))
        figure.supxlabel(wrapped, fontsize="small", **options)


def main(config: Config) -> None:
    """Writes the histograms and prints the table."""
    _, dataset, _, notes = run_methods.load(run_config.with_defaults(config))
    counts = counts_of(dataset)
    facts = [f"{dataset.test.num_examples:,} test images", dataset.note, *notes]
    note = "; ".join(filter(None, facts))
    title = f"{dataset.name}: {dataset.num_clients:,} clients"
    folder = files.make_folder(
        config.results_dir, f"--results_dir={config.results_dir}"
    )
    output = folder / f"{config.chosen('dataset').name}.png"
    plot(counts, title, note, output)
    print(
        f"{title}, n = {dataset.num_classes:,} classes, "
        f"{counts['images per client'].sum():,} training images\n{note}\n"
        f"{as_text(counts)}\nHistograms: {output}"
    )


if __name__ == "__main__":
    program.run(main, Config())
