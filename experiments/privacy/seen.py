"""What passes through the server's hands, taken from the project's own training."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import class_sets, models, tasks, training
from tff_fedss.algorithms import client_update
from tff_fedss.datasets.federated.dataset import FederatedDataset


class Request(NamedTuple):
    """A client's request, and what shows of it later.

    Attributes:
        asked: bool[n], the classes asked for. What pads a request to its length repeats
            one of them and tells nothing.
        trained: bool[n], those in the softmax: the rows that move in its update.
    """

    asked: np.ndarray
    trained: np.ndarray


def request_fn(
    builder: class_sets.ClassSetBuilder, seed: int
) -> Callable[[np.ndarray, str, int], Request]:
    """Returns what makes a client's request as the server gets it.

    Args:
        builder: Of class sets.
        seed: Of the run.

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
            as_mask(keys, builder.num_classes),
            as_mask(keys[is_member], builder.num_classes),
        )

    return request


class Requests:
    """What the server sees of the requests of single clients, for many rounds.

    Attributes:
        share_of_others: With a union: the chance that a class is asked for by someone
            else in the cohort, a mean over classes.
    """

    def __init__(
        self,
        builder: class_sets.ClassSetBuilder,
        dataset: FederatedDataset,
        *,
        seed: int,
        cohort_size: int,
        of_union: bool,
    ):
        """Has made none yet.

        Args:
            builder: Of class sets.
            dataset: The data.
            seed: Of the run.
            cohort_size: K.
            of_union: Whether it is the union over the cohort that is seen.
        """
        self._dataset, self._seed = dataset, seed
        self._cohort_size, self._of_union = cohort_size, of_union
        self._request = request_fn(builder, seed)
        self._made: dict[tuple[str, int], Request] = {}
        self.share_of_others = 0.0
        if of_union:
            some = dataset.train.client_ids[:_SOME_CLIENTS]
            asked = np.mean([self._of(k, 1).asked for k in some], axis=0)
            self.share_of_others = float(np.mean(1 - (1 - asked) ** (cohort_size - 1)))

    def client(self, client_id: str, held: np.ndarray, count: int) -> list[Request]:
        """Returns what is seen at the first participations of a client.

        Args:
            client_id: The client.
            held: int[any], the classes that it holds, or is to hold.
            count: How many participations.
        """
        if not self._of_union:
            # Which rounds a client takes part in does not matter: seeds differ.
            return [self._request(held, client_id, r) for r in range(1, count + 1)]
        found, round_num = [], 0
        ids = self._dataset.train.client_ids
        while len(found) < count:
            round_num += 1
            cohort = training.cohort(self._seed, round_num, ids, self._cohort_size)
            if client_id not in cohort:
                continue
            own = self._request(held, client_id, round_num)
            others = [self._of(k, round_num) for k in cohort if k != client_id]
            masks = zip(own, *others, strict=True)
            found.append(Request(*(np.any(one, axis=0) for one in masks)))
        return found

    def sizes(self, rounds: Iterable[int]) -> list[int]:
        """Returns how many classes the cohort of each round asks for."""
        ids = self._dataset.train.client_ids
        return [
            np.count_nonzero(
                np.any(
                    [
                        self._of(k, r).asked
                        for k in training.cohort(self._seed, r, ids, self._cohort_size)
                    ],
                    axis=0,
                )
            )
            for r in rounds
        ]

    def _of(self, client_id: str, round_num: int) -> Request:
        key = client_id, round_num
        if key not in self._made:
            held = self._dataset.positives(client_id)
            self._made[key] = self._request(held, client_id, round_num)
        return self._made[key]


# Enough to know how often classes are asked for.
_SOME_CLIENTS = 200


class Updates:
    """The updates of single clients, from the model that a run has now."""

    def __init__(self, run: training.FederatedRun, server_learning_rate: float):
        """Makes the state that they are computed in.

        Args:
            run: Whose process and model.
            server_learning_rate: Of the process.
        """
        self._run = run
        self._learning_rate = server_learning_rate
        self._initial = run.process.initialize()

    def of(self, client: Any) -> list[np.ndarray]:
        """Returns what a client sends back: the deltas of [*phi, W], in float64.

        It is the step of the process with this client as the cohort, without momentum:
        the mean of one.

        Args:
            client: An element of the process's client argument.
        """
        process, weights = self._run.process, self._run.weights
        state = process.set_model_weights(self._initial, weights)
        after = process.get_model_weights(process.next(state, [client]).state)
        return [
            (np.asarray(new, np.float64) - np.asarray(old, np.float64))
            / self._learning_rate
            for new, old in zip(after.trainable, weights.trainable, strict=True)
        ]


class PublicImages:
    """Labelled images of the n classes that the server has, and what phi makes of them.

    They are the test's, which no client holds.

    Attributes:
        labels: int32[images].
    """

    def __init__(self, task: tasks.FederatedTask, most: int):
        """Reads the images.

        Args:
            task: Whose test images are of the clients' classes.
            most: So many at most.
        """
        data = task.dataset.test_examples().take(most)
        batches = list(data.batch(256).as_numpy_iterator())
        self._images = np.concatenate([batch["image"] for batch in batches])
        self.labels = np.concatenate([batch["label"] for batch in batches])
        model = task.feature_extractor_fn()
        self._variables = model.trainable_variables
        self._inputs = models.inference(
            tf.keras.Model(model.input, model.layers[-1].input)
        )

    def inputs(self, weights: tff.learning.models.ModelWeights) -> np.ndarray:
        """Returns what the images give to phi's last layer, float32[images, inputs].

        Args:
            weights: Of [*phi, W].
        """
        *phi, _ = weights.trainable
        models.assign(self._variables, phi)
        return self._inputs(self._images)


def as_mask(classes: np.ndarray, num_classes: int) -> np.ndarray:
    """Returns bool[n], true for some classes, int[any]."""
    mask = np.zeros(num_classes, bool)
    mask[np.asarray(classes, np.int64)] = True
    return mask
