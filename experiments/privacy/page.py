"""The files of an attack: ATTACK.csv, ATTACK.md, ATTACK.png and ATTACK.pdf."""

import pathlib
import sys
from collections.abc import Mapping, Sequence

from experiments.common import output_files, plots, table, table_header

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


def write(
    folder: pathlib.Path,
    name: str,
    title: str,
    rows: Sequence[Mapping],
    unit: str,
    flags: Mapping[str, str],
    facts: Sequence[str],
) -> str:
    """Writes the files of an attack.

    Args:
        folder: Where.
        name: Of the files.
        title: Of the page.
        rows: From `attacks.summary`.
        unit: What x counts.
        flags: Those that decide results.
        facts: What else stands above the table, items of a list.

    Returns:
        The page, in Markdown.

    Raises:
        RunStoppedError: If a file cannot be written.
    """
    output_files.write_csv(folder / f"{name}.csv", rows)
    _draw(folder / f"{name}.png", rows, unit)
    header = [text.format(unit) for text in _HEADER]
    by_line: dict[tuple, dict[str, Mapping]] = {}
    for row in rows:
        by_line.setdefault((row["attack"], row["x"]), {})[row["control"]] = row
    cells = [_line(own) for own in by_line.values()]
    command = ["./run.sh", "privacy", *sys.argv[1:]]
    head = "\n".join(
        [
            f"# {title}",
            "",
            *table_header.of_this_process(flags, command),
            *(f"- {fact}" for fact in facts),
        ]
    )
    body = table.as_markdown(header, cells)
    text = f"{head}\n\n{body}\n\n{_NOTE}\n"
    output_files.write_text(folder / f"{name}.md", text)
    return text


def _line(own: Mapping[str, Mapping]) -> list[str]:
    """One attack at one x: its row by control."""
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


def _draw(path: pathlib.Path, rows: Sequence[Mapping], unit: str) -> None:
    """Draws precision and AUC by x; the controls are the grey lines at chance."""
    panels = []
    by_attack: dict[tuple[str, str], list[Mapping]] = {}
    for row in rows:
        by_attack.setdefault((row["attack"], row["control"]), []).append(row)
    names = list(dict.fromkeys(attack for attack, _ in by_attack))
    is_long = max(row["x"] for row in rows) > 30
    for key, label in (("precision_at", "precision at $|P_k|$"), ("auc", "AUC")):
        curves = []
        for (attack, control), own in by_attack.items():
            x, y = [row["x"] for row in own], [row[key] for row in own]
            look = plots.style(names.index(attack))
            if control:
                look = plots.Style("0.6", ":", look.marker)
            named = control or attack
            shown = named if not control or attack == names[0] else ""
            curves.append(plots.Curve(shown, x, y, look))
        panels.append(
            plots.Panel(
                curves,
                unit,
                label,
                log="x" if is_long and min(row["x"] for row in rows) > 0 else "",
                from_zero=True,
            )
        )
    with plots.figure(path, 1, len(panels), figsize=(9.6, 4.6)) as (drawn, grid):
        for axes, panel in zip(grid, panels, strict=True):
            plots.draw_panel(axes, panel)
        plots.add_legend(drawn, grid, ncols=3)
