"""An honest-but-curious server that attacks its clients while a run trains."""

from collections.abc import Collection

import numpy as np

from experiments.fedss.run_config import RunConfig
from experiments.privacy import attacks, seen
from tff_fedss import algorithms, training
from tff_fedss.privacy import aggregate, phi


class Server:
    """The attacks between the rounds.

    Attributes:
        attacks: Attacks by name.

    Args:
        config: Config of `privacy` or `privacy.train`, with the defaults of its data
            set.
        run: The run before its first round; phi ends in a dense layer with a bias.
        names: Names of the attacks: `update`, `aggregate`, `phi`.
    """

    def __init__(
        self, config: RunConfig, run: training.FederatedRun, names: Collection[str]
    ):
        self._config, self._run = config, run
        self._dataset = run.task.dataset
        self._client_ids = list(self._dataset.train.client_ids)
        self._positives = {
            client_id: seen.as_mask(
                self._dataset.positives(client_id), self._dataset.num_classes
            )
            for client_id in self._client_ids
        }
        self._sees_requests = config.requests is None
        self._num_decoys = seen.num_decoys(config)
        self._request = seen.request_fn(
            seen.class_set_builder(config, self._dataset), config.seed
        )
        self._public = seen.PublicImages(run.task, config.public_images)
        self._updates = seen.Updates(run, config.server.learning_rate)
        self._models: list[seen.Model] = []
        self._measured: dict[int, float] = {}
        self._num_trained = self._num_held = 0
        self.attacks: dict[str, attacks.Attack] = {}
        if "update" in names:
            self.attacks["update"] = attacks.Attack(config.seed)
        if "aggregate" in names:
            self.attacks["aggregate"] = attacks.Aggregate(
                config.seed,
                np.stack([*self._positives.values()]),
                self._num_decoys,
                drops_rows=config.threshold > 1,
                noise_covariance=_noise_covariance(config),
            )
        if "phi" in names:
            self.attacks["phi"] = attacks.Attack(config.seed)

    def release(self, metrics: training.Metrics, speed: training.Metrics) -> None:
        """Attacks a completed round, and the clients of the next one."""
        del speed
        round_num, task = metrics["round"], self._run.task
        model = self._public.seen_by(self._run.weights)
        self._models = [*self._models[-2:], model]
        if round_num:
            self._num_trained += metrics["num_examples"]
            cohort = self._run.cohort(round_num)
            self._num_held += sum(map(self._dataset.num_examples, cohort))
        if round_num and "aggregate" in self.attacks:
            self._look_at_sum(round_num)
        if task.metric in metrics:
            self._measured[round_num] = metrics[task.metric]
            if round_num < self._config.rounds:
                self._look_at_clients(round_num + 1)

    @property
    def share_trained(self) -> float:
        """The share of the cohorts' examples that trained."""
        return self._num_trained / self._num_held

    def finish(self) -> dict[str, list[str]]:
        """Runs the attacks that need all rounds.

        Returns:
            Further results by attack.
        """
        task, last = self._run.task, self._config.rounds
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
            if self._sees_requests:
                facts["aggregate"].append(self._lone_rows())
        return facts

    def _asked_by(self, client_id: str, round_num: int) -> np.ndarray:
        return self._request(
            self._dataset.positives(client_id), client_id, round_num
        ).asked

    def _look_at_sum(self, round_num: int) -> None:
        config = self._config
        # Before the first round there is no earlier model.
        before, now, after = [self._models[0], *self._models][-3:]
        w_delta, kernel_delta = (
            aggregate.undo_momentum(
                *three,
                learning_rate=config.server.learning_rate,
                momentum=config.server.momentum,
            )
            for three in (
                (before.classifier, now.classifier, after.classifier),
                (before.kernel, now.kernel, after.kernel),
            )
        )
        cohort = self._run.cohort(round_num)
        self.attacks["aggregate"].on_sum(
            round_num,
            w_delta,
            phi.by_inputs(
                kernel_delta, now.classifier, now.inputs, self._public.labels
            ),
            now,
            attacks.Cohort(
                np.array([self._client_ids.index(k) for k in cohort]),
                np.stack([self._asked_by(k, round_num) for k in cohort])
                if self._sees_requests
                else None,
            ),
            judged=(round_num - 1) % config.rounds_per_evaluation == 0,
        )

    def _look_at_clients(self, round_num: int) -> None:
        if not {"update", "phi"} & self.attacks.keys():
            return
        model, most = self._models[-1], self._config.attacked_clients
        cohort, clients = self._run.cohort(round_num), self._run.clients(round_num)
        for client_id, client in list(zip(cohort, clients, strict=True))[:most]:
            *phi_delta, w_delta = self._updates.of(client)
            truth = self._positives[client_id]
            asked = self._asked_by(client_id, round_num)
            if "update" in self.attacks:
                self.attacks["update"].on_rows(
                    round_num,
                    asked,
                    w_delta,
                    model,
                    truth,
                    self._num_decoys,
                    seen.size_is_known(self._config),
                )
            if "phi" in self.attacks:
                self.attacks["phi"].on_phi(
                    round_num, phi_delta, model, self._public.labels, truth
                )

    def _lone_rows(self) -> str:
        config, positives = self._config, np.stack([*self._positives.values()])
        expected = aggregate.lone_share(
            positives.shape[1],
            positives.sum(1).mean() + self._num_decoys,
            config.clients_per_round,
        )
        measured = np.mean(self.attacks["aggregate"].lone_shares)
        return (
            f"Of a client's rows, {measured:.3f} are nobody else's in the cohort "
            f"({expected:.3f}, were all requests uniform and of the mean size)"
        )


def _noise_covariance(config: RunConfig) -> np.ndarray | None:
    """Returns the public covariance over rounds of the noise."""
    mechanism = config.mechanism
    if mechanism is None:
        return None
    if config.restart_every is not None:
        return algorithms.tree_covariance(config.rounds, config.restart_every)
    return np.eye(config.rounds)
