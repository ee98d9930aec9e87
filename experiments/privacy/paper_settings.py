"""The intersection attack at the paper's settings: exactly, without a training.

How many of m fresh negatives are left after t requests follows from n, |P_k| and m
alone. |P_k| is the paper's |S_k| - m (Tables 1 to 3) and, for SOP and ImageNet-21k,
that of every client of the partitions that sections 4.3 and A.4 describe.
"""

import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from experiments.common import output_files, plots, table, table_header
from experiments.fedss import describe, paper_values
from tff_fedss import tasks
from tff_fedss.privacy import intersection

PARTICIPATIONS = (1, 2, 3, 5, 10)
# What the tables are of: n and the number of clients (4.2, 4.3, A.4).
_SIZES = {
    "landmarks": (2_028, 1_262),
    "sop": (11_318, 596),
    "imagenet21k": (21_841, 25_691),
}
# So many of the sizes that occur, weighed by how often they do, stand for all.
_MOST_SIZES = 60


class Setting(NamedTuple):
    """Clients of one data set.

    Attributes:
        dataset: Its name.
        whose: Where |P_k| comes from.
        num_classes: n.
        sizes: int[clients], |P_k|.
        num_negatives: The values of m.
        participations: How often a client takes part in the paper's run, rounds K /
            clients.
    """

    dataset: str
    whose: str
    num_classes: int
    sizes: np.ndarray
    num_negatives: tuple[int, ...]
    participations: float


def settings(seed: int) -> Iterator[Setting]:
    """Yields the paper's settings.

    Args:
        seed: Of the partitions.
    """
    for printed in paper_values.TABLES.values():
        if printed.number > 3:
            continue
        name = printed.dataset
        num_classes, num_clients = _SIZES[name]
        (own,) = tasks.FAMILIES[name].settings.values()
        often = own.rounds * own.clients_per_round / num_clients
        (m, size), *_ = printed.class_set_sizes.items()
        ms = own.num_negatives
        yield Setting(
            name, "the paper's mean", num_classes, np.array([size - m]), ms, often
        )
        if name == "landmarks":  # Which user has which photograph is not known here.
            continue
        split = describe.of_class_sizes(name, describe.stand_in_sizes(name, seed), seed)
        yield Setting(
            name, "all clients", num_classes, split.classes_per_client, ms, often
        )


def rows_of(setting: Setting) -> Iterator[dict]:
    """Yields what the attack is expected to give, by m and participations."""
    sizes, counts = np.unique(setting.sizes, return_counts=True)
    if len(sizes) > _MOST_SIZES:
        # Quantiles of the clients, each for as many of them.
        sizes = np.quantile(
            setting.sizes,
            (np.arange(_MOST_SIZES) + 0.5) / _MOST_SIZES,
            method="nearest",
        )
        sizes, counts = np.unique(sizes, return_counts=True)
    shares = counts / counts.sum()
    for m in setting.num_negatives:
        for t in PARTICIPATIONS:
            expected = np.array(
                [
                    intersection.expected(setting.num_classes, int(size), m, t)
                    for size in sizes
                ]
            )
            mean = shares @ expected
            yield {
                "dataset": setting.dataset,
                "num_positives": setting.whose,
                "n": setting.num_classes,
                "mean_positives": float(setting.sizes.mean()),
                "m": m,
                "participations": t,
                "precision": float(mean[0]),
                "exact": float(mean[1]),
                "in_the_papers_run": setting.participations,
            }


def write(
    folder: pathlib.Path, seed: int, flags: dict[str, str], command: list[str]
) -> str:
    """Writes paper_settings.csv, .md, .png and .pdf.

    Args:
        folder: Where.
        seed: Of the partitions.
        flags: For the page's head.
        command: Likewise.

    Returns:
        The page.
    """
    rows = [row for setting in settings(seed) for row in rows_of(setting)]
    output_files.write_csv(folder / "paper_settings.csv", rows)
    _draw(folder / "paper_settings.png", rows)
    by_line: dict[tuple, dict[int, dict]] = {}
    for row in rows:
        key = (
            row["dataset"],
            row["num_positives"],
            f"{row['n']:,}",
            f"{row['mean_positives']:.1f}",
            str(row["m"]),
            f"{row['in_the_papers_run']:.0f}",
        )
        by_line.setdefault(key, {})[row["participations"]] = row
    header = ["data", "|P_k| of", "n", "|P_k|", "m", "times in the paper's run"]
    header += [f"t = {t}" for t in PARTICIPATIONS]
    cells = [
        [
            *key,
            *(
                f"{own[t]['precision']:.3f} ({own[t]['exact']:.2f})"
                for t in PARTICIPATIONS
            ),
        ]
        for key, own in by_line.items()
    ]
    text = "\n".join(
        [
            "# The intersection attack at the paper's settings",
            "",
            *table_header.of_this_process(flags, command),
            "",
            table.as_markdown(header, cells, left=(0, 1)),
            "",
            "Expected precision of the classes that are in all of t requests of a "
            "client, and in brackets the probability that they are P_k, exactly; "
            "recall is 1. Times in the paper's run: rounds times K over clients (K of "
            "ImageNet-21k is not stated; 64 is assumed). |P_k| of `all clients`: the "
            "paper's partition of random class sizes with the true sums, see "
            "`./run.sh describe --class_sizes=original`.",
            "",
        ]
    )
    output_files.write_text(folder / "paper_settings.md", text)
    return text


def _draw(path: pathlib.Path, rows: list[dict]) -> None:
    panels = []
    for dataset in _SIZES:
        own = [
            row
            for row in rows
            if row["dataset"] == dataset and row["num_positives"] == "the paper's mean"
        ]
        curves = [
            plots.Curve(
                f"m {i + 1} of 5",
                PARTICIPATIONS,
                [row["precision"] for row in own if row["m"] == m],
                plots.style(i),
            )
            for i, m in enumerate(dict.fromkeys(row["m"] for row in own))
        ]
        ms = ", ".join(str(m) for m in dict.fromkeys(row["m"] for row in own))
        panels.append(
            plots.Panel(
                curves,
                "requests of a client",
                "expected precision",
                title=f"{dataset}: m = {ms}",
                from_zero=True,
            )
        )
    plots.write_curves(path, panels)
