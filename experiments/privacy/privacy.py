"""Attacks FedSS as an honest-but-curious server would, and says what it learns of P_k.

    ./run.sh privacy --results_dir=results/privacy
    ./run.sh privacy --dataset=omniglot --data_dir=DIR --results_dir=results/omniglot
    ./run.sh privacy --paper_settings --results_dir=results/paper_sizes

The attacks, of which --attack names one or more:

    intersection   a client's requests, from one participation to the next
    update         one client's update of its rows, in a single round
    aggregate      the sums over cohorts alone, as secure aggregation leaves them
    phi            one client's update of the feature extractor alone

All but the first train with the flags of `./run.sh train` and look before round 1 and
then every --rounds_per_evaluation rounds. Each writes ATTACK.csv, .md, .png and .pdf.
Every attack is also judged by random classes and against guesses, which have to be at
chance. --paper_settings computes the intersection at the paper's n, |P_k| and m, from
those numbers alone, in a minute.

Expected, for the first command (glyphs, n = 500, m = 40; chance 0.04), after 9 minutes
on 2 busy cores: intersection: precision 0.32, 0.84, 0.995 after 1, 2 and 3 requests;
update: AUC 0.99 or more; aggregate: AUC 0.99, traced through 64 sums; phi: AUC 0.95 in
round 1, with public images. docs/results/privacy has all of it, docs/privacy.md what
follows.
"""

import dataclasses
import sys
from collections.abc import Collection, Mapping

import numpy as np
import tqdm

from experiments.common import config, output_files, program, runtime_config
from experiments.fedss import run_config, run_parts, starting_point
from experiments.privacy import (
    attacks,
    defences,
    measured,
    page,
    paper_settings,
    seen,
    server,
)
from tff_fedss import tasks, training
from tff_fedss.errors import InvalidInputError
from tff_fedss.privacy import intersection

ATTACKS = ("intersection", "update", "aggregate", "phi")
_METHOD = "fedss"


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """What a user asks for."""

    attack: tuple[str, ...] = config.flag(
        ATTACKS, "One attack or more.", group="The attack", choices=ATTACKS
    )
    participations: tuple[str, ...] = config.flag(
        ("1", "2", "3", "5", "10", "30"),
        "For intersection: after so many requests of a client.",
    )
    attacked_clients: int = config.flag(
        8,
        "How many clients are attacked: in all, by intersection; in each of the looked "
        "at rounds, by update and phi.",
        low=1,
    )
    public_images: int = config.flag(
        5000,
        "How many of the test's images the server has: for the mean feature of update "
        "and aggregate, and, with their labels, for phi.",
        low=1,
    )
    paper_settings: bool = config.flag(
        False, "Only compute the intersection at the paper's settings."
    )


def main(config: Config) -> None:
    """Attacks, writes and prints."""
    config = run_config.with_defaults(config)
    times = _participations(config)
    folder = output_files.create_folder(config.results_dir, "results_dir")
    if config.paper_settings:
        command = ["./run.sh", "privacy", *sys.argv[1:]]
        print(paper_settings.write(folder, config.seed, config.deciding(), command))
        return
    runtime_config.install(config)
    task = run_parts.load_task(config, [_METHOD])
    print(task.dataset.summary(), flush=True)
    made: dict[str, attacks.Attack] = {}
    possible = _possible(config)
    trains = set(possible) - {"intersection"}
    if trains and task.dataset.test_is_unseen:
        raise InvalidInputError(
            f"--task={config.task}: the server's public images are the test's, which "
            "are of other classes there. Use --task=classification, or "
            "--attack=intersection."
        )
    if "intersection" in possible:
        made["intersection"] = _intersect(config, task, times)
    facts = {}
    if trains:
        facts = _train(config, task, made, trains)
    for name, attack in made.items():
        text = page.write(
            folder,
            name,
            f"What the server learns: {name}",
            attacks.summary(attack.records),
            attack.unit,
            config.deciding(),
            [task.dataset.summary(), *facts.get(name, ())],
        )
        print(text)
    print(f"Written to {folder}/")


def _possible(config: Config) -> list[str]:
    """Returns the attacks on what the server sees; says which others there are.

    Raises:
        InvalidInputError: If none is left.
    """
    hidden = {}
    if config.aggregation == "secure":
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


def _participations(config: Config) -> list[int]:
    texts = config.participations
    if not all(text.isdecimal() and 0 < int(text) <= 10_000 for text in texts):
        raise InvalidInputError(
            f"--participations={','.join(texts)}: expected whole numbers from 1 to "
            "10,000, such as 1,2,3,30."
        )
    return sorted({int(text) for text in texts})


def _intersect(
    config: Config, task: tasks.FederatedTask, times: list[int]
) -> attacks.Intersection:
    """Attacks requests; they depend on no model, so that nothing trains."""
    asking, dataset = defences.name(config), task.dataset
    negatives = defences.NEGATIVES[asking]
    builder = defences.builder(config, dataset)
    requests_of = seen.Requests(
        builder,
        dataset,
        seed=config.seed,
        cohort_size=config.clients_per_round,
        of_union=config.requests == "union",
    )
    attack, n = attacks.Intersection(config.seed), dataset.num_classes
    chosen = measured.chosen(dataset.train.client_ids, config.attacked_clients)
    for client_id in tqdm.tqdm(chosen, "Requests", unit=" clients", disable=None):
        positives = np.asarray(dataset.positives(client_id))
        truth = seen.as_mask(positives, n)
        model = negatives.model(config, n, len(positives), builder)
        if config.requests == "union":
            model = intersection.among_others(model, requests_of.share_of_others)
        for name, held in (
            (asking, positives),
            (f"{asking}, client that holds nothing", positives[:0]),
        ):
            requests = requests_of.client(client_id, held, times[-1])
            asked = np.stack([one.asked for one in requests])
            trained = np.stack([one.trained for one in requests])
            attack.on_client(name, asked, truth, model, times)
            if not np.array_equal(asked, trained) and config.requests is None:
                moves = intersection.fresh(n, len(positives), config.num_negatives)
                attack.on_client(
                    f"{name}, rows that move", trained, truth, moves, times
                )
    return attack


def _train(
    config: Config,
    task: tasks.FederatedTask,
    made: dict[str, attacks.Attack],
    names: Collection[str],
) -> Mapping[str, list[str]]:
    """Trains, attacks on the way, and returns facts by attack."""
    run = run_parts.build_run(config, _METHOD, task)
    inputs = {"data": task.fingerprint(), **starting_point.fingerprint(config)}
    run.set_feature_extractor(starting_point.trained(config, task, inputs))
    watch = server.Server(config, run, names)
    training.train([run], config.rounds, config.rounds_per_evaluation, watch.release)
    made.update(watch.attacks)
    return watch.finish()


if __name__ == "__main__":
    program.run(main, Config(rounds=64, rounds_per_evaluation=16), topics=None)
