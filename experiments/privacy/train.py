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

from experiments.common import config, program
from experiments.fedss import privacy_config, run_config, run_methods
from experiments.privacy import attacks, seen, server
from tff_fedss import tasks, training
from tff_fedss.privacy import update


@dataclasses.dataclass(frozen=True)
class Config(server.Config):
    """The flags of the program."""

    most_updates: int = config.flag(
        30,
        "The most participations for update and phi, each of which costs a "
        "training.",
        group="The attacks",
        low=1,
    )
    attacked_updates: int = config.flag(
        4, "How many clients' updates are attacked.", low=1
    )


def main(config: Config) -> None:
    """Trains, attacks and writes."""
    config = run_config.with_defaults(config)
    seen.check_server(config)
    times = sorted({*config.participations})
    folder = training.ResultsFolder(
        config.results_dir,
        config.deciding(),
        # No round is kept as the best for validation clients.
        run_methods.columns(dataclasses.replace(config, keep="last"), [server.METHOD]),
    )
    if (summary := folder.summary("text")) is not None:
        print(summary)
        return
    config, task = server.load(config)
    watch = server.Server(config, task, {"aggregate"})
    folder.open(watch.inputs)
    with contextlib.closing(folder):
        folder.start({})
        watch.train(folder.release)
        found = _on_sums(config, task, watch, times)
        # Secure aggregation hides single updates; a threshold would drop all rows.
        if config.aggregation is None:
            found += _on_single_clients(config, task, watch, times)
        on_requests, union = _on_requests(config, task, times)
        sizes = [row.get("classes_per_client") for row in folder.rows]
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
                    # Round 0, and one of a Poisson cohort, may have no client.
                    "classes_per_client": float(
                        np.mean([size for size in sizes if size is not None])
                    ),
                    "union": union,
                    "share_trained": watch.share_trained,
                    "epsilon": privacy_config.epsilon(watch.run),
                },
                "attacks": found + on_requests,
            }
        )
    print(f"{text}\nWritten to {folder.path}/")


def _on_sums(
    config: Config,
    task: tasks.FederatedTask,
    watch: server.Server,
    times: Sequence[int],
) -> list[dict]:
    """Attacks the sums of the training, without requests."""
    on_sums = watch.attacks["aggregate"]
    per_round = config.clients_per_round / task.dataset.num_clients
    rounds = {round(t / per_round) for t in times} | {config.rounds}
    on_sums.trace(sorted(r for r in rounds if 0 < r <= config.rounds))
    return [row for row in on_sums.summary() if row["attack"] in attacks.ON_SUMS]


def _on_requests(
    config: Config, task: tasks.FederatedTask, times: Sequence[int]
) -> tuple[list[dict], float]:
    """Attacks requests and their unions; also counts the unions' classes."""
    made = {"requests": seen.Requests(config, task.dataset, of_union=False)}
    if config.negatives is None:  # With the paper's negatives, also the unions.
        made["unions"] = seen.Requests(config, task.dataset, of_union=True)
    attack = attacks.Attack(config.seed)
    for client_id, positives, truth in seen.some_clients(
        "Requests", task.dataset, config.attacked_clients
    ):
        for name, requests in made.items():
            asked = requests.client(client_id, positives, max(times)).asked
            model = requests.model(len(positives))
            attack.on_requests(name, asked, truth, model, times)
    return attack.summary(), made["requests"].mean_union(config.rounds)


def _on_single_clients(
    config: Config,
    task: tasks.FederatedTask,
    watch: server.Server,
    times: Sequence[int],
) -> list[dict]:
    """Attacks the updates of single clients, of rows and of phi, several together."""
    times = [t for t in times if t <= config.most_updates]
    is_permanent = seen.class_set_builder(config, task.dataset).is_permanent
    attack = attacks.Attack(config.seed)
    for client_id, _, truth in seen.some_clients(
        "Updates", task.dataset, config.attacked_updates
    ):
        own_seed = training.permanent_seed(config.seed, client_id)
        by_rows, by_phi = np.zeros((2, task.dataset.num_classes))
        for t in range(1, max(times, default=0) + 1):
            client = task.client(
                client_id,
                training.client_seed(config.seed, t, client_id),
                True,
                own_seed if is_permanent else None,
            )
            *_, kernel_delta, _, w_delta = watch.update_of(client)
            asked = watch.asked_by(client_id, t)
            found = attacks.row_scores(asked, w_delta, watch.model, config.num_decoys)
            by_rows += update.together(found[attacks.BEST])
            by_phi += update.together(watch.model.scores_by_inputs(kernel_delta))
            if t in times:
                attack.judge("update", t, by_rows, truth)
                attack.judge("phi", t, by_phi, truth)
    return attack.summary()


if __name__ == "__main__":
    program.run(
        main,
        Config(
            rounds=60,
            rounds_per_evaluation=20,
            participations=(1, 3, 30, 300),
            public_images=500,
        ),
        paper="privacy",
    )
