"""The intersection attack at the paper's settings: exactly, without a training.

How many of m fresh negatives are left after t requests follows from n, |P_k| and m
alone. |P_k| is the paper's mean |S_k| - m (Tables 1 to 3).
"""

import pathlib
from typing import NamedTuple

from experiments.common import output_files, table, table_header
from tff_fedss import tasks
from tff_fedss.privacy import intersection

PARTICIPATIONS = (1, 2, 3, 5, 10)


class Setting(NamedTuple):
    """A table of the paper.

    Attributes:
        num_classes: n (4.2, 4.3, A.4).
        num_clients: Of the data.
        num_positives: |P_k|.
    """

    num_classes: int
    num_clients: int
    num_positives: int


SETTINGS = {
    "landmarks": Setting(2_028, 1_262, 90),
    "sop": Setting(11_318, 596, 20),
    "imagenet21k": Setting(21_841, 25_691, 20),
}


def rows() -> list[dict]:
    """Returns what the attack is expected to give, by data, m and participations."""
    found = []
    for dataset, setting in SETTINGS.items():
        (own,) = tasks.FAMILIES[dataset].settings.values()
        often = own.rounds * own.clients_per_round / setting.num_clients
        for m in own.num_negatives:
            for t in PARTICIPATIONS:
                precision, exact, _ = intersection.expected(
                    setting.num_classes, setting.num_positives, m, t
                )
                found.append(
                    {
                        "dataset": dataset,
                        "n": setting.num_classes,
                        "num_positives": setting.num_positives,
                        "m": m,
                        "participations": t,
                        "precision": float(precision),
                        "exact": float(exact),
                        "in_the_papers_run": often,
                    }
                )
    return found


def write(folder: pathlib.Path, flags: dict[str, str], command: list[str]) -> str:
    """Writes paper_settings.csv and paper_settings.md.

    Args:
        folder: Where.
        flags: Those that decide results, for the page's head.
        command: What was given to write it, argument by argument.

    Returns:
        The page.
    """
    output_files.write_csv(folder / "paper_settings.csv", rows())
    by_line: dict[tuple, list[str]] = {}
    for row in rows():
        key = (
            row["dataset"],
            f"{row['n']:,}",
            str(row["num_positives"]),
            str(row["m"]),
            f"{row['in_the_papers_run']:.0f}",
        )
        by_line.setdefault(key, []).append(
            f"{row['precision']:.3f} ({row['exact']:.2f})"
        )
    header = ["data", "n", "|P_k|", "m", "times in the paper's run"]
    header += [f"t = {t}" for t in PARTICIPATIONS]
    cells = [[*key, *texts] for key, texts in by_line.items()]
    parts = [
        "# The intersection attack at the paper's settings",
        "\n".join(table_header.of_this_process(flags, command)),
        table.as_markdown(header, cells),
        "Expected precision of the classes that are in all of t requests of a client, "
        "and in brackets the probability that they are P_k, exactly; recall is 1. "
        "|P_k|: the paper's mean. Times in the paper's run: rounds times K over "
        "clients (K of ImageNet-21k is not stated; 64 is assumed).",
    ]
    text = "\n\n".join(parts) + "\n"
    output_files.write_text(folder / "paper_settings.md", text)
    return text
