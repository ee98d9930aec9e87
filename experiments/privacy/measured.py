"""One training of the table of defences, and everything that is attacked in it."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tqdm

from experiments.common import output_files
from experiments.fedss import dp_config, run_parts
from experiments.privacy import attacks, defences, seen, server
from experiments.privacy.attacks import Attack
from tff_fedss import tasks, training
from tff_fedss.errors import InvalidInputError
from tff_fedss.privacy import intersection, phi, success
from tff_fedss.vectors import unit

_METHOD = "fedss"
# The attacks on sums of rows; the second where differential privacy adds noise.
TRACED = ("traced, no request", "traced through the noise, no request")
_ON_SUMS = (*TRACED, "traced by phi alone, no request")
_DONE, _ATTACKS, _METRICS = "done.json", "attacks.csv", "metrics.csv"


@dataclasses.dataclass(frozen=True)
class Measured:
    """What came of one training.

    Attributes:
        metric: The task's, after the last round, a share.
        classes_per_client: What a client asks for, a mean over rounds.
        union: The classes that a cohort asks for, a mean over rounds.
        share_trained: Of the examples of the cohorts, those that trained.
        num_rounds: How many.
        epsilon: Of user-level differential privacy; None where it bounds nothing.
        attacks: Rows of `attacks.summary`; x is the number of participations, or, for
            what is made on sums, that of rounds.
    """

    metric: float
    classes_per_client: float
    union: float
    share_trained: float
    num_rounds: int
    epsilon: float | None
    attacks: tuple[dict[str, Any], ...]


def read(folder: pathlib.Path, flags: dict[str, str]) -> Measured | None:
    """Returns what an earlier command has left; None if it has not come so far.

    Args:
        folder: Of the training.
        flags: Those that decide it.

    Raises:
        InvalidInputError: If it is of other flags.
    """
    path = folder / _DONE
    if not path.exists():
        return None
    done = json.loads(path.read_text())
    flags = _without_place(flags)
    differences = [
        f"--{name}={done['flags'].get(name)} there, {flags.get(name)} here"
        for name in sorted({*done["flags"], *flags})
        if done["flags"].get(name) != flags.get(name)
    ]
    if differences:
        raise InvalidInputError(
            f"{folder} is of other flags: {'; '.join(differences)}. Name another "
            "folder, or remove it."
        )
    return Measured(**{**done["measured"], "attacks": tuple(done["attacks"])})


def measure(
    config: Any,
    task: tasks.FederatedTask,
    start: Sequence[np.ndarray],
    times: Sequence[int],
    folder: pathlib.Path,
) -> Measured:
    """Trains, attacks, and writes what came of it.

    Requests and sums are attacked as they come in the training; single clients'
    updates at its end: those that the last model would get of a client, by its draws of
    round 1, 2 and so on.

    Args:
        config: Of the program, with the flags of this training and the defaults of the
            data set.
        task: The task.
        start: phi before the first round.
        times: After how many participations to judge.
        folder: Where.
    """
    dataset = task.dataset
    run = run_parts.build_run(config, _METHOD, task)
    run.set_feature_extractor(start)
    watch = server.Server(config, run, {"aggregate"})
    rows = []

    def release(metrics: training.Metrics, speed: training.Metrics) -> None:
        watch.release(metrics, speed)
        rows.append(metrics)

    training.train([run], config.rounds, config.rounds_per_evaluation, release)
    on_sums = watch.attacks["aggregate"]
    per_round = config.clients_per_round / dataset.num_clients
    rounds = {round(t / per_round) for t in times} | {config.rounds}
    on_sums.trace(sorted(r for r in rounds if 0 < r <= config.rounds))
    records = [record for record in on_sums.records if record.attack in _ON_SUMS]
    # Secure aggregation hides single updates; a threshold would drop all of their rows.
    if config.aggregation is None:
        singles = [t for t in times if t <= config.most_updates]
        records += _on_single_clients(config, task, run, singles)
    requests, union = _on_requests(config, task, times)
    records += requests
    trained = [row for row in rows if row["round"]]
    held = sum(
        dataset.num_examples(k)
        for r in range(1, config.rounds + 1)
        for k in run.cohort(r)
    )
    found = Measured(
        metric=rows[-1][task.metric],
        classes_per_client=float(np.mean([r["classes_per_client"] for r in trained])),
        union=union,
        share_trained=sum(r["num_examples"] for r in trained) / held,
        num_rounds=config.rounds,
        epsilon=dp_config.epsilon(run),
        attacks=tuple(attacks.summary(records)),
    )
    output_files.write_csv(folder / _ATTACKS, found.attacks)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    output_files.write_csv(folder / _METRICS, rows, columns)
    own = dataclasses.asdict(found)
    own.pop("attacks")
    flags = _without_place(config.deciding())
    done = {"flags": flags, "measured": own, "attacks": found.attacks}
    output_files.write_text(folder / _DONE, json.dumps(done, indent=1) + "\n")
    return found


def _without_place(flags: dict[str, str]) -> dict[str, str]:
    """The same data may be in another place, on another machine."""
    return {name: value for name, value in flags.items() if name != "data_dir"}


def chosen(client_ids: Sequence[str], count: int) -> list[str]:
    """Returns evenly spaced clients."""
    places = np.linspace(0, len(client_ids) - 1, min(count, len(client_ids)))
    return [client_ids[int(i)] for i in places]


def _on_requests(
    config: Any, task: tasks.FederatedTask, times: Sequence[int]
) -> tuple[list[attacks.Record], float]:
    """Attacks requests, and the unions that they are in; also counts the unions."""
    dataset = task.dataset
    builder = defences.builder(config, dataset)
    asking = defences.NEGATIVES[defences.name(config)]
    made = {
        name: seen.Requests(
            builder,
            dataset,
            seed=config.seed,
            cohort_size=config.clients_per_round,
            of_union=name == "unions",
        )
        # Of those whose negatives are the paper's, the unions are looked at, too.
        for name in ("requests", *(["unions"] if config.negatives is None else []))
    }
    attack = attacks.Intersection(config.seed)
    clients = chosen(dataset.train.client_ids, config.attacked_clients)
    for client_id in tqdm.tqdm(clients, "Requests", unit=" clients", disable=None):
        positives = np.asarray(dataset.positives(client_id))
        truth = seen.as_mask(positives, dataset.num_classes)
        own = asking.model(config, dataset.num_classes, len(positives), builder)
        for name, requests in made.items():
            model = own
            if name == "unions":
                model = intersection.among_others(own, requests.share_of_others)
            asked = requests.client(client_id, positives, max(times))
            asked = np.stack([one.asked for one in asked])
            attack.on_client(name, asked, truth, model, times)
    sizes = made["requests"].sizes(range(1, config.rounds + 1))
    return attack.records, float(np.mean(sizes))


def _on_single_clients(
    config: Any,
    task: tasks.FederatedTask,
    run: training.FederatedRun,
    times: Sequence[int],
) -> list[attacks.Record]:
    """Attacks the updates of single clients, of rows and of phi, several together."""
    dataset = task.dataset
    builder = defences.builder(config, dataset)
    asking = defences.NEGATIVES[defences.name(config)]
    request = seen.request_fn(builder, config.seed)
    updates = seen.Updates(run, config.server_learning_rate)
    public = seen.PublicImages(task, config.public_images)
    weights = run.weights
    *_, kernel, bias, classifier = map(np.asarray, weights.trainable)
    inputs = public.inputs(weights)
    feature = unit(inputs @ kernel + bias).mean(0)
    attack = Attack(config.seed)
    clients = chosen(dataset.train.client_ids, config.attacked_updates)
    for client_id in tqdm.tqdm(clients, "Updates", unit=" clients", disable=None):
        positives = dataset.positives(client_id)
        truth = seen.as_mask(positives, dataset.num_classes)
        by_rows, by_phi = np.zeros((2, dataset.num_classes))
        for t in range(1, max(times) + 1):
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
            *_, own = attacks.row_scores(
                w_delta[asked],
                classifier[asked],
                feature,
                asking.num_decoys(config),
            ).values()
            scores = np.full(dataset.num_classes, own.min())
            scores[asked] = own
            by_rows += _standard(scores)
            by_phi += _standard(
                phi.by_inputs(kernel_delta, classifier, inputs, public.labels)
            )
            if t in times:
                for name, total in (("update", by_rows), ("phi", by_phi)):
                    claimed = success.top(total, np.count_nonzero(truth))
                    attack.judge(name, t, total, claimed, truth)
    return attack.records


def _standard(scores: np.ndarray) -> np.ndarray:
    return (scores - scores.mean()) / (scores.std() or 1.0)
