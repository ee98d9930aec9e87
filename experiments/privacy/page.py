"""The files of the attacks on a run: attacks.csv and attacks.md."""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.common import table, table_header
from tff_fedss import files

_HEADER = (
    "attack",
    "{}",
    "clients",
    "AUC",
    "controls",
    "precision at |P_k|",
    "chance",
    "controls",
    "claim: precision",
    "recall",
    "exact",
)
_NOTE = (
    "Means over clients. AUC: a class of P_k has a higher score than another class; "
    "chance 0.5. Precision at |P_k|: of the |P_k| highest scores, ties at random; its "
    "chance is beside it. Precision, recall: of what the attack claims. Exact: the "
    "claim is P_k. Controls: the same scores judged by as many random classes, and "
    "random scores judged by P_k; both have to be at chance."
)


class Section(NamedTuple):
    """One attack.

    Attributes:
        rows: From `attacks.summary`.
        unit: The unit of x.
        facts: Further results, items of a list.
    """

    rows: Sequence[Mapping]
    unit: str
    facts: Sequence[str]


def write(
    folder: pathlib.Path,
    sections: Mapping[str, Section],
    flags: Mapping[str, str],
    summary: str,
) -> str:
    """Writes the files.

    Returns:
        The page, in Markdown.

    Raises:
        RunStoppedError: If a file cannot be written.
    """
    rows = [{"kind": kind, **row} for kind, own in sections.items() for row in own.rows]
    files.write_text(folder / "attacks.csv", table.as_csv(rows))
    command = ["./run.sh", "privacy", *sys.argv[1:]]
    head = [*table_header.of_this_process(flags, command), f"- {summary}"]
    parts = ["# What the server learns", "\n".join(head)]
    for kind, own in sections.items():
        facts = "\n".join(f"- {fact}" for fact in own.facts)
        parts += [part for part in (f"## {kind}", facts, _table(own)) if part]
    text = "\n\n".join([*parts, _NOTE]) + "\n"
    files.write_text(folder / "attacks.md", text)
    return text


def _table(section: Section) -> str:
    by_line: dict[tuple, dict[str, Mapping]] = {}
    for row in section.rows:
        by_line.setdefault((row["attack"], row["x"]), {})[row["control"]] = row
    header = [text.format(section.unit) for text in _HEADER]
    return table.as_markdown(header, [_line(own) for own in by_line.values()])


def _line(own: Mapping[str, Mapping]) -> list[str]:
    """The cells of one attack at one x, from its row by control."""
    attack = own[""]
    controls = [row for control, row in own.items() if control]

    def number(key: str) -> str:
        return f"{attack[key]:.3f}"

    def beside(key: str) -> str:
        return ", ".join(f"{row[key]:.3f}" for row in controls)

    return [
        attack["attack"],
        f"{attack['x']:,}",
        f"{attack['clients']:,}",
        number("auc"),
        beside("auc"),
        number("precision_at"),
        number("chance"),
        beside("precision_at"),
        number("precision"),
        number("recall"),
        number("exact"),
    ]
