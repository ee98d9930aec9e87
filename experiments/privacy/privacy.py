"""Attacks FedSS as an honest-but-curious server, and measures how well it finds P_k.

    ./run.sh privacy --results_dir=results/privacy
    ./run.sh privacy --dataset=omniglot --data_dir=DIR --results_dir=results/omniglot

The attacks, of which --attack names one or more:

    intersection   a client's requests, from one participation to the next
    update         one client's update of its rows, in a single round
    aggregate      the sums over cohorts alone, as secure aggregation leaves them
    phi            one client's update of the feature extractor alone

All except the first train with the flags of `./run.sh train` and attack before round 1
and then every --rounds_per_evaluation rounds. attacks.md and attacks.csv have the
results. Every attack has two controls, random classes and random scores, which must be
at chance.

Expected, for the first command (glyphs, n = 500, m = 40; chance 0.04), after 9 minutes
on 2 busy cores: intersection: precision 0.32, 0.84, 0.995 after 1, 2 and 3 requests;
update: AUC 0.99 or more; aggregate: AUC 0.99, traced through 64 sums; phi: AUC 0.95 in
round 1, with public images. docs/results/privacy has the results, docs/privacy.md the
conclusions.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.common import config, program, report, table
from experiments.fedss import run_config
from experiments.privacy import attacks, seen, server
from tff_fedss import files, tasks
from tff_fedss.errors import InvalidInputError
from tff_fedss.privacy import intersection
from tff_fedss.training import run_files

ATTACKS = ("intersection", "update", "aggregate", "phi")
_NOTE = (
    "Means over clients. AUC: a class of P_k has a higher score than another class; "
    "chance 0.5. Precision at |P_k|: of the |P_k| highest scores, ties at random; its "
    "chance is beside it. Precision, recall: of what the attack claims. Exact: the "
    "claim is P_k. Controls: the same scores judged by as many random classes, and "
    "random scores judged by P_k; both have to be at chance."
)


@dataclasses.dataclass(frozen=True)
class Config(server.Config):
    """The flags of the program."""

    attack: tuple[str, ...] = config.flag(
        ATTACKS,
        "One attack or more. Update and phi attack the first --attacked_clients of "
        "each attacked round.",
        group="The attacks",
        choices=ATTACKS,
    )


def main(config: Config) -> None:
    """Attacks, writes and prints."""
    config = run_config.with_defaults(config)
    seen.check_server(config)
    times = sorted({*config.participations})
    folder = files.make_folder(
        config.results_dir, f"--results_dir={config.results_dir}"
    )
    config, task = server.load(config)
    seen.check_clients(task.dataset)
    possible = _possible(config)
    made: dict[str, attacks.Attack] = {}
    facts: dict[str, list[str]] = {}
    trains = set(possible) - {"intersection"}
    if trains:
        watch = server.Server(config, task, trains, config.attacked_clients)
    if "intersection" in possible:
        made["intersection"] = _intersect(config, task, times)
    if trains:
        watch.train()
        made |= watch.attacks
        facts = watch.finish()
    rows = {name: attack.summary() for name, attack in made.items() if attack.outcomes}
    if not rows:
        raise InvalidInputError(
            f"--attacked_clients={config.attacked_clients}: all attacked clients hold "
            "all classes, so that there was nothing to find. Attack more clients."
        )
    of_all = [{"kind": kind, **row} for kind, own in rows.items() for row in own]
    files.write_text(folder / "attacks.csv", run_files.as_csv(list(of_all[0]), of_all))
    command = ["./run.sh", "privacy", *sys.argv[1:]]
    head = [
        *report.of_this_process(config.deciding(), command),
        f"- {task.dataset.summary()}",
    ]
    parts = ["# What the server learns", "\n".join(head)]
    for name in rows:
        known = "\n".join(f"- {fact}" for fact in facts.get(name, ()))
        parts += [f"## {name}", *filter(None, [known])]
        unit = "participations" if name == "intersection" else "round"
        parts.append(_as_markdown(rows[name], unit))
    text = "\n\n".join([*parts, _NOTE]) + "\n"
    files.write_text(folder / "attacks.md", text)
    print(f"{text}\nWritten to {folder}/")


def _possible(config: Config) -> list[str]:
    """Returns the attacks possible on the server's view; reports the others.

    Raises:
        InvalidInputError: If none is left.
    """
    hidden = {}
    if config.chosen("aggregation").name == "secure":
        hidden = dict.fromkeys(("update", "phi"), "--aggregation=secure shows sums")
    if config.requests == "all":
        hidden["intersection"] = "--requests=all: no client asks for anything"
    possible = [name for name in config.attack if name not in hidden]
    notes = [f"{name}: {why}." for name, why in hidden.items() if name in config.attack]
    if not possible:
        raise InvalidInputError(f"nothing is left to attack. {' '.join(notes)}")
    for note in notes:
        print(f"Not made, {note}", flush=True)
    return possible


def _intersect(
    config: Config, task: tasks.FederatedTask, times: Sequence[int]
) -> attacks.Attack:
    """Attacks requests, which do not depend on a model, without training."""
    asking, dataset = config.chosen("negatives").name, task.dataset
    requests = seen.Requests(config, dataset, of_union=config.requests == "union")
    attack = attacks.Attack(config.seed)
    for client_id, positives, truth in seen.some_clients(
        "Requests", dataset, config.attacked_clients
    ):
        model = requests.model(len(positives))
        for name, held in (
            (asking, positives),
            (f"{asking}, client that holds nothing", positives[:0]),
        ):
            asked, trained = requests.client(client_id, held, times[-1])
            attack.on_requests(name, asked, truth, model, times)
            # Which rows move is seen in the updates of single clients.
            is_seen = config.requests is None and config.aggregation is None
            if is_seen and not np.array_equal(asked, trained):
                moves = intersection.fresh(
                    dataset.num_classes, len(positives), config.num_negatives
                )
                attack.on_requests(
                    f"{name}, rows that move", trained, truth, moves, times
                )
    return attack


def _as_markdown(rows: Sequence[Mapping], unit: str) -> str:
    """Writes the table of an attack: a line for each name and x."""
    by_line = pd.DataFrame(rows).groupby(["attack", "x"], sort=False)
    attack = by_line.first().reset_index()  # Its controls follow it.

    def number(key: str) -> pd.Series:
        return attack[key].map("{:.3f}".format)

    def controls(key: str) -> pd.Series:
        return by_line[key].apply(lambda own: ", ".join(f"{x:.3f}" for x in own[1:]))

    columns = (
        ("attack", attack["attack"]),
        (unit, attack["x"].map("{:,}".format)),
        ("clients", attack["clients"].map("{:,}".format)),
        ("AUC", number("auc")),
        ("controls", controls("auc")),
        ("precision at |P_k|", number("precision_at")),
        ("chance", number("chance")),
        ("controls", controls("precision_at")),
        ("claim: precision", number("precision")),
        ("recall", number("recall")),
        ("exact", number("exact")),
    )
    header, values = zip(*columns, strict=True)
    return table.as_markdown(header, zip(*values, strict=True))


if __name__ == "__main__":
    program.run(main, Config(rounds=64, rounds_per_evaluation=16))
