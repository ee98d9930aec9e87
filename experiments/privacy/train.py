"""Trains FedSS with a defence and attacks it: the cells of `./run.sh table`.

    ./run.sh table privacy/defences --data_dir=OMNIGLOT

Requests and sums are attacked during the training; the updates of single clients at its
end: those to the last model, with a client's draws of rounds 1, 2 and so on. done.json
has the results; a stopped run begins again.
"""

import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np

from experiments.common import config, program, runtime_config
from experiments.fedss import (
    privacy_config,
    run_config,
    run_methods,
    run_parts,
    starting_point,
)
from experiments.privacy import attacks, seen, server
from tff_fedss import progress, tasks, training
from tff_fedss.privacy import intersection, phi, success, update

METHOD = "fedss"


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """The flags of the program."""

    participations: tuple[str, ...] = config.flag(
        ("1", "3", "30", "300"),
        "The numbers of participations of a client.",
        group="The attacks",
    )
    most_updates: int = config.flag(
        30,
        "The most participations for update and phi, each of which costs a "
        "training.",
        low=1,
    )
    attacked_clients: int = config.flag(
        8, "Number of clients whose requests are attacked.", low=1
    )
    attacked_updates: int = config.flag(
        4, "Number of clients whose updates are " "attacked.", low=1
    )
    public_images: int = config.flag(
        500, "How many labelled images of the classes the server has.", low=1
    )


def main(config: Config) -> None:
    """Trains, attacks and writes."""
    config = run_config.with_defaults(config)
    seen.check_server(config)
    times = seen.participations(config.participations)
    folder = training.ResultsFolder(
        config.results_dir,
        config.deciding(),
        (
            *run_methods.COLUMNS,
            *privacy_config.columns(config),
        ),
    )
    if (summary := folder.summary("text")) is not None:
        print(summary)
        return
    runtime_config.install(config)
    dataset = run_parts.load_dataset(config)
    config, task, _ = run_parts.make_task(config, [METHOD], dataset)
    seen.check_public_images(config.task, task)
    print(task.dataset.summary(), flush=True)
    inputs = {"data": task.fingerprint(), **starting_point.fingerprint(config)}
    folder.open(inputs)
    with contextlib.closing(folder):
        run = run_parts.build_run(config, METHOD, task)
        run.set_feature_extractor(starting_point.trained(config, task, inputs))
        watch = server.Server(config, run, {"aggregate"})
        folder.start({})

        def release(metrics: training.Metrics, speed: training.Metrics) -> None:
            watch.release(metrics, speed)
            folder.release(metrics, speed)

        training.train([run], config.rounds, config.rounds_per_evaluation, release)
        records = _on_sums(config, task, watch, times)
        # Secure aggregation hides single updates; a threshold would drop all rows.
        if config.aggregation is None:
            records += _on_single_clients(config, task, run, times)
        requests, union = _on_requests(config, task, times)
        trained = [row for row in folder.rows if row["round"]]
        metric = folder.rows[-1][task.metric]
        text = f"{task.metric_title}: {task.format_metric(metric)}"
        folder.finish(
            {
                "text": text,
                "metric": task.metric,
                task.metric: metric,
                "data": {
                    "num_classes": task.dataset.num_classes,
                    "num_clients": task.dataset.num_clients,
                },
                "measured": {
                    "classes_per_client": float(
                        np.mean([row["classes_per_client"] for row in trained])
                    ),
                    "union": union,
                    "share_trained": watch.share_trained,
                    "epsilon": privacy_config.epsilon(run),
                },
                "attacks": attacks.summary(records + requests),
            }
        )
    print(f"{text}\nWritten to {folder.path}/")


def _on_sums(
    config: Config,
    task: tasks.FederatedTask,
    watch: server.Server,
    times: Sequence[int],
) -> list[attacks.Record]:
    """Attacks the sums of the training, without requests."""
    on_sums = watch.attacks["aggregate"]
    per_round = config.clients_per_round / task.dataset.num_clients
    rounds = {round(t / per_round) for t in times} | {config.rounds}
    on_sums.trace(sorted(r for r in rounds if 0 < r <= config.rounds))
    return [record for record in on_sums.records if record.attack in attacks.ON_SUMS]


def _on_requests(
    config: Config, task: tasks.FederatedTask, times: Sequence[int]
) -> tuple[list[attacks.Record], float]:
    """Attacks requests and their unions; also counts the unions' classes."""
    dataset = task.dataset
    builder = seen.class_set_builder(config, dataset)
    made = {
        name: seen.Requests(
            builder,
            dataset,
            seed=config.seed,
            cohort_size=config.clients_per_round,
            of_union=name == "unions",
        )
        # With the paper's negatives, the unions are also attacked.
        for name in ("requests", *(["unions"] if config.negatives is None else []))
    }
    attack = attacks.Attack(config.seed)
    chosen = seen.evenly_spaced(dataset.train.client_ids, config.attacked_clients)
    for client_id in progress.bar("Requests", unit="clients", items=chosen):
        positives = np.asarray(dataset.positives(client_id))
        truth = seen.as_mask(positives, dataset.num_classes)
        own = seen.request_model(config, builder, dataset.num_classes, len(positives))
        for name, requests in made.items():
            model = own
            if name == "unions":
                model = intersection.among_others(own, requests.share_of_others)
            asked = requests.client(client_id, positives, max(times)).asked
            attack.on_requests(name, asked, truth, model, times)
    return attack.records, made["requests"].mean_union(config.rounds)


def _on_single_clients(
    config: Config,
    task: tasks.FederatedTask,
    run: training.FederatedRun,
    times: Sequence[int],
) -> list[attacks.Record]:
    """Attacks the updates of single clients, of rows and of phi, several together."""
    times = [t for t in times if t <= config.most_updates]
    dataset = task.dataset
    builder = seen.class_set_builder(config, dataset)
    request = seen.request_fn(builder, config.seed)
    updates = seen.Updates(run, config.server.learning_rate)
    public = seen.PublicImages(task, config.public_images)
    model = public.seen_by(run.weights)
    attack = attacks.Attack(config.seed)
    chosen = seen.evenly_spaced(dataset.train.client_ids, config.attacked_updates)
    for client_id in progress.bar("Updates", unit="clients", items=chosen):
        positives = dataset.positives(client_id)
        truth = seen.as_mask(positives, dataset.num_classes)
        by_rows, by_phi = np.zeros((2, dataset.num_classes))
        for t in range(1, max(times, default=0) + 1):
            client = task.client(
                client_id,
                training.client_seed(config.seed, t, client_id),
                True,
                training.permanent_seed(config.seed, client_id)
                if builder.is_permanent
                else None,
            )
            *_, kernel_delta, _, w_delta = updates.of(client)
            asked = request(positives, client_id, t).asked
            by_rows += update.together(
                attacks.scores_of_all(asked, w_delta, model, seen.num_decoys(config))
            )
            by_phi += update.together(
                phi.by_inputs(
                    kernel_delta, model.classifier, model.inputs, public.labels
                )
            )
            if t in times:
                for name, total in (("update", by_rows), ("phi", by_phi)):
                    claimed = success.top(total, np.count_nonzero(truth))
                    attack.judge(name, t, total, claimed, truth)
    return attack.records


if __name__ == "__main__":
    program.run(
        main,
        Config(rounds=60, rounds_per_evaluation=20),
        paper="privacy",
    )
