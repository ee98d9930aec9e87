"""Federated run: a learning process on the clients of a task."""

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_fedss import errors, metrics, runtime
from tff_fedss.privacy.accounting import Accountant
from tff_fedss.tasks import FederatedTask
from tff_fedss.training import draws
from tff_fedss.training.run import Metrics, Run


def client_selection_fn(
    task: FederatedTask,
    cohort_size: int,
    seed: int,
    with_positives: bool = False,
    with_permanent_seeds: bool = False,
    client_fn: Callable[..., Any] | None = None,
    sampling: str = "fixed",
) -> Callable[[int], list[Any]]:
    """Builds the client selection of `tff.simulation.run_training_process`.

    Args:
        cohort_size: K, the number of clients of a round.
        with_positives: The process's `with_positives`.
        with_permanent_seeds: Whether the process needs permanent seeds.
        client_fn: Makes a client's argument; by default `task.client`.

    Returns:
        A function from the round, counted from 1, to the client argument of
        `algorithms.build_fedss`.
    """
    client_fn = client_fn or task.client
    cohort_of = cohort_fn(task.dataset.train.client_ids, cohort_size, seed, sampling)

    def select_clients(round_num: int) -> list[Any]:
        return [
            client_fn(
                client_id,
                draws.client_seed(seed, round_num, client_id),
                with_positives,
                draws.permanent_seed(seed, client_id) if with_permanent_seeds else None,
            )
            for client_id in cohort_of(round_num)
        ]

    return select_clients


def cohort_fn(
    client_ids: Sequence[str], cohort_size: int, seed: int, sampling: str = "fixed"
) -> Callable[[int], list[str]]:
    """Builds the function from a round, counted from 1, to the ids of its clients.

    `sampling` is "fixed", K without replacement, or "poisson", each with
    probability K / N; another word raises ValueError.
    """
    errors.check_choice("sampling", sampling, draws.SAMPLINGS)
    draw = draws.SAMPLINGS[sampling]
    return lambda round_num: draw(seed, round_num, client_ids, cohort_size)


class FederatedRun(Run):
    """Runs the rounds of a learning process on the clients of a task.

    A round makes a new state and does not change the old one, even if it is
    interrupted.

    Attributes:
        clients: From a round, counted from 1, to its clients' arguments, in the order
            of `cohort`.
        cohort: From a round to the ids of its clients.
        accountant: Computes the privacy loss of the rounds; None: none.
        waiting_seconds: How long rounds have waited for the arguments of their clients:
            images are read or drawn before the round, and cropped in it.
    """

    def __init__(
        self,
        name: str,
        process: tff.learning.templates.LearningProcess,
        task: FederatedTask,
        *,
        cohort_size: int,
        seed: int,
        protocol: metrics.Protocol | None = None,
        client_fn: Callable[..., Any] | None = None,
        sampling: str = "fixed",
        accountant: Accountant | None = None,
    ):
        """Initializes the state of the process.

        Args:
            process: From `algorithms.build_fedss`.
            cohort_size: K, the number of clients of a round.
            seed: Seed of the cohorts and of the clients' draws.
            protocol: The protocol of requests and updates by which bytes are counted;
                None: that of Algorithm 1.
            accountant: Adds `epsilon`, where it is finite, to a round's metrics.

        Raises:
            ValueError: If the process was built for other images or another n than the
                task has.
        """
        super().__init__(name, task)
        _check_fits(process, task)
        self.process = process
        self.protocol = protocol or metrics.Protocol()
        names = tff.structure.name_list(process.next.type_signature.parameter[1].member)
        self.clients = client_selection_fn(
            task,
            cohort_size,
            seed,
            with_positives="positives" in names,
            with_permanent_seeds="permanent_seed" in names,
            client_fn=client_fn,
            sampling=sampling,
        )
        self.accountant = accountant
        self.cohort = cohort_fn(
            task.dataset.train.client_ids, cohort_size, seed, sampling
        )
        self.waiting_seconds = 0.0
        self._state = process.initialize()

    def set_feature_extractor(self, phi: Sequence[np.ndarray]) -> None:
        """Replaces the initial phi, in the order of Keras' `trainable_variables`."""
        classifier = self.weights.trainable[-1]
        self._state = self.process.set_model_weights(
            self._state,
            tff.learning.models.ModelWeights([*phi, classifier], non_trainable=[]),
        )

    @property
    def state(self) -> Any:
        """The server state of the process; not copied."""
        return self._state

    def set_state(self, state: Any) -> None:
        """Sets the server state of the process."""
        self._state = state

    def state_reader(self) -> Callable[[], Any]:
        """Returns a function that returns the current state, even when called later."""
        state = self._state
        return lambda: state

    @property
    def weights(self) -> tff.learning.models.ModelWeights:
        """The model, with trainable = [*phi, W]."""
        return self.process.get_model_weights(self._state)

    def _train_round(self, round_num: int) -> Metrics:
        """Runs the process on the clients of the round.

        Returns:
            The metrics of the process as Python numbers, without `loss` and `accuracy`
            if no client's update was accepted; `bytes_down` and `bytes_up`, a client's
            mean traffic for the whole model; and with an accountant `epsilon` of all
            rounds so far, if it is finite. A round without clients (a Poisson cohort
            may be empty) has no means over clients.
        """
        start = time.monotonic()
        clients = self.clients(round_num)
        self.waiting_seconds += time.monotonic() - start
        try:
            state, round_metrics = self.process.next(self._state, clients)
        except runtime.ClientError as error:
            raise error.of(self.cohort(round_num)[error.client]) from error.__cause__
        measured = Metrics(
            (key, np.asarray(value).item()) for key, value in round_metrics.items()
        )
        if not measured["num_examples"]:
            # Means over no example.
            del measured["loss"], measured["accuracy"]
        rows_per_client = measured.pop("rows_per_client", None)
        if clients:
            *phi, classifier = self._parameter_shapes
            traffic = metrics.classifier_traffic(
                measured["classes_per_client"],
                classifier[1],
                protocol=self.protocol,
                rows_per_client=rows_per_client,
            )
            phi_bytes = metrics.BYTES_PER_PARAMETER * sum(map(math.prod, phi))
            measured["bytes_down"] = phi_bytes + traffic.bytes_down
            measured["bytes_up"] = phi_bytes + traffic.bytes_up
        else:
            del measured["classes_per_client"], measured["positives_per_client"]
        if self.accountant is not None:
            epsilon = self.accountant.epsilon(round_num)
            if math.isfinite(epsilon):
                measured["epsilon"] = epsilon
        self._state = state
        return measured

    @functools.cached_property
    def _parameter_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of [*phi, W]."""
        return [np.shape(value) for value in self.weights.trainable]


def _check_fits(
    process: tff.learning.templates.LearningProcess, task: FederatedTask
) -> None:
    made = "a LearningProcess, such as algorithms.build_fedss makes"
    errors.check_kind("process", process, tff.learning.templates.LearningProcess, made)
    errors.check_kind("task", task, FederatedTask, "one of tasks for clients' data")
    clients = process.next.type_signature.parameter[1].member
    if not hasattr(clients, "data"):
        raise TypeError(f"process must be {made}; its clients are {clients}.")
    *_, w = process.get_model_weights.type_signature.result.trainable
    data = clients.data
    dataset, shape = task.dataset, task.dataset.image_shape
    if isinstance(data, tff.SequenceType):  # Otherwise clients make it from `dataset`.
        shape = tuple(data.element.image.shape)
    found = w.shape[0], shape
    wanted = dataset.num_classes, dataset.image_shape
    if found != wanted:
        raise ValueError(f"process is for (n, images) = {found}, task for {wanted}.")
