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
from collections.abc import Collection, Mapping

import numpy as np

from experiments.common import config, program, runtime_config
from experiments.fedss import run_config, run_parts, starting_point
from experiments.privacy import attacks, page, seen, server
from tff_fedss import files, progress, tasks, training
from tff_fedss.errors import InvalidInputError
from tff_fedss.privacy import intersection

ATTACKS = ("intersection", "update", "aggregate", "phi")
_METHOD = "fedss"


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """The flags of the program."""

    attack: tuple[str, ...] = config.flag(
        ATTACKS, "One attack or more.", group="The attack", choices=ATTACKS
    )
    participations: tuple[str, ...] = config.flag(
        ("1", "2", "3", "5", "10", "30"),
        "For intersection: the numbers of a client's requests.",
    )
    attacked_clients: int = config.flag(
        8,
        "How many clients are attacked: in all, by intersection; in each attacked "
        "round, by update and phi.",
        low=1,
    )
    public_images: int = config.flag(
        5000,
        "How many of the test's images the server has: for the mean feature of update "
        "and aggregate, and, with their labels, for phi.",
        low=1,
    )


def main(config: Config) -> None:
    """Attacks, writes and prints."""
    config = run_config.with_defaults(config)
    seen.check_server(config)
    times = seen.participations(config.participations)
    folder = files.make_folder(
        config.results_dir, f"--results_dir={config.results_dir}"
    )
    runtime_config.install(config)
    dataset = run_parts.load_dataset(config)
    config, task, _ = run_parts.make_task(config, [_METHOD], dataset)
    print(task.dataset.summary(), flush=True)
    made: dict[str, attacks.Attack] = {}
    possible = _possible(config)
    trains = set(possible) - {"intersection"}
    if trains:
        seen.check_public_images(config.task, task)
    if "intersection" in possible:
        made["intersection"] = _intersect(config, task, times)
    facts = {}
    if trains:
        facts = _train(config, task, made, trains)
    sections = {
        name: page.Section(
            attacks.summary(attack.records), attack.unit, facts.get(name, ())
        )
        for name, attack in made.items()
    }
    summary = task.dataset.summary()
    print(page.write(folder, sections, config.deciding(), summary))
    print(f"Written to {folder}/")


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
    config: Config, task: tasks.FederatedTask, times: list[int]
) -> attacks.Attack:
    """Attacks requests, which do not depend on a model, without training."""
    asking, dataset = config.chosen("negatives").name, task.dataset
    builder = seen.class_set_builder(config, dataset)
    requests_of = seen.Requests(
        builder,
        dataset,
        seed=config.seed,
        cohort_size=config.clients_per_round,
        of_union=config.requests == "union",
    )
    attack = attacks.Attack(config.seed, "participations")
    n = dataset.num_classes
    chosen = seen.evenly_spaced(dataset.train.client_ids, config.attacked_clients)
    for client_id in progress.bar("Requests", unit="clients", items=chosen):
        positives = np.asarray(dataset.positives(client_id))
        truth = seen.as_mask(positives, n)
        model = seen.request_model(config, builder, n, len(positives))
        if config.requests == "union":
            model = intersection.among_others(model, requests_of.share_of_others)
        for name, held in (
            (asking, positives),
            (f"{asking}, client that holds nothing", positives[:0]),
        ):
            asked, trained = requests_of.client(client_id, held, times[-1])
            attack.on_requests(name, asked, truth, model, times)
            if not np.array_equal(asked, trained) and config.requests is None:
                moves = intersection.fresh(n, len(positives), config.num_negatives)
                attack.on_requests(
                    f"{name}, rows that move", trained, truth, moves, times
                )
    return attack


def _train(
    config: Config,
    task: tasks.FederatedTask,
    made: dict[str, attacks.Attack],
    names: Collection[str],
) -> Mapping[str, list[str]]:
    """Trains, attacks meanwhile, and returns facts by attack."""
    run = run_parts.build_run(config, _METHOD, task)
    inputs = {"data": task.fingerprint(), **starting_point.fingerprint(config)}
    run.set_feature_extractor(starting_point.trained(config, task, inputs))
    watch = server.Server(config, run, names)
    training.train([run], config.rounds, config.rounds_per_evaluation, watch.release)
    made.update(watch.attacks)
    return watch.finish()


if __name__ == "__main__":
    program.run(main, Config(rounds=64, rounds_per_evaluation=16))
