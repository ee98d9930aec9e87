"""The server's view of the project's own training."""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.fedss import privacy_config, run_config
from tff_fedss import class_sets, metrics, models, progress, tasks, training
from tff_fedss.algorithms import client_update
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError
from tff_fedss.privacy import intersection, update


def some_clients(
    what: str, dataset: FederatedDataset, count: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields some clients, evenly spaced, below a progress bar of what is attacked.

    Yields:
        The client's id; P_k, int32[any]; P_k as bool[n].
    """
    ids = dataset.train.client_ids
    places = np.linspace(0, len(ids) - 1, min(count, len(ids)))
    chosen = [ids[int(i)] for i in places]
    for client_id in progress.bar(what, unit="clients", items=chosen):
        positives = np.asarray(dataset.positives(client_id))
        yield client_id, positives, np.isin(np.arange(dataset.num_classes), positives)


def check_server(config: run_config.RunConfig) -> None:
    """Checks that the server steps by SGD at a constant rate, as attacks assume.

    Raises:
        InvalidInputError: If it is not.
    """
    is_sgd = config.chosen("server_optimizer").name == "sgdm"
    if not is_sgd or not config.server.learning_rate or config.schedule is not None:
        raise InvalidInputError(
            f"--server_optimizer={config.server_optimizer} "
            f"--schedule={config.schedule or 'constant'}: the attacks invert the "
            "server's SGD at a constant rate: give sgdm, a rate above 0, no schedule."
        )


def check_clients(dataset: FederatedDataset) -> None:
    """Checks that a client lacks a class: else there is nothing to find.

    Raises:
        InvalidInputError: If each client holds all classes.
    """
    n = dataset.num_classes
    if all(len(dataset.positives(k)) == n for k in dataset.train.client_ids):
        raise InvalidInputError(
            f"every client of {dataset.name} holds all {n:,} classes: there is nothing "
            "to find. Use more classes, or a --partition with fewer on a client."
        )


# --- Requests -----------------------------------------------------------------------


def class_set_builder(
    config: run_config.RunConfig, dataset: FederatedDataset
) -> class_sets.ClassSetBuilder:
    """Makes the class set builder of FedSS, by checked flags with their defaults."""
    made = privacy_config.class_set_builder(config, "fedss", dataset)
    return made or class_sets.SampledClasses(
        dataset.num_classes,
        config.num_negatives,
        dataset.max_positives,
        config.logit_correction,
    )


def size_is_known(config: run_config.RunConfig) -> bool:
    """Returns whether the size of a request reveals |P_k|."""
    return config.chosen("negatives").name != "randomized_response"


class Request(NamedTuple):
    """A client's request, and the rows in its update.

    Attributes:
        asked: bool[n], the classes asked for. Padding repeats one of them and has no
            information.
        trained: bool[n], the classes in the softmax, whose rows move in the update.
    """

    asked: np.ndarray
    trained: np.ndarray


def request_fn(
    builder: class_sets.ClassSetBuilder, seed: int
) -> Callable[[np.ndarray, str, int], Request]:
    """Returns a function that makes a client's request.

    Returns:
        (P_k int32[any], client id, round) -> the request.
    """
    pair = tf.TensorSpec([2], tf.int32)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32), pair, pair])
    def draw(positives, client_seed, permanent_seed):
        client = {
            "positives": positives,
            "seed": client_seed,
            "permanent_seed": permanent_seed,
        }
        class_set = client_update.draw_class_set(client, builder)
        return class_set.keys, class_set.is_member

    def request(positives: np.ndarray, client_id: str, round_num: int) -> Request:
        keys, is_member = draw(
            np.asarray(positives, np.int32),
            training.client_seed(seed, round_num, client_id),
            training.permanent_seed(seed, client_id),
        )
        keys, is_member = keys.numpy(), is_member.numpy()
        return Request(
            np.isin(np.arange(builder.num_classes), keys),
            np.isin(np.arange(builder.num_classes), keys[is_member]),
        )

    return request


class Requests:
    """The server's view of single clients' requests, for many rounds.

    With `of_union` only the union over the cohort is seen.
    """

    def __init__(
        self, config: run_config.RunConfig, dataset: FederatedDataset, of_union: bool
    ):
        self._config, self._dataset, self._of_union = config, dataset, of_union
        self._builder = class_set_builder(config, dataset)
        self._request = request_fn(self._builder, config.seed)
        self._cohort = training.cohort_fn(
            dataset.train.client_ids,
            config.clients_per_round,
            config.seed,
            privacy_config.sampling(config),
        )
        self._of = functools.cache(
            lambda k, round_num: self._request(dataset.positives(k), k, round_num)
        )
        # The probability that another client asks for a class, a mean over classes.
        self._share_of_others = 0.0
        if of_union:
            some = dataset.train.client_ids[:_SOME_CLIENTS]
            asked = np.mean([self._of(k, 1).asked for k in some], axis=0)
            by_others = 1 - (1 - asked) ** (config.clients_per_round - 1)
            self._share_of_others = float(np.mean(by_others))

    def model(self, num_positives: int) -> intersection.RequestModel:
        """Returns the probabilities that a client of |P_k| classes requests a class."""
        config, n = self._config, self._dataset.num_classes
        if size_is_known(config):
            found = intersection.fresh(n, num_positives, config.num_decoys)
            found = found._replace(is_permanent=config.negatives is not None)
        else:
            p, q = self._builder.p, self._builder.q
            found = intersection.RequestModel(p, q, is_permanent=True)
        if self._of_union:
            return intersection.among_others(found, self._share_of_others)
        return found

    def client(self, client_id: str, held: np.ndarray, count: int) -> Request:
        """Returns the view of a client's first participations, bool[count, n].

        It asks as if it held the classes `held`, int[any].
        """
        found: list[Request] = []
        for round_num in itertools.count(1):
            if len(found) == count:
                break
            # Its rounds matter only for the other clients in them.
            cohort = self._cohort(round_num) if self._of_union else [client_id]
            if client_id not in cohort:
                continue
            own = self._request(held, client_id, round_num)
            others = [self._of(k, round_num) for k in cohort if k != client_id]
            masks = zip(own, *others, strict=True)
            found.append(Request(*(np.any(one, axis=0) for one in masks)))
        return Request(*map(np.stack, zip(*found, strict=True)))

    def mean_union(self, num_rounds: int) -> float:
        """Returns how many classes a cohort asks for, a mean over the first rounds."""
        asked = (
            [self._of(k, round_num).asked for k in self._cohort(round_num)]
            for round_num in range(1, num_rounds + 1)
        )
        return float(np.mean([np.count_nonzero(np.any(a, axis=0)) for a in asked]))


# Enough to estimate how often classes are asked for.
_SOME_CLIENTS = 200


# --- Updates and models --------------------------------------------------------------


def update_fn(
    run: training.FederatedRun,
    process: tff.learning.templates.LearningProcess,
    server_learning_rate: float,
) -> Callable[[Any], list[np.ndarray]]:
    """Returns a function to a client's update of a run's current model.

    An update is the deltas of [*phi, W], in float64: the step of the process with this
    client as the cohort, without momentum.

    Args:
        process: The run's process without noise.
        server_learning_rate: That of the server's SGD.
    """
    initial = process.initialize()

    def update_of(client: Any) -> list[np.ndarray]:
        weights = run.weights
        state = process.set_model_weights(initial, weights)
        after = process.get_model_weights(process.next(state, [client]).state)
        return [
            (np.asarray(new, np.float64) - np.asarray(old, np.float64))
            / server_learning_rate
            for new, old in zip(after.trainable, weights.trainable, strict=True)
        ]

    return update_of


class Model(NamedTuple):
    """A published model, and its activations of public images.

    Attributes:
        classifier: float32[n, d], W.
        kernel: float32[inputs, d], of phi's last layer.
        inputs: float32[images, inputs], public images' inputs of that layer.
        labels: int32[images].
        feature: float64[d], the mean of their unit features.
    """

    classifier: np.ndarray
    kernel: np.ndarray
    inputs: np.ndarray
    labels: np.ndarray
    feature: np.ndarray

    def scores_by_inputs(self, kernel_delta: np.ndarray) -> np.ndarray:
        """Returns the scores of all classes by `update.by_inputs`, float64[n]."""
        return update.by_inputs(kernel_delta, self.classifier, self.inputs, self.labels)


def model_fn(
    task: tasks.FederatedTask, most: int
) -> Callable[[tff.learning.models.ModelWeights], Model]:
    """Returns a function to a model with its activations of the server's images.

    These are at most `most` labelled test images, which no client holds. The weights
    are [*phi, W]; phi ends in a dense layer with a bias.

    Raises:
        InvalidInputError: If the images are of other classes than the clients', or phi
            ends in another layer.
    """
    if task.dataset.test_is_unseen:
        raise InvalidInputError(
            "the server's public images are the test's, which are of other classes "
            "for retrieval. --attack=intersection needs none."
        )
    data = task.dataset.test_examples().take(most)
    batches = list(data.batch(256).as_numpy_iterator())
    images = np.concatenate([batch["image"] for batch in batches])
    labels = np.concatenate([batch["label"] for batch in batches])
    phi = task.feature_extractor_fn()
    if not isinstance(phi.layers[-1], tf.keras.layers.Dense):
        raise InvalidInputError(
            f"--embedding_dim={phi.output_shape[-1]}: with as many numbers {phi.name} "
            "has no dense layer at its end, whose inputs the attacks need: give "
            "another. --attack=intersection needs none."
        )
    last_inputs = models.inference(tf.keras.Model(phi.input, phi.layers[-1].input))

    def model_of(weights: tff.learning.models.ModelWeights) -> Model:
        *extractor, classifier = map(np.asarray, weights.trainable)
        models.assign(phi.trainable_variables, extractor)
        inputs = last_inputs(images)
        *_, kernel, bias = extractor
        feature = metrics.unit(inputs @ kernel + bias).mean(0)
        return Model(classifier, kernel, inputs, labels, feature)

    return model_of
