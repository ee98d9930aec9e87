"""The table and the figure of the defences, from the trainings of `cells.TABLES`.

A row is a training as the server gets to see it. Where only what is sent differs
(secure sums, unions, all of W), the training is that of fresh negatives: its weights
are the same, byte for byte. Success is precision at |P_k|, over all n classes.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.common import output_files, plots, results, sources, table
from experiments.common.cells import Cell, Table
from experiments.privacy import attacks, cells
from tff_fedss import metrics

KIND = results.RunKind(
    "privacy/train",
    run_name=lambda flags: "fedss",
    cell_flags=frozenset(
        "num_negatives negatives epsilon pool_size requests aggregation "
        "secure_threshold dp dp_noise_multiplier".split()
    ),
)
RUN = results.Run
_PARTICIPATIONS = (1, 3, 30, 300)
_COLUMNS = ("requests", "update", "phi", "sums")


class View(NamedTuple):
    """A row of the table: a training, as the server gets to see it.

    Attributes:
        title: Of the row.
        training: Of `cells.trainings`.
        requests: Of `--requests`.
        aggregation: Of `--aggregation`.
    """

    title: str
    training: str
    requests: str = "sampled"
    aggregation: str = "plain"

    @property
    def attacks(self) -> dict[str, str]:
        """The attacks on what is seen: their column, by their name."""
        found = dict.fromkeys(attacks.TRACED, "sums")
        if self.requests != "all":
            found["unions" if self.requests == "union" else "requests"] = "requests"
        if self.aggregation == "plain":
            found |= {"update": "update", "phi": "phi"}
        return found


VIEWS = (
    View("fresh (the paper)", "fresh"),
    View("memoised", "memoised"),
    View(
        f"randomized response, epsilon {cells.RESPONSE_EPSILON:g}",
        "randomized_response",
    ),
    View("pool, M = {pool_size}", "pool"),
    View("secure", "fresh", aggregation="secure"),
    View("secure, memoised", "memoised", aggregation="secure"),
    View("secure, union", "fresh", "union", "secure"),
    View("secure, all", "fresh", "all", "secure"),
    View(f"secure, union, t = {cells.THRESHOLD}", "threshold", "union", "secure"),
    View(f"secure, all, t = {cells.THRESHOLD}", "threshold", "all", "secure"),
    View("secure, all, clipped", "clipped", "all", "secure"),
    View(
        f"secure, all, DP, z = {cells.GAUSSIAN_NOISE:g}",
        "dp_gaussian",
        "all",
        "secure",
    ),
    View(f"secure, all, DP-FTRL, z = {cells.FTRL_NOISE:g}", "dp_ftrl", "all", "secure"),
)
_NOTE = """\
Success: precision of the |P_k| classes that an attack likes best, among all n, a mean
over clients, by number of participations. requests: what a client, or with `union` its
cohort, asks for. update, phi: the client's updates of rows and of the feature
extractor, of the last model. sums: those of the training's rounds and who took part,
without any request; where there is noise, the better one of the attack that knows its
covariance and of the one that does not. Best: of the attacks on what is seen, of those
that were made after no more participations; blanks were not measured. Bytes: of the
classifier, per client and round, without the messages of secure aggregation and of the
private set union. Clipped: every client's update to a norm of 1, at uniform weights, as
with differential privacy (DP), but without its noise. Epsilon: of a client, over all
rounds, for cohorts of this size and this few clients; docs/privacy.md says how it goes
with both."""


def default_rounds(cell: Cell) -> int:
    """Every cell says its rounds."""
    return int(cell.settings["rounds"])


def write_table(
    name: tuple[str, str],
    table: Table,
    results_dir: pathlib.Path,
    num_seeds: int,
    command: Sequence[str],
) -> str:
    """Writes defences.md, .png and .pdf of the trainings that are done."""
    del name, num_seeds, command
    runs = read(results_dir)
    rows = rows_of(runs)
    _draw(results_dir / "defences.png", rows)
    text = page(table.title, runs, rows)
    output_files.write_text(results_dir / "defences.md", text)
    return text


class Training(NamedTuple):
    """A training that is done.

    Attributes:
        flags: Those that decide it.
        done: Its done.json.
    """

    flags: Mapping[str, str]
    done: Mapping[str, Any]

    @property
    def per_round(self) -> float:
        """How often a client takes part in a round, on average: K / N."""
        return int(self.flags["clients_per_round"]) / self.done["num_clients"]

    def attacks(self) -> pd.DataFrame:
        """Returns the attacks, a row for each and each number of participations."""
        frame = pd.DataFrame(self.done["attacks"])
        frame = frame[frame.control == ""]
        # Sums are counted by rounds. 16 of 99 clients: 186 of them are 30.
        times = {round(t / self.per_round): t for t in _PARTICIPATIONS}
        x = [
            times.get(x, round(x * self.per_round, 1)) if name in attacks.TRACED else x
            for name, x in zip(frame.attack, frame.x, strict=True)
        ]
        return frame.assign(x=x)


def read(results_dir: pathlib.Path) -> dict[str, list[Training]]:
    """Reads the trainings that are done, by their cell."""
    found = {}
    for cell, folders in sources.find_cells(results_dir).items():
        own = [
            (folder.read_flags(), folder.read_json("done.json")) for folder in folders
        ]
        if own := [Training(flags, done) for flags, done in own if done]:
            found[cell] = own
    return found


def rows_of(runs: Mapping[str, Sequence[Training]]) -> list[dict]:
    """Returns the rows of the table, with the values of all seeds."""
    return [
        _row(view, m, own)
        for m in cells.SIZES
        for view in VIEWS
        if (own := runs.get(f"m{m}_{view.training}"))
    ]


def _row(view: View, m: int, runs: Sequence[Training]) -> dict:
    protocol = metrics.Protocol(
        requests=view.requests,
        aggregation=view.aggregation,
        threshold=cells.THRESHOLD if view.training == "threshold" else 1,
    )
    measured = pd.DataFrame([run.done["measured"] for run in runs])
    rows_per_client = {
        "sampled": [None] * len(runs),
        "union": measured.union,
        "all": [run.done["num_classes"] for run in runs],
    }[view.requests]
    dim = int(runs[0].flags["embedding_dim"])
    traffic = [
        metrics.classifier_traffic(
            classes, dim, protocol=protocol, rows_per_client=rows
        )
        for classes, rows in zip(
            measured.classes_per_client, rows_per_client, strict=True
        )
    ]
    tried = pd.concat([run.attacks() for run in runs])
    tried = tried[tried.attack.isin(view.attacks.keys())]
    means = tried.groupby(["attack", "x"]).precision_at.mean().reset_index()
    means["column"] = means.attack.map(view.attacks)
    success = means.groupby(["column", "x"]).precision_at.max()
    return {
        "m": m,
        "title": view.title.format(pool_size=cells.POOL_FACTOR * m),
        "seeds": len(runs),
        "metric": list(100 * measured.metric),
        "bytes_down": float(np.mean([t.bytes_down for t in traffic])),
        "bytes_up": float(np.mean([t.bytes_up for t in traffic])),
        "share_trained": float(measured.share_trained.mean()),
        "user_epsilon": runs[0].done["measured"]["epsilon"],
        "chance": float(tried.chance.mean()),
        "success": {
            column: success[column].to_dict()
            for column in _COLUMNS
            if column in success.index
        },
    }


def best(row: Mapping, most: float) -> float:
    """Returns the success of the best attack after no more participations."""
    values = [
        value
        for by_x in row["success"].values()
        for x, value in by_x.items()
        if x <= most
    ]
    return max([row["chance"], *values])


def page(
    title: str, runs: Mapping[str, Sequence[Training]], rows: Sequence[Mapping]
) -> str:
    """Writes the page of some rows, in Markdown."""
    one = next(iter(runs.values()))[0]
    rounds = int(one.flags["rounds"])
    facts = [
        "Command: `./run.sh table privacy/defences`",
        f"{one.flags['dataset']}: n = {one.done['num_classes']:,} classes, "
        f"{one.done['num_clients']:,} clients",
        f"Rounds: {rounds}; K: {one.flags['clients_per_round']}; seeds: "
        f"{max(row['seeds'] for row in rows)}. A client takes part "
        f"{rounds * one.per_round:.1f} times.",
        f"Chance of the attacks: {rows[0]['chance']:.3f}; of the "
        f"top-1: {100 / one.done['num_classes']:.2g} %",
    ]
    xs = {
        column: sorted({x for row in rows for x in row["success"].get(column, {})})
        for column in _COLUMNS
    }
    header = ["m", "defence", "top-1 %", "bytes down", "bytes up"]
    header += ["examples trained %", "user-level epsilon"]
    header += [
        f"{column}, {' / '.join(f'{x:g}' for x in xs[column])}" for column in _COLUMNS
    ]
    header += [f"best, {t:g}" for t in _PARTICIPATIONS]
    lines = [
        [
            str(row["m"]),
            row["title"],
            table.mean_std(row["metric"], 1),
            f"{row['bytes_down']:,.0f}",
            f"{row['bytes_up']:,.0f}",
            f"{100 * row['share_trained']:.0f}",
            f"{row['user_epsilon']:,.3g}" if row["user_epsilon"] else "none",
            *(_shown(row["success"].get(column), xs[column]) for column in _COLUMNS),
            *(f"{best(row, t):.2f}" for t in _PARTICIPATIONS),
        ]
        for row in rows
    ]
    head = "\n".join(f"- {fact}" for fact in facts)
    return f"# {title}\n\n{head}\n\n{table.as_markdown(header, lines)}\n\n{_NOTE}\n"


def _shown(by_x: Mapping[float, float] | None, xs: Sequence[float]) -> str:
    if by_x is None:
        return "not seen"
    return " / ".join(f"{by_x[x]:.2f}" if x in by_x else "" for x in xs)


def _draw(path: pathlib.Path, rows: Sequence[Mapping]) -> None:
    """Draws utility against the best attack, a panel for each m."""
    sizes = list(dict.fromkeys(row["m"] for row in rows))
    # The title of a view in all panels: without what goes with m.
    named = [{**row, "title": row["title"].split(", M =")[0]} for row in rows]
    titles = list(dict.fromkeys(row["title"] for row in named))
    options = {"figsize": (5.4 * len(sizes), 4.6), "squeeze": False, "sharey": True}
    handles = {}
    with plots.figure(path, 1, len(sizes), **options) as (drawn, grid):
        for axes, m in zip(grid[0], sizes, strict=True):
            for row in named:
                if row["m"] != m:
                    continue
                look = plots.style(titles.index(row["title"]))
                x = [best(row, t) for t in _PARTICIPATIONS]
                y = float(np.mean(row["metric"]))
                line = {"color": look.color, "linestyle": look.linestyle}
                axes.plot([min(x), max(x)], [y, y], **line)
                (handles[row["title"]],) = axes.plot(
                    x[-1], y, color=look.color, marker=look.marker, linestyle=""
                )
            axes.set(xlim=(0, 1.02), xlabel="precision of the best attack")
            axes.set_title(f"m = {m}")
        grid[0][0].set_ylabel("top-1 (%)")
        labels = []
        for title in titles:
            own = [row for row in named if row["title"] == title]
            sums = [(row["bytes_down"] + row["bytes_up"]) / 2**10 for row in own]
            labels.append(f"{title} ({' / '.join(f'{s:,.0f}' for s in sums)} KiB)")
        drawn.legend(
            [handles[title] for title in titles],
            labels,
            loc="outside lower center",
            ncols=2,
        )
