"""What each defence leaves to attack, and what it costs: a table and a figure.

    ./run.sh defence_table --rounds=60 --dataset=omniglot --data_dir=DIR
        --client_learning_rate=0.03 --results_dir=results/defences

Trains FedSS at each m of --sizes with each way of asking, with a threshold and with
user-level differential privacy, attacks it on the way, and writes defences.md, .csv,
.png and .pdf. Each training is kept in RESULTS_DIR/mM/NAME/seedS and not made again:
the same command goes on where it was stopped, and two at a time share the work. With
--status it trains nothing and writes the table of what is there.

A row of the table is a training as the server gets to see it. Where only what is sent
differs (secure sums, unions, all of W), the training is that of fresh negatives: its
weights are the same, byte for byte. Success is precision at |P_k|, over all n classes.
"""

import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.common import (
    config,
    output_files,
    plots,
    program,
    runtime_config,
    table,
    table_header,
)
from experiments.fedss import (
    defences_config,
    dp_config,
    run_config,
    run_parts,
    starting_point,
)
from experiments.privacy import measured
from tff_fedss import files, metrics, tasks
from tff_fedss.errors import InvalidInputError

_METHOD = "fedss"
# By name, the flags of a training; those of its settings are filled in.
_TRAININGS: dict[str, Callable[["Config", int], dict[str, Any]]] = {
    "fresh": lambda config, m: {},
    "memoised": lambda config, m: {"negatives": "memoised"},
    "randomized_response": lambda config, m: {
        "negatives": "randomized_response",
        "epsilon": config.response_epsilon,
    },
    "pool": lambda config, m: {
        "negatives": "pool",
        "pool_size": config.pool_factor * m,
    },
    "threshold": lambda config, m: {
        "requests": "union",
        "aggregation": "secure",
        "secure_threshold": config.threshold,
    },
    "clipped": lambda config, m: _private("gaussian", 0.0),
    "dp_gaussian": lambda config, m: _private("gaussian", config.gaussian_noise),
    "dp_ftrl": lambda config, m: _private("ftrl", config.ftrl_noise),
}
TRAININGS = tuple(_TRAININGS)


def _private(mechanism: str, noise_multiplier: float) -> dict[str, Any]:
    return {
        "aggregation": "secure",
        "dp": mechanism,
        "dp_noise_multiplier": noise_multiplier,
    }


class View(NamedTuple):
    """A row of the table: a training, as the server gets to see it.

    Attributes:
        title: Of the row.
        training: One of `TRAININGS`.
        requests: Of `--requests`.
        aggregation: Of `--aggregation`.
    """

    title: str
    training: str
    requests: str = "sampled"
    aggregation: str = "plain"

    @property
    def attacks(self) -> dict[str, tuple[str, ...]]:
        """The attacks on what is seen, by the column of the table: its best counts."""
        found = {}
        if self.requests != "all":
            found["requests"] = (
                {"sampled": "requests", "union": "unions"}[self.requests],
            )
        if self.aggregation == "plain":
            found["update"], found["phi"] = ("update",), ("phi",)
        found["sums"] = measured.TRACED
        return found


VIEWS = (
    View("fresh (the paper)", "fresh"),
    View("memoised", "memoised"),
    View("randomized response, epsilon {epsilon:g}", "randomized_response"),
    View("pool, M = {pool_size}", "pool"),
    View("secure", "fresh", aggregation="secure"),
    View("secure, memoised", "memoised", aggregation="secure"),
    View("secure, union", "fresh", "union", "secure"),
    View("secure, all", "fresh", "all", "secure"),
    View("secure, union, t = {threshold}", "threshold", "union", "secure"),
    View("secure, all, t = {threshold}", "threshold", "all", "secure"),
    View("secure, all, clipped", "clipped", "all", "secure"),
    View("secure, all, DP, z = {gaussian_noise:g}", "dp_gaussian", "all", "secure"),
    View("secure, all, DP-FTRL, z = {ftrl_noise:g}", "dp_ftrl", "all", "secure"),
)
_COLUMNS = ("requests", "update", "phi", "sums")


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """What a user asks for."""

    sizes: tuple[str, ...] = config.flag(
        ("20", "80"), "The values of m.", group="The table"
    )
    trainings: tuple[str, ...] = config.flag(
        TRAININGS, "Which trainings.", choices=TRAININGS
    )
    num_seeds: int = config.flag(
        1, "How many seeds, from --seed on.", low=1, decides=False
    )
    response_epsilon: float = config.flag(
        4.0, "The --epsilon of randomized_response.", low=1e-6
    )
    pool_factor: int = config.flag(3, "The --pool_size of pool, in m.", low=1)
    threshold: int = config.flag(3, "The --secure_threshold.", low=2)
    gaussian_noise: float = config.flag(
        0.03, "The --dp_noise_multiplier of dp_gaussian.", low=1e-9
    )
    ftrl_noise: float = config.flag(
        0.1, "The --dp_noise_multiplier of dp_ftrl, on each node.", low=1e-9
    )
    participations: tuple[str, ...] = config.flag(
        ("1", "3", "30", "300"), "After so many participations of a client."
    )
    most_updates: int = config.flag(
        30, "Up to so many of them for update and phi, which cost a training.", low=1
    )
    attacked_clients: int = config.flag(
        8, "Clients whose requests are attacked.", low=1
    )
    attacked_updates: int = config.flag(4, "Clients whose updates are.", low=1)
    public_images: int = config.flag(
        500, "How many labelled images of the classes the server has.", low=1
    )
    status: bool = config.flag(
        False, "Train nothing; write the table of what is there.", decides=False
    )


def main(config: Config) -> None:
    """Trains what is missing, writes and prints."""
    for name in (
        *defences_config.DefencesConfig.flags(),
        *dp_config.DpConfig.flags(),
    ):
        if getattr(config, name) is not None:
            raise InvalidInputError(
                f"--{name} has no effect here: the rows of the table have their own."
            )
    sizes = _numbers("sizes", config.sizes)
    times = _numbers("participations", config.participations)
    config = run_config.with_defaults(config)
    folder = output_files.create_folder(config.results_dir, "results_dir")
    runtime_config.install(config)
    task = run_parts.load_task(config, [_METHOD])
    if task.dataset.test_is_unseen:
        raise InvalidInputError(
            f"--task={config.task}: the server's public images are the test's, which "
            "are of other classes there. Use --task=classification."
        )
    print(task.dataset.summary(), flush=True)
    cells = {
        (m, name, seed): _settings(config, m, name, seed)
        for seed in range(config.seed, config.seed + config.num_seeds)
        for m in sizes
        for name in config.trainings
    }
    for own in cells.values():
        defences_config.check(
            own,
            [_METHOD],
            task.dataset,
            num_negatives=own.num_negatives,
            cohort_size=own.clients_per_round,
        )
        dp_config.check(own, [_METHOD], task.dataset, own.clients_per_round)
    found: dict[tuple[int, str], list[measured.Measured]] = {}
    starts: dict[int, list[np.ndarray]] = {}
    for i, ((m, name, seed), own) in enumerate(cells.items()):
        place = folder / f"m{m}" / name / f"seed{seed}"
        result = measured.read(place, own.deciding())
        if result is None and not config.status:
            print(f"{i + 1} of {len(cells)}: {place}", flush=True)
            output_files.create_folder(place, "results_dir")
            try:
                lock = files.Lock(place / ".lock")
            except BlockingIOError:
                print("Another process is training that.", flush=True)
                continue
            with contextlib.closing(lock):
                # It may have been made in the meantime.
                result = measured.read(place, own.deciding())
                if result is None:
                    if seed not in starts:
                        starts[seed] = _start(own, task)
                    result = measured.measure(own, task, starts[seed], times, place)
            _write(config, folder, task, {**found}, sizes, times)
        if result is not None:
            found.setdefault((m, name), []).append(result)
    if not found:
        raise InvalidInputError(
            f"{folder} has no finished training to make a table of."
        )
    print(_write(config, folder, task, found, sizes, times))
    print(f"Written to {folder}/")


def _start(config: Config, task: tasks.FederatedTask) -> list[np.ndarray]:
    """Phi before the first round, which all trainings of a seed have."""
    inputs = {"data": task.fingerprint(), **starting_point.fingerprint(config)}
    return starting_point.trained(config, task, inputs)


def _settings(config: Config, m: int, name: str, seed: int) -> Config:
    """The flags of one training."""
    own = _TRAININGS[name](config, m)
    # What else is trained is no flag of this training.
    common = {"trainings": TRAININGS, "sizes": ("20", "80"), "num_negatives": m}
    cell = dataclasses.replace(config, **common, **own, seed=seed)
    return run_config.with_defaults(cell)


def _numbers(name: str, texts: Sequence[str]) -> list[int]:
    if not all(text.isdecimal() and 0 < int(text) <= 10_000_000 for text in texts):
        raise InvalidInputError(
            f"--{name}={','.join(texts)}: expected positive whole numbers, such as "
            "20,80."
        )
    return sorted({int(text) for text in texts})


def _write(
    config: Config,
    folder: pathlib.Path,
    task: tasks.FederatedTask,
    found: Mapping[tuple[int, str], Sequence[measured.Measured]],
    sizes: Sequence[int],
    times: Sequence[int],
) -> str:
    """Writes the files; returns the page."""
    rows = [
        row
        for m in sizes
        for view in VIEWS
        if (own := found.get((m, view.training)))
        for row in [_row(config, task, view, m, own, times)]
    ]
    if not rows:
        return ""
    output_files.write_csv(folder / "defences.csv", [_flat(row) for row in rows])
    _draw(folder / "defences.png", task, rows, times)
    text = _page(config, task, rows, times)
    output_files.write_text(folder / "defences.md", text)
    return text


def _row(
    config: Config,
    task: tasks.FederatedTask,
    view: View,
    m: int,
    own: Sequence[measured.Measured],
    times: Sequence[int],
) -> dict:
    """One row, with the values of all seeds."""
    protocol = metrics.Protocol(
        requests=view.requests,
        aggregation=view.aggregation,
        threshold=config.threshold if view.training == "threshold" else 1,
    )
    n = task.dataset.num_classes
    traffic = [
        metrics.classifier_traffic(
            one.classes_per_client,
            config.embedding_dim,
            protocol=protocol,
            rows_per_client={
                "sampled": None,
                "union": one.union,
                "all": n,
            }[view.requests],
        )
        for one in own
    ]
    per_round = config.clients_per_round / task.dataset.num_clients
    participations = {round(t / per_round): t for t in times}
    success: dict[str, dict[float, float]] = {}
    chance = []
    for column, names in view.attacks.items():
        values: dict[tuple[float, str], list[float]] = {}
        for one in own:
            for record in one.attacks:
                if record["attack"] not in names or record["control"]:
                    continue
                chance.append(record["chance"])
                x = record["x"]
                if column == "sums":
                    x = participations.get(x, round(x * per_round, 1))
                key = (x, record["attack"])
                values.setdefault(key, []).append(record["precision_at"])
        by_x: dict[float, float] = {}
        for (x, _), found in values.items():
            by_x[x] = max(float(np.mean(found)), by_x.get(x, 0.0))
        success[column] = by_x
    return {
        "m": m,
        "title": view.title.format(
            epsilon=config.response_epsilon,
            pool_size=config.pool_factor * m,
            threshold=config.threshold,
            gaussian_noise=config.gaussian_noise,
            ftrl_noise=config.ftrl_noise,
        ),
        "seeds": len(own),
        "metric": [100 * one.metric for one in own],
        "bytes_down": float(np.mean([t.bytes_down for t in traffic])),
        "bytes_up": float(np.mean([t.bytes_up for t in traffic])),
        "share_trained": float(np.mean([one.share_trained for one in own])),
        "user_epsilon": own[0].epsilon,
        "chance": float(np.mean(chance)),
        "success": success,
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


def _flat(row: Mapping) -> dict:
    values = {
        key: row[key]
        for key in (
            "m",
            "title",
            "seeds",
            "bytes_down",
            "bytes_up",
            "share_trained",
            "user_epsilon",
        )
    }
    values["percent"] = float(np.mean(row["metric"]))
    values["chance"] = row["chance"]
    for column in _COLUMNS:
        by_x = row["success"].get(column, {})
        values[column] = " ".join(f"{x:g}:{v:.4f}" for x, v in sorted(by_x.items()))
    return values


def _page(
    config: Config,
    task: tasks.FederatedTask,
    rows: Sequence[Mapping],
    times: Sequence[int],
) -> str:
    command = ["./run.sh", "defence_table", *sys.argv[1:]]
    xs = {
        column: sorted({x for row in rows for x in row["success"].get(column, {})})
        for column in _COLUMNS
    }
    head = "\n".join(
        [
            "# Defences: what they leave to attack, and what they cost",
            "",
            *table_header.of_this_process(config.deciding(), command),
            f"- {task.dataset.summary()}",
            f"- Rounds: {config.rounds}; K: {config.clients_per_round}; seeds: "
            f"{max(row['seeds'] for row in rows)}. A client takes part "
            f"{config.rounds * config.clients_per_round / task.dataset.num_clients:.1f}"
            " times.",
            f"- Chance of the attacks: {rows[0]['chance']:.3f}; of the "
            f"{task.metric_title}: {100 * task.chance:.2g} %",
        ]
    )
    header = ["m", "defence", f"{task.metric_title} %", "bytes down", "bytes up"]
    header += ["examples trained %", "user-level epsilon"]
    header += [
        f"{column}, {' / '.join(f'{x:g}' for x in xs[column])}" for column in _COLUMNS
    ]
    header += [f"best, {t:g}" for t in times]
    lines = []
    for row in rows:
        cells = [
            str(row["m"]),
            row["title"],
            table.mean_std(row["metric"], 1),
            f"{row['bytes_down']:,.0f}",
            f"{row['bytes_up']:,.0f}",
            f"{100 * row['share_trained']:.0f}",
            f"{row['user_epsilon']:,.3g}" if row["user_epsilon"] else "none",
        ]
        for column in _COLUMNS:
            by_x = row["success"].get(column)
            shown = (
                [f"{by_x[x]:.2f}" if x in by_x else "" for x in xs[column]]
                if by_x
                else ["not seen"]
            )
            cells.append(" / ".join(shown))
        cells += [f"{best(row, t):.2f}" for t in times]
        lines.append(cells)
    return f"{head}\n\n{table.as_markdown(header, lines)}\n\n{_NOTE}\n"


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


def _curve(row: Mapping) -> str:
    """What a row is in all panels: its title without what goes with m."""
    return row["title"].split(", M =")[0]


def _draw(
    path: pathlib.Path,
    task: tasks.FederatedTask,
    rows: Sequence[Mapping],
    times: Sequence[int],
) -> None:
    """Draws utility against the best attack, a panel for each m."""
    sizes = list(dict.fromkeys(row["m"] for row in rows))
    options = {"figsize": (5.4 * len(sizes), 4.6), "squeeze": False, "sharey": True}
    titles = list(dict.fromkeys(map(_curve, rows)))
    with plots.figure(path, 1, len(sizes), **options) as (drawn, grid):
        for axes, m in zip(grid[0], sizes, strict=True):
            for row in rows:
                if row["m"] != m:
                    continue
                title = _curve(row)
                look = plots.style(titles.index(title))
                x = [best(row, t) for t in times]
                y = float(np.mean(row["metric"]))
                axes.plot(
                    [min(x), max(x)], [y, y], color=look.color, linestyle=look.linestyle
                )
                axes.plot(
                    x[-1],
                    y,
                    color=look.color,
                    marker=look.marker,
                    linestyle="",
                    label=title,
                )
            axes.set_xlim(0, 1.02)
            axes.set_xlabel("precision of the best attack")
            axes.set_title(f"m = {m}")
        grid[0][0].set_ylabel(f"{task.metric_title} (%)")
        # A row need not be in each panel.
        handles = {
            label: handle
            for axes in grid[0]
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        traffic = {
            title: " / ".join(
                f"{(row['bytes_down'] + row['bytes_up']) / 2**10:,.0f}"
                for row in rows
                if _curve(row) == title
            )
            for title in titles
        }
        drawn.legend(
            [handles[title] for title in titles],
            [f"{title} ({traffic[title]} KiB)" for title in titles],
            loc="outside lower center",
            ncols=2,
        )


if __name__ == "__main__":
    program.run(main, Config(rounds=60, rounds_per_evaluation=20), topics=None)
