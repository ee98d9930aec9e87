"""The common form of all data sets that tasks use."""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import progress
from tff_fedss.datasets import fingerprint
from tff_fedss.datasets.federated import clients as clients_lib
from tff_fedss.datasets.federated.preprocessing import Preprocessing, TracedOnce
from tff_fedss.datasets.fingerprint import Fingerprint
from tff_fedss.errors import InvalidInputError, check_kind, check_range

# Dtypes of phi's inputs: images, vectors, tokens.
_INPUTS = (tf.uint8, tf.float32, tf.int32)
# Number of clients whose images and classes are in a fingerprint, at most.
_COUNTED_CLIENTS = 8192
_SAMPLED_CLIENTS = 16
_BATCH = 256


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """Labelled examples that no client trains on.

    Attributes:
        data: Stored examples, see `FederatedDataset`.
    """

    data: tf.data.Dataset
    num_examples: int
    num_classes: int

    @classmethod
    def from_arrays(cls, images: np.ndarray, labels: np.ndarray) -> "HeldOut":
        """Holds out images uint8[N, h, w, c] (or object[N]) with labels int32[N]."""
        data = clients_lib.dataset_from_arrays(images, labels)
        return cls(data, len(labels), len(np.unique(labels)))


@dataclasses.dataclass(frozen=True, eq=False)
class FederatedDataset:
    """A labelled image data set split over clients, with its held-out images.

    Stored examples are unbatched `OrderedDict(image=..., label=int32[])`. Without
    `preprocessing`, their images are uint8[h, w, c], ready for the model; with it, they
    are the inputs of its `read`: the bytes of a file, or a reference to them.
    `client_examples`, `test_examples`, `public_examples` and `unseen_examples` return
    ready images, uint8[h, w, c], in either case.

    Attributes:
        name: The name of the data set in tables and messages.
        num_classes: n, the number of classes; labels are 0..n-1.
        image_shape: `(h, w, c)` of ready images.
        test_is_unseen: Whether the labels of `test` are of classes that no client has,
            as for retrieval (Section 4.3); if not, they are of the n classes.
        preprocessing: Maps stored to ready images; None if they are stored ready.
        pooled: Returns all stored training examples as one dataset that is cheap to
            shuffle (small elements). None: the clients' examples, one after another.
        public: Images of other classes that no client holds, labels from 0 on, for a
            central warm start of the feature extractor (the paper starts from
            ImageNet-1k, Appendix A.2). None if there are none.
        unseen: Images of classes that neither a client nor `public` has, labels from 0
            on, for retrieval among each other. None if there are none.
        class_names: Names of the n classes, by label; None if unknown.
        on_validation: Returns the same data set whose test are the images of the
            validation clients. None: there are none, or they already are the test.
        note: An addition about the split for `summary`.
        contents: Returns the parts of the fingerprint beyond the counts of clients, see
            `fingerprint.of`. None: the arrays in memory, or some clients' examples, and
            the held-out images.
    """

    name: str
    num_classes: int
    image_shape: tuple[int, int, int]
    train: clients_lib.CountedClientData
    test: HeldOut
    test_is_unseen: bool = False
    preprocessing: Preprocessing | None = None
    pooled: Callable[[], tf.data.Dataset] | None = None
    public: HeldOut | None = None
    unseen: HeldOut | None = None
    class_names: Sequence[str] | None = None
    on_validation: Callable[[], "FederatedDataset"] | None = None
    note: str = ""
    contents: Callable[[], Mapping[str, Any]] | None = None

    @classmethod
    def from_arrays(
        cls,
        clients: Mapping[str, clients_lib.Arrays],
        test: clients_lib.Arrays,
        *,
        name: str = "arrays",
        num_classes: int | None = None,
        test_is_unseen: bool = False,
    ) -> "FederatedDataset":
        """Makes a data set of arrays in memory.

        Args:
            clients: For each client id, images uint8[n_k, h, w, c] and labels int[n_k],
                with n_k >= 1. Other inputs are float32[n_k, ...], such as vectors, or
                int32[n_k, ...], such as tokens: give their dtype to
                `algorithms.ClientTraining(image_dtype=...)`.
            num_classes: n; None: the largest label of a client, and one more.
        """
        wanted = "a mapping from client ids to (images, labels)"
        check_kind("clients", clients, Mapping, wanted)
        check_range("the number of clients", len(clients), 1)
        for client_id in clients:
            check_kind("a client id", client_id, str, "a string")
        client_id = next(iter(clients))
        first, _ = _pair(clients[client_id], f"client {client_id!r}")
        checked = {
            client_id: _checked_arrays(arrays, first, f"client {client_id!r}")
            for client_id, arrays in clients.items()
        }
        test_arrays = _checked_arrays(test, first, "the test")
        data = clients_lib.InMemoryClientData(checked)
        largest = max(int(data.positives(k)[-1]) for k in data.client_ids)
        num_classes = _checked_num_classes(num_classes, largest)
        _check_test_labels(test_arrays[1], num_classes, test_is_unseen)
        return cls(
            name=name,
            num_classes=num_classes,
            image_shape=first.shape[1:],
            train=data,
            test=HeldOut.from_arrays(*test_arrays),
            test_is_unseen=test_is_unseen,
        )

    @classmethod
    def from_client_data(
        cls,
        train: tff.simulation.datasets.ClientData,
        test: tff.simulation.datasets.ClientData | tf.data.Dataset,
        *,
        example_fn: Callable[[Any], tuple[tf.Tensor, tf.Tensor]] | None = None,
        name: str = "client data",
        num_classes: int | None = None,
        test_is_unseen: bool = False,
    ) -> "FederatedDataset":
        """Makes a data set of any TFF client data.

        It reads all examples once, for n_k and P_k of every client.

        Args:
            train: The clients, such as a `FilePerUserClientData`, a `SqlClientData` or
                a `TestClientData`.
            test: Held-out examples of the same structure, or client data, of which all
                clients' examples are used.
            example_fn: Maps an example to its image, uint8[h, w, c] of a static shape
                (or another input, see `from_arrays`), and its label, a whole number [].
                Traced by TensorFlow. None: the example's `image` and `label`.
            num_classes: n; None: the largest label of a client, and one more.

        Returns:
            The data set. Clients without examples are left out.
        """
        wanted = "a tff.simulation.datasets.ClientData"
        check_kind("train", train, tff.simulation.datasets.ClientData, wanted)
        held_out = tff.simulation.datasets.ClientData | tf.data.Dataset
        check_kind("test", test, held_out, f"{wanted}, or a tf.data.Dataset")
        pair_of = tf.function(example_fn) if example_fn else _image_and_label

        def mapped(data: tf.data.Dataset) -> tf.data.Dataset:
            spec = data.element_spec
            is_named = isinstance(spec, Mapping) and {"image", "label"} <= spec.keys()
            if example_fn is None and not is_named:
                cure = "expected `image` and `label`, or an example_fn"
                raise InvalidInputError(f"{name}: examples are {spec}; {cure}.")
            pairs = data.map(lambda *parts: tuple(pair_of(*parts)))
            _check_element(*pairs.element_spec)
            return pairs.map(
                lambda image, label: clients_lib.to_element(image, _as_int32(label))
            )

        for client_id in train.client_ids[:1]:
            # Its errors, here without the lines that a graph adds.
            mapped(train.create_tf_dataset_for_client(client_id))
        examples = train.preprocess(TracedOnce(mapped))
        sizes, positives = {}, {}
        for client_id in progress.bar(
            f"Reading {name}", unit="clients", items=train.client_ids
        ):
            labels = _labels_of(examples.create_tf_dataset_for_client(client_id))
            if len(labels):
                sizes[client_id] = len(labels)
                positives[client_id] = np.unique(labels).astype(np.int32)
        if min((classes[0] for classes in positives.values()), default=-1) < 0:
            wanted = "a client, and labels from 0 to 2^31 - 1"
            raise InvalidInputError(f"{name} needs {wanted}.")
        largest = max(int(classes[-1]) for classes in positives.values())
        num_classes = _checked_num_classes(num_classes, largest)
        if isinstance(test, tff.simulation.datasets.ClientData):
            test = test.create_tf_dataset_from_all_clients(seed=0)
        test = mapped(test)
        found, expected = test.element_spec, examples.element_type_structure
        if found != expected:
            raise InvalidInputError(
                f"{name}: test examples are {found}; expected {expected}."
            )
        labels = _labels_of(test)
        _check_test_labels(labels, num_classes, test_is_unseen)
        return cls(
            name=name,
            num_classes=num_classes,
            image_shape=tuple(test.element_spec["image"].shape),
            train=clients_lib.Counted(
                examples, list(sizes), sizes.__getitem__, positives.__getitem__
            ),
            test=HeldOut(test, len(labels), len(np.unique(labels))),
            test_is_unseen=test_is_unseen,
        )

    def client_examples(self, client_id: str, seed: np.ndarray) -> tf.data.Dataset:
        """Returns a client's examples for one round, ready for the model.

        The seed, int32[2], decides the crops; see `training.client_seed`. The n_k
        elements are always in the same order, and read, decoded and cropped on request.
        """
        data = self.train.create_tf_dataset_for_client(client_id)
        return (
            data
            if self.preprocessing is None
            else self.preprocessing.training(data, seed)
        )

    def pooled_examples(self) -> tf.data.Dataset:
        """Returns the stored training examples of all clients as one dataset.

        They are not ready for the model (see `ready`), because stored examples are
        cheaper to shuffle.
        """
        if self.pooled is not None:
            return self.pooled()
        return self.train.create_tf_dataset_from_all_clients(seed=0)

    def ready(
        self, example: Mapping[str, tf.Tensor], seed: tf.Tensor
    ) -> collections.OrderedDict:
        """Makes an element of `pooled_examples` ready, cropped by a seed, int32[2]."""
        if self.preprocessing is None:
            return example
        return self.preprocessing.random_crop(example, seed)

    def test_examples(self) -> tf.data.Dataset:
        """Returns the test examples, ready for the model, unbatched."""
        return self._ready_to_measure("test")

    def public_examples(self) -> tf.data.Dataset:
        """Returns the public examples, ready for the model, unbatched."""
        return self._ready_to_measure("public")

    def unseen_examples(self) -> tf.data.Dataset:
        """Returns the unseen examples, ready for the model, unbatched."""
        return self._ready_to_measure("unseen")

    def _ready_to_measure(self, name: str) -> tf.data.Dataset:
        part = getattr(self, name)
        if part is None:
            raise InvalidInputError(f"{self.name} has no {name} images.")
        if self.preprocessing is None:
            return part.data
        return self.preprocessing.evaluation(part.data)

    @property
    def num_clients(self) -> int:
        """The number of training clients."""
        return len(self.train.client_ids)

    def num_examples(self, client_id: str) -> int:
        """Returns n_k of a client; reads no image."""
        return self.train.num_examples(client_id)

    def positives(self, client_id: str) -> np.ndarray:
        """Returns P_k of a client (Section 3.1), int32[|P_k|]; reads no image."""
        return self.train.positives(client_id)

    @property
    def max_positives(self) -> int:
        """max_k |P_k|, the padded length of positives."""
        return self.train.max_positives

    def fingerprint(self) -> Fingerprint:
        """Returns a fingerprint of the data (see `fingerprint`)."""
        client_ids = self.train.client_ids
        counted = [
            client_ids[k]
            for k in fingerprint.evenly_spaced(len(client_ids), _COUNTED_CLIENTS)
        ]
        counts = {
            "data set": self.name,
            "classes": self.num_classes,
            "image shape": self.image_shape,
            "clients": len(client_ids),
            "names of clients": client_ids,
            "images per client": np.array([*map(self.num_examples, counted)], np.int64),
            "classes of clients": [np.asarray(self.positives(k)) for k in counted],
            "test images": self.test.num_examples,
            "public images": self.public.num_examples if self.public else 0,
            "public classes": self.public.num_classes if self.public else 0,
        }
        contents = self._contents if self.contents is None else self.contents
        return fingerprint.of({**counts, **contents()})

    def _contents(self) -> dict[str, Any]:
        ids = self.train.client_ids
        if isinstance(self.train, clients_lib.InMemoryClientData):
            result = self.train.contents()
        else:
            result = {
                "contents of some clients": (
                    arrays
                    for k in fingerprint.evenly_spaced(len(ids), _SAMPLED_CLIENTS)
                    for arrays in _batches(
                        self.train.create_tf_dataset_for_client(ids[k])
                    )
                )
            }
        for name in ("test", "public", "unseen"):
            if (part := getattr(self, name)) is not None:
                result[f"contents of {name} images"] = _batches(part.data)
        return result

    def summary(self) -> str:
        """Describes the data set in one line."""
        parts = [
            f"n={self.num_classes:,} classes",
            f"{self.num_clients:,} clients of at most {self.max_positives:,} classes",
            f"{self.test.num_examples:,} test images"
            + (" of other classes" if self.test_is_unseen else ""),
        ]
        if self.public is not None:
            parts.append(
                f"{self.public.num_examples:,} public images of "
                f"{self.public.num_classes:,} other classes"
            )
        if self.unseen is not None:
            parts.append(
                f"{self.unseen.num_examples:,} images of {self.unseen.num_classes:,} "
                "unseen classes"
            )
        if self.note:
            parts.append(self.note)
        return f"{self.name}: {', '.join(parts)}"


def _batches(data: tf.data.Dataset) -> Iterator[list[np.ndarray]]:
    """Yields the parts of stored examples, batch by batch."""
    for batch in data.batch(_BATCH).as_numpy_iterator():
        yield tf.nest.flatten(batch)


def _labels_of(data: tf.data.Dataset) -> np.ndarray:
    """Reads the labels of stored examples, int64[N]."""
    batches = data.map(lambda example: example["label"]).batch(_BATCH)
    parts = [np.zeros(0, np.int64), *batches.as_numpy_iterator()]
    return np.concatenate(parts)


def _as_int32(label: tf.Tensor) -> tf.Tensor:
    """Returns a label as int32[]; -1, which is refused, if it is too large."""
    converted = tf.cast(label, tf.int32)
    return tf.where(tf.equal(tf.cast(converted, label.dtype), label), converted, -1)


def _image_and_label(example: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    return example["image"], example["label"]


def _check_element(image: tf.TensorSpec, label: tf.TensorSpec) -> None:
    """Checks that an example is a valid input of models."""
    is_input = image.dtype in _INPUTS and image.shape.rank and all(image.shape)
    if not (is_input and label.dtype.is_integer and label.shape.rank == 0):
        found = f"{image.dtype.name}{image.shape} and {label.dtype.name}{label.shape}"
        raise InvalidInputError(
            f"examples are {found}; expected uint8[h, w, c] (or float32 or int32) of "
            "one known shape and whole numbers []: give an example_fn."
        )


def _pair(arrays: Any, whose: str) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(arrays, tuple | list) or len(arrays) != 2:
        raise InvalidInputError(f"{whose} must have (images, labels), a pair.")
    images, labels = map(np.asarray, arrays)
    return images, labels


def _checked_arrays(
    arrays: clients_lib.Arrays, like: np.ndarray, whose: str
) -> clients_lib.Arrays:
    images, labels = _pair(arrays, whose)
    are_labels = labels.ndim == 1 and len(labels) and labels.dtype.kind in "iu"
    are_labels = are_labels and labels.min() >= 0 and labels.max() < 2**31
    is_input = like.ndim > 1 and like.dtype in [d.as_numpy_dtype for d in _INPUTS]
    are_alike = (images.dtype, images.shape) == (
        like.dtype,
        (*labels.shape, *like.shape[1:]),
    )
    if not (are_labels and is_input and are_alike):
        expected = f"{like.dtype}[N, {', '.join(map(str, like.shape[1:]))}]"
        if not is_input:
            expected = "uint8[N, h, w, c], float32[N, ...] or int32[N, ...]"
        raise InvalidInputError(
            f"{whose} has images {images.dtype}{list(images.shape)} and labels "
            f"{labels.dtype}{list(labels.shape)}; expected {expected}, and N whole "
            "numbers from 0 to 2^31 - 1."
        )
    return images, labels.astype(np.int32)


def _checked_num_classes(num_classes: int | None, largest: int) -> int:
    if num_classes is None:
        return largest + 1
    check_range("num_classes", num_classes, largest + 1, whole=True)
    return int(num_classes)  # JSON has no integers of NumPy.


def _check_test_labels(labels: np.ndarray, num_classes: int, is_unseen: bool) -> None:
    if min(labels, default=-1) < 0 or (not is_unseen and labels.max() >= num_classes):
        raise InvalidInputError(
            f"expected test images with labels in 0..{num_classes - 1}, or from 0 on "
            "with test_is_unseen=True."
        )
