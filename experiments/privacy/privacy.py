"""Attacks FedSS as an honest-but-curious server would, and says what it learns of P_k.

    ./run.sh privacy --results_dir=results/privacy
    ./run.sh privacy --attack=intersection --dataset=omniglot --data_dir=DIR \
        --num_negatives=80 --results_dir=results/privacy_omniglot
    ./run.sh privacy --paper_settings --results_dir=results/privacy_paper

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

Expected, for the first command (glyphs, n = 500, m = 40; chance 0.04): intersection:
precision 0.28, 0.84, 0.99 after 1, 2 and 3 requests; update: AUC 0.99 or more; phi:
AUC 0.93 with public images. docs/results/privacy has all of it, docs/privacy.md what
follows.
"""

import dataclasses
import sys
from collections.abc import Mapping

import numpy as np
import tqdm

from experiments.common import config, output_files, program, runtime_config
from experiments.fedss import run_config, run_parts, starting_point
from experiments.privacy import attacks, page, paper_settings, seen, server
from experiments.privacy.defences import NEGATIVES
from tff_fedss import tasks, training
from tff_fedss.errors import InvalidInputError

ATTACKS = ("intersection", "update", "aggregate", "phi")
_METHOD = "fedss"


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """What a user asks for."""

    attack: tuple[str, ...] = config.flag(
        ATTACKS, "One attack or more.", group="The attack", choices=ATTACKS
    )
    negatives: str = config.flag(
        "fresh",
        "How clients ask: `fresh`, the paper's: m negatives drawn anew each time.",
        choices=NEGATIVES,
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
    trains = set(config.attack) - {"intersection"}
    if trains and task.dataset.test_is_unseen:
        raise InvalidInputError(
            f"--task={config.task}: the server's public images are the test's, which "
            "are of other classes there. Use --task=classification, or "
            "--attack=intersection."
        )
    if "intersection" in config.attack:
        made["intersection"] = _intersect(config, task, times)
    facts = {}
    if trains:
        facts = _train(config, task, made)
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


def _participations(config: Config) -> list[int]:
    texts = config.participations
    if not all(text.isdecimal() and 0 < int(text) <= 10_000 for text in texts):
        raise InvalidInputError(
            f"--participations={','.join(texts)}: expected whole numbers from 1 to "
            "10,000, such as 1,2,3,30."
        )
    return sorted({int(text) for text in texts})


def _intersect(
    config: Config, task: tasks.Task, times: list[int]
) -> attacks.Intersection:
    """Attacks requests; they depend on no model, so that nothing trains."""
    negatives, dataset = NEGATIVES[config.negatives], task.dataset
    request = seen.request_fn(negatives.builder(config, dataset))
    attack = attacks.Intersection(config.seed)
    chosen = _chosen(dataset.train.client_ids, config.attacked_clients)
    for client_id in tqdm.tqdm(chosen, "Requests", unit=" clients", disable=None):
        positives = np.asarray(dataset.positives(client_id))
        truth = seen.as_mask(positives, dataset.num_classes)
        # The round of a participation is any one: seeds differ.
        client_seeds = [
            training.client_seed(config.seed, t + 1, client_id)
            for t in range(times[-1])
        ]
        model = negatives.model(config, dataset.num_classes, len(positives))
        for name, held in (
            (config.negatives, positives),
            (f"{config.negatives}, client that holds nothing", positives[:0]),
        ):
            asked = np.stack([request(held, seed) for seed in client_seeds])
            attack.on_client(name, asked, truth, model, times)
    return attack


def _train(
    config: Config, task: tasks.Task, made: dict[str, attacks.Attack]
) -> Mapping[str, list[str]]:
    """Trains, attacks on the way, and returns facts by attack."""
    run = run_parts.build_run(config, _METHOD, task)
    inputs = {"data": task.fingerprint(), **starting_point.fingerprint(config)}
    run.set_feature_extractor(starting_point.trained(config, task, inputs))
    watch = server.Server(config, run, set(config.attack))
    training.train([run], config.rounds, config.rounds_per_evaluation, watch.release)
    made.update(watch.attacks)
    return watch.finish()


def _chosen(client_ids: list[str], count: int) -> list[str]:
    """Evenly spaced clients."""
    places = np.linspace(0, len(client_ids) - 1, min(count, len(client_ids)))
    return [client_ids[int(i)] for i in places]


if __name__ == "__main__":
    program.run(main, Config(rounds=64, rounds_per_evaluation=16), topics=None)
