"""The form in which every data set of this project is handed to a task."""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss.datasets import fingerprint
from tff_fedss.datasets.federated.preprocessing import Preprocessing
from tff_fedss.datasets.fingerprint import Fingerprint

# Whose images and classes a fingerprint counts; of more clients, as many of them.
_COUNTED_CLIENTS = 8192
_SAMPLED_CLIENTS = 16
_BATCH = 256


@dataclasses.dataclass(frozen=True, eq=False)
class FederatedDataset:
    """A labelled image data set split over clients, with its held-out images.

    Stored examples are unbatched `OrderedDict(image=..., label=int32[])`. Without
    `preprocessing`, their images are uint8[h, w, c], ready for the model; with it, they
    are what its `read` takes: the bytes of a file, or where to find them.
    `client_examples`, `pooled_examples` and `test_examples` give images that are ready,
    uint8[h, w, c], in either case.

    Attributes:
        name: What to call the data set in tables and messages.
        num_classes: n, the number of classes; labels are 0..n-1.
        image_shape: `(h, w, c)` of every image that is ready for the model.
        train: The clients' stored training examples.
        num_examples: Maps a client id to n_k, the number of its examples. It reads no
            image.
        positives: Maps a client id to its positives P_k (Section 3.1 of the FedSS
            paper): the sorted, distinct labels of that client, int32[|P_k|]. It reads
            no image, so that a client's class set costs nothing to find.
        max_positives: max_k |P_k|, the length to which positives are padded.
        test: Stored labelled examples, held out from every client.
        num_test_examples: Number of elements of `test`.
        test_is_unseen: Whether the labels of `test` stand for classes that no client
            has, as for retrieval (Section 4.3); else they are those of the n classes.
        preprocessing: From stored to ready images; None if they are stored ready.
        pooled: Returns all stored training examples as one dataset that is cheap to
            shuffle (small elements). None: the clients' examples, one after another.
        public: Labelled images, uint8[h, w, c], of other classes that no client holds,
            labels 0..num_public_classes-1, for a central warm start of the feature
            extractor (the paper starts from ImageNet-1k, Appendix A.2). None if there
            are none.
        num_public_classes: Number of classes of `public`.
        num_public_examples: Number of elements of `public`.
        class_names: What the n classes are called, by label; None if nothing says it.
        note: What else a person should know about the split, for `summary`.
        contents: What `fingerprint` is to say of images and labels, beyond the counts
            of clients. None: it goes through `train` (some clients of it, if it has no
            `fingerprint` of its own), `test` and `public`.
    """

    name: str
    num_classes: int
    image_shape: tuple[int, int, int]
    train: tff.simulation.datasets.ClientData
    num_examples: Callable[[str], int]
    positives: Callable[[str], np.ndarray]
    max_positives: int
    test: tf.data.Dataset
    num_test_examples: int
    test_is_unseen: bool = False
    preprocessing: Preprocessing | None = None
    pooled: Callable[[], tf.data.Dataset] | None = None
    public: tf.data.Dataset | None = None
    num_public_classes: int = 0
    num_public_examples: int = 0
    class_names: Sequence[str] | None = None
    note: str = ""
    contents: Callable[[], Mapping[str, int | str]] | None = None

    def client_examples(self, client_id: str, seed: np.ndarray) -> tf.data.Dataset:
        """Returns a client's examples for one round, as the model takes them.

        Args:
            client_id: One of the training clients.
            seed: int32[2], which decides how images are cropped; see
                `training.client_seed`.

        Returns:
            n_k unbatched elements, always in the same order. Images are read, decoded
            and cropped as they are asked for, several at a time.
        """
        data = self.train.create_tf_dataset_for_client(client_id)
        return (
            data
            if self.preprocessing is None
            else self.preprocessing.training(data, seed)
        )

    def pooled_examples(self) -> tf.data.Dataset:
        """Returns the stored training examples of all clients as one dataset.

        Not yet ready for the model (see `ready`), because examples as they are stored
        are cheaper to shuffle.
        """
        if self.pooled is not None:
            return self.pooled()
        return self.train.create_tf_dataset_from_all_clients(seed=0)

    def ready(self, example, seed: tf.Tensor) -> collections.OrderedDict:
        """Makes one stored training example ready for the model, in a graph.

        Args:
            example: An element of `pooled_examples`.
            seed: int32[2], which decides the crop.
        """
        if self.preprocessing is None:
            return example
        return self.preprocessing.random_crop(example, seed)

    def test_examples(self) -> tf.data.Dataset:
        """Returns the test examples as the model takes them, unbatched."""
        if self.preprocessing is None:
            return self.test
        return self.preprocessing.evaluation(self.test)

    @property
    def num_clients(self) -> int:
        """The number of training clients."""
        return len(self.train.client_ids)

    def fingerprint(self) -> Fingerprint:
        """By what a run knows these data again; see `fingerprint`."""
        client_ids = self.train.client_ids
        counted = [
            client_ids[k]
            for k in fingerprint.evenly_spaced(len(client_ids), _COUNTED_CLIENTS)
        ]
        result = {
            "data set": self.name,
            "classes": self.num_classes,
            "image shape": fingerprint.shape_text(self.image_shape),
            "clients": len(client_ids),
            "names of clients": fingerprint.of_text(client_ids),
            "images per client": fingerprint.of_numbers(
                map(self.num_examples, counted)
            ),
            "classes of clients": fingerprint.of_arrays(
                [np.asarray(self.positives(client_id)) for client_id in counted]
            ),
            "test images": self.num_test_examples,
            "public images": self.num_public_examples,
            "public classes": self.num_public_classes,
        }
        contents = self._read_contents if self.contents is None else self.contents
        return {**result, **contents()}

    def _read_contents(self) -> Fingerprint:
        if hasattr(self.train, "fingerprint"):
            result = self.train.fingerprint()
        else:
            ids = self.train.client_ids
            sampled = fingerprint.evenly_spaced(len(ids), _SAMPLED_CLIENTS)
            result = {
                "contents of some clients": fingerprint.of_stream(
                    arrays
                    for k in sampled
                    for arrays in _batches(
                        self.train.create_tf_dataset_for_client(ids[k])
                    )
                )
            }
        result["contents of test images"] = fingerprint.of_stream(_batches(self.test))
        if self.public is not None:
            result["contents of public images"] = fingerprint.of_stream(
                _batches(self.public)
            )
        return result

    def summary(self) -> str:
        """Describes the data set to a person in one line."""
        parts = [
            f"n={self.num_classes:,} classes",
            f"{self.num_clients:,} clients of at most {self.max_positives:,} classes",
            f"{self.num_test_examples:,} test images"
            + (" of other classes" if self.test_is_unseen else ""),
        ]
        if self.public is not None:
            parts.append(
                f"{self.num_public_examples:,} public images of "
                f"{self.num_public_classes:,} other classes"
            )
        if self.note:
            parts.append(self.note)
        return f"{self.name}: {', '.join(parts)}"


def _batches(data: tf.data.Dataset) -> Iterator[list[np.ndarray]]:
    """Yields the parts of stored examples, some examples at a time."""
    for batch in data.batch(_BATCH).as_numpy_iterator():
        yield tf.nest.flatten(batch)
