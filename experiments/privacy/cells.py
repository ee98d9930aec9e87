"""The cells of the defences: attacks on each, and its cost.

    ./run.sh table privacy/defences --data_dir=OMNIGLOT

Trains FedSS on Omniglot with each way of asking for classes, with a threshold and with
user-level differential privacy (DP), m = 20 and 80, three seeds: 48 trainings of 2 to 5
minutes on a core. docs/results/privacy has their table; docs/privacy.md the
conclusions.

A row of the table is a server's view of a training. If only the transfer differs
(secure sums, unions, all of W), the training is that of fresh negatives, whose weights
are the same to the bit. Success is precision at |P_k|, over all n classes.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.common import plots
from experiments.common import table as tables
from experiments.common.cells import Cell, Metric, Table, table
from experiments.common.page import Runs
from experiments.common.results import Run, RunKind
from experiments.privacy import attacks
from tff_fedss import metrics

_SIZES = (20, 80)
_RESPONSE_EPSILON = 4.0
_POOL_FACTOR = 3
_THRESHOLD = 3
_GAUSSIAN_NOISE = 0.03
_FTRL_NOISE = 0.1
_PARTICIPATIONS = (1, 3, 30, 300)
_COLUMNS = ("requests", "update", "phi", "sums")


class View(NamedTuple):
    """A row of the table: the server's view of a training.

    Attributes:
        training: One of `trainings`.
        requests: One of `--requests`.
        aggregation: One of `--aggregation`.
    """

    title: str
    training: str
    requests: str = "sampled"
    aggregation: str = "plain"

    @property
    def attacks(self) -> dict[str, str]:
        """The attacks on the view: their column, by their name."""
        found = dict.fromkeys(attacks.TRACED, "sums")
        if self.requests != "all":
            found["unions" if self.requests == "union" else "requests"] = "requests"
        if self.aggregation == "plain":
            found |= {"update": "update", "phi": "phi"}
        return found


VIEWS = (
    View("fresh (the paper)", "fresh"),
    View("memoised", "memoised"),
    View(f"randomized response, epsilon {_RESPONSE_EPSILON:g}", "randomized_response"),
    View("pool, M = {size}", "pool"),
    View("secure", "fresh", aggregation="secure"),
    View("secure, memoised", "memoised", aggregation="secure"),
    View("secure, union", "fresh", "union", "secure"),
    View("secure, all", "fresh", "all", "secure"),
    View(f"secure, union, t = {_THRESHOLD}", "threshold", "union", "secure"),
    View(f"secure, all, t = {_THRESHOLD}", "threshold", "all", "secure"),
    View("secure, all, clipped", "clipped", "all", "secure"),
    View(f"secure, all, DP, z = {_GAUSSIAN_NOISE:g}", "dp_gaussian", "all", "secure"),
    View(f"secure, all, DP-FTRL, z = {_FTRL_NOISE:g}", "dp_ftrl", "all", "secure"),
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
rounds, the largest of the seeds, for cohorts of this size and this few clients;
docs/privacy.md says how it goes with both."""


def _attacks(run: Run) -> pd.DataFrame:
    """Returns a run's attacks, a row for each and each number of participations."""
    frame = pd.DataFrame(run.result["attacks"])
    frame = frame[frame.control == ""]
    # Sums are counted by rounds. With 16 of 99 clients a round, 186 rounds are 30
    # participations.
    per_round = int(run.flags["clients_per_round"]) / run.result["data"]["num_clients"]
    times = {round(t / per_round): t for t in _PARTICIPATIONS}
    x = [
        times.get(x, round(x * per_round, 1)) if name in attacks.TRACED else x
        for name, x in zip(frame.attack, frame.x, strict=True)
    ]
    return frame.assign(x=x)


def rows_of(runs: Runs) -> list[dict]:
    """Returns the rows of the table, with the values of all finished seeds."""
    done = {cell: [run for run in own if run.is_done] for cell, own in runs.items()}
    return [
        _row(view, m, done[f"m{m}_{view.training}"])
        for m in _SIZES
        for view in VIEWS
        if done.get(f"m{m}_{view.training}")
    ]


def _row(view: View, m: int, runs: Sequence[Run]) -> dict:
    protocol = metrics.Protocol(
        requests=view.requests,
        aggregation=view.aggregation,
        threshold=_THRESHOLD if view.training == "threshold" else 1,
    )
    measured = pd.DataFrame([run.result["measured"] for run in runs])
    rows_per_client = {
        "sampled": [None] * len(runs),
        "union": measured.union,
        "all": [run.result["data"]["num_classes"] for run in runs],
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
    tried = pd.concat([_attacks(run) for run in runs])
    tried = tried[tried.attack.isin(view.attacks.keys())]
    means = tried.groupby(["attack", "x"]).precision_at.mean().reset_index()
    means["column"] = means.attack.map(view.attacks)
    success = means.groupby(["column", "x"]).precision_at.max()
    return {
        "m": m,
        "title": view.title.format(size=_POOL_FACTOR * m),
        "seeds": len(runs),
        "metric": [run.final("top1") for run in runs],
        "bytes_down": float(np.mean([t.bytes_down for t in traffic])),
        "bytes_up": float(np.mean([t.bytes_up for t in traffic])),
        "share_trained": float(measured.share_trained.mean()),
        # One that holds for all seeds: a tree's depends on their cohorts.
        "user_epsilon": max(epsilon or 0.0 for epsilon in measured.epsilon),
        "chance": float(tried.chance.mean()),
        "success": {
            column: success[column].to_dict()
            for column in _COLUMNS
            if column in success.index
        },
    }


def best(row: Mapping, most: float) -> float:
    """Returns the best attack's success with at most this many participations."""
    values = [
        value
        for by_x in row["success"].values()
        for x, value in by_x.items()
        if x <= most
    ]
    return max([row["chance"], *values])


def draw(
    of_cells: Table, runs: Runs, paper: pd.DataFrame, folder: pathlib.Path, stem: str
) -> list[str]:
    """Draws the figure; returns the table and its notes, lines of the page."""
    del of_cells, paper
    rows = rows_of(runs)
    if not rows:
        return []
    _draw(folder / f"{stem}.png", rows)
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
            tables.mean_std(row["metric"], 1),
            f"{row['bytes_down']:,.0f}",
            f"{row['bytes_up']:,.0f}",
            f"{100 * row['share_trained']:.0f}",
            f"{row['user_epsilon']:,.3g}" if row["user_epsilon"] else "none",
            *(_shown(row["success"].get(column), xs[column]) for column in _COLUMNS),
            *(f"{best(row, t):.2f}" for t in _PARTICIPATIONS),
        ]
        for row in rows
    ]
    caption = f"What the server sees; chance of the attacks {rows[0]['chance']:.3f}:"
    figure = f"![Accuracy against the best attack, a panel for each m]({stem}.png)"
    return [caption, "", tables.as_markdown(header, lines), "", _NOTE, "", figure]


def _shown(by_x: Mapping[float, float] | None, xs: Sequence[float]) -> str:
    if by_x is None:
        return "not seen"
    return " / ".join(f"{by_x[x]:.2f}" if x in by_x else "" for x in xs)


def _draw(path: pathlib.Path, rows: Sequence[Mapping]) -> None:
    """Draws utility against the best attack, a panel for each m."""
    sizes = list(dict.fromkeys(row["m"] for row in rows))
    # The title of a view in all panels, without the part that depends on m.
    named = [{**row, "title": row["title"].split(", M =")[0]} for row in rows]
    titles = list(dict.fromkeys(row["title"] for row in named))
    options = {"figsize": (4.2 * len(sizes), 4.6), "squeeze": False, "sharey": True}
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


# --- The cells ----------------------------------------------------------------------

_OMNIGLOT = {
    "dataset": "omniglot",
    "client_learning_rate": 0.03,
    "rounds": 200,
    "rounds_per_evaluation": 20,
}


def _private(mechanism: str, noise_multiplier: float) -> dict:
    return {"aggregation": "secure", "dp": f"{mechanism}:noise={noise_multiplier}"}


def trainings(m: int) -> dict[str, dict]:
    """Returns the flags of each training with m negatives, by its name."""
    return {
        "fresh": {},
        "memoised": {"negatives": "memoised"},
        "randomized_response": {
            "negatives": f"randomized_response:epsilon={_RESPONSE_EPSILON}"
        },
        "pool": {"negatives": f"pool:size={_POOL_FACTOR * m}"},
        "threshold": {
            "requests": "union",
            "aggregation": f"secure:threshold={_THRESHOLD}",
        },
        "clipped": _private("gaussian", 0.0),
        "dp_gaussian": _private("gaussian", _GAUSSIAN_NOISE),
        "dp_ftrl": _private("ftrl", _FTRL_NOISE),
    }


TABLES = {
    ("defences", "mini"): table(
        "Defences: what they leave to attack, and what they cost",
        [
            Cell(
                f"m{m}_{name}",
                {**_OMNIGLOT, "num_negatives": m, **settings},
                f"{name}, m = {m}",
                row=name,
                column=f"m = {m}",
            )
            for m in _SIZES
            for name, settings in trainings(m).items()
        ],
        "privacy_defences",
        kind=RunKind(
            "privacy",
            run_name=lambda flags: "fedss",
            command="python -m experiments.privacy.train",
            has_warm_starts=True,
            cell_flags=frozenset(
                ("num_negatives", "negatives", "requests", "aggregation", "dp")
            ),
        ),
        metrics=(Metric("top1", "top-1 %"),),
        is_pivot=True,
        pairs=tuple((name, "fresh") for name in list(trainings(20))[1:]),
        draw=draw,
    )
}
