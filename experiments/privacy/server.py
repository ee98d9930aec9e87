"""An honest-but-curious server that attacks its clients while a run trains."""

import dataclasses
from collections.abc import Callable, Collection

import numpy as np

from experiments.common import config, runtime_config
from experiments.fedss import run_config, run_parts
from experiments.privacy import attacks, seen
from tff_fedss import algorithms, tasks, training
from tff_fedss.privacy import aggregate

METHOD = "fedss"


# Flags of `train` for what an attacked training does not do.
_UNUSED = frozenset({"keep", "patience", "train_top1", "rounds_per_checkpoint"})


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """The flags of a training that is attacked."""

    def flags(self) -> dict[str, config.Flag]:
        """Returns the flags of `train` that an attacked training has, and its own."""
        return {k: v for k, v in super().flags().items() if k not in _UNUSED}

    @property
    def method_words(self) -> tuple[str, ...]:
        """FedSS, also for the key of --warm_start_cache."""
        return (METHOD,)

    participations: tuple[int, ...] = config.flag(
        (1, 2, 3, 5, 10, 30),
        "After how many of its participations a client's requests are attacked.",
        group="The attacks",
        low=1,
        high=10_000,
    )
    attacked_clients: int = config.flag(
        8, "How many clients' requests are attacked.", low=1
    )
    public_images: int = config.flag(
        5000,
        "How many of the test's images the server has: for the mean feature of attacks "
        "on rows, and, with their labels, for those on phi.",
        low=1,
    )


def load(config: Config) -> tuple[Config, tasks.FederatedTask]:
    """Loads the data; returns the flags, none unset, and the task of a training."""
    runtime_config.install(config)
    dataset = run_parts.load_dataset(config)
    print(dataset.summary(), flush=True)
    config, task, _ = run_parts.make_task(config, [METHOD], dataset)
    return config, task


class Server:
    """A training, and the attacks between its rounds.

    Attributes:
        inputs: The fingerprints of its inputs, by name.
        attacks: Attacks by name.
        update_of: Returns the update of a client, of the current model.

    Args:
        config: The flags, none unset.
        task: The task, whose test images are of the clients' classes; phi ends in a
            dense layer with a bias.
        names: Names of the attacks: `update`, `aggregate`, `phi`.
        most_clients: Number of clients of an attacked round that `update` and `phi`
            attack.

    Raises:
        InvalidInputError: If the flags do not suit the data.
    """

    def __init__(
        self,
        config: Config,
        task: tasks.FederatedTask,
        names: Collection[str],
        most_clients: int = 0,
    ):
        self.run = run_parts.build_run(config, METHOD, task)
        self.inputs = {
            "data": task.fingerprint(),
            **run_parts.pretrained_fingerprint(config),
        }
        self._config, self._most_clients = config, most_clients
        self._dataset = task.dataset
        self._client_ids = list(self._dataset.train.client_ids)
        classes = np.arange(self._dataset.num_classes)
        self._positives = np.stack(
            [np.isin(classes, self._dataset.positives(k)) for k in self._client_ids]
        )
        self._sees_requests = config.requests is None
        self._request = seen.request_fn(
            seen.class_set_builder(config, self._dataset), config.seed
        )
        self._model_of = seen.model_fn(task, config.public_images)
        process = self.run.process
        if config.dp is not None:  # The server sees updates before it adds the noise.
            noiseless = dataclasses.replace(config, dp=None)
            process = run_parts.build_run(noiseless, METHOD, task).process
        rate = config.server.learning_rate
        self.update_of = seen.update_fn(self.run, process, rate)
        self._models: list[seen.Model] = []
        self._measured: dict[int, float] = {}
        self._num_trained = self._num_held = 0
        self.attacks = {
            name: attacks.Attack(config.seed)
            for name in ("update", "aggregate", "phi")
            if name in names
        }
        if "aggregate" in names:
            self.attacks["aggregate"] = attacks.Aggregate(
                config.seed,
                self._positives,
                config.num_decoys,
                drops_rows=config.threshold > 1,
                noise_covariance=_noise_covariance(config),
            )

    def train(
        self,
        release: Callable[[training.Metrics, training.Metrics], None] | None = None,
    ) -> None:
        """Trains to the end; calls `release` after the attacks on each round."""
        config, run = self._config, self.run
        run_parts.load_pretrained(config, run.task.model)
        phi = run_parts.initial_phi(config, run.task, self.inputs)
        run.set_feature_extractor(phi)

        def look(metrics: training.Metrics, speed: training.Metrics) -> None:
            self._look(metrics)
            if release is not None:
                release(metrics, speed)

        training.train([run], config.rounds, config.rounds_per_evaluation, look)

    def _look(self, metrics: training.Metrics) -> None:
        """Attacks a completed round, and the clients of the next one."""
        round_num, task = metrics["round"], self.run.task
        self._models = [*self._models[-2:], self._model_of(self.run.weights)]
        if round_num:
            self._num_trained += metrics["num_examples"]
            cohort = self.run.cohort(round_num)
            self._num_held += sum(map(self._dataset.num_examples, cohort))
        if round_num and "aggregate" in self.attacks:
            self._look_at_sum(round_num)
        if task.metric in metrics:
            self._measured[round_num] = metrics[task.metric]
            if round_num < self._config.rounds:
                self._look_at_clients(round_num + 1)

    @property
    def model(self) -> seen.Model:
        """The current model."""
        return self._models[-1]

    @property
    def share_trained(self) -> float:
        """The share of the cohorts' examples that trained."""
        return self._num_trained / self._num_held

    def finish(self) -> dict[str, list[str]]:
        """Runs the attacks that need all rounds.

        Returns:
            Further results by attack.
        """
        task, last = self.run.task, self._config.rounds
        reached = ", ".join(
            f"{task.format_metric(value)} after round {round_num}"
            for round_num, value in self._measured.items()
        )
        own = [f"{task.metric_title}: {reached}"]
        if self._num_trained < self._num_held:
            own.append(
                f"{self._num_trained:,} of the {self._num_held:,} examples of the "
                "cohorts trained: those whose class was asked for"
            )
        facts = {name: list(own) for name in self.attacks}
        if "aggregate" in self.attacks:
            steps = {2**i for i in range(3, last.bit_length())} | {last}
            self.attacks["aggregate"].trace(sorted(s for s in steps if s <= last))
            if self.attacks["aggregate"].lone_shares:
                facts["aggregate"].append(self._lone_rows())
        return facts

    def asked_by(self, client_id: str, round_num: int) -> np.ndarray:
        """Returns a client's request, bool[n]."""
        positives = self._dataset.positives(client_id)
        return self._request(positives, client_id, round_num).asked

    def _look_at_sum(self, round_num: int) -> None:
        # Before the first round there is no earlier model.
        before, now, after = [self._models[0], *self._models][-3:]
        w_delta, kernel_delta = (
            aggregate.undo_momentum(*three, **vars(self._config.server))
            for three in (
                (before.classifier, now.classifier, after.classifier),
                (before.kernel, now.kernel, after.kernel),
            )
        )
        ids = self.run.cohort(round_num)
        cohort = [self._client_ids.index(k) for k in ids]
        attack = self.attacks["aggregate"]
        phi_scores = now.scores_by_inputs(kernel_delta)
        attack.add_sum(w_delta, phi_scores, now, cohort)
        if (round_num - 1) % self._config.rounds_per_evaluation == 0:
            requests = None
            if ids and self._sees_requests:
                requests = np.stack([self.asked_by(k, round_num) for k in ids])
            attack.on_last_sum(round_num, cohort, requests)

    def _look_at_clients(self, round_num: int) -> None:
        if not {"update", "phi"} & self.attacks.keys():
            return
        cohort, clients = self.run.cohort(round_num), self.run.clients(round_num)
        both = list(zip(cohort, clients, strict=True))
        for client_id, client in both[: self._most_clients]:
            *phi_delta, w_delta = self.update_of(client)
            truth = self._positives[self._client_ids.index(client_id)]
            if "update" in self.attacks:
                self.attacks["update"].on_rows(
                    round_num,
                    self.asked_by(client_id, round_num),
                    w_delta,
                    self.model,
                    truth,
                    self._config.num_decoys,
                    seen.size_is_known(self._config),
                )
            if "phi" in self.attacks:
                self.attacks["phi"].on_phi(round_num, phi_delta, self.model, truth)

    def _lone_rows(self) -> str:
        expected = aggregate.lone_share(
            self._positives.shape[1],
            self._positives.sum(1).mean() + self._config.num_decoys,
            self._config.clients_per_round,
        )
        measured = np.mean(self.attacks["aggregate"].lone_shares)
        return (
            f"Of a client's rows, {measured:.3f} are nobody else's in the cohort "
            f"({expected:.3f}, were all requests uniform and of the mean size)"
        )


def _noise_covariance(config: Config) -> np.ndarray | None:
    """Returns the public covariance over rounds of the noise; None without noise."""
    if config.mechanism is None:
        return None
    if config.restart_every is not None:
        return algorithms.tree_covariance(config.rounds, config.restart_every)
    return np.eye(config.rounds)
