"""The form in which every data set of this project is handed to a task."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


@dataclasses.dataclass(frozen=True, eq=False)
class FederatedDataset:
    """A labelled image data set split over clients, with its held-out images.

    Elements of every `tf.data.Dataset` here are unbatched
    `OrderedDict(image=uint8[h, w, c], label=int32[])`.

    Attributes:
        name: What to call the data set in tables and messages.
        num_classes: n, the number of classes; labels are 0..n-1.
        image_shape: `(h, w, c)` of every image.
        train: The clients' training images.
        positives: Maps a client id to its positives P_k (Section 3.1 of the FedSS
            paper): the sorted, distinct labels of that client, int32[|P_k|]. It reads
            no image, so that a client's class set costs nothing to find.
        max_positives: max_k |P_k|, the length to which positives are padded.
        test: Labelled images, held out from every client, of the same n classes.
        num_test_examples: Number of elements of `test`.
        public: Labelled images of other classes that no client holds, labels
            0..num_public_classes-1, for a central warm start of the feature extractor
            (the paper starts from ImageNet-1k, Appendix A.2). None if there are none.
        num_public_classes: Number of classes of `public`.
        num_public_examples: Number of elements of `public`.
        note: What else a person should know about the split, for `summary`.
    """

    name: str
    num_classes: int
    image_shape: tuple[int, int, int]
    train: tff.simulation.datasets.ClientData
    positives: Callable[[str], np.ndarray]
    max_positives: int
    test: tf.data.Dataset
    num_test_examples: int
    public: tf.data.Dataset | None = None
    num_public_classes: int = 0
    num_public_examples: int = 0
    note: str = ""

    @property
    def num_clients(self) -> int:
        """The number of training clients."""
        return len(self.train.client_ids)

    def summary(self) -> str:
        """Describes the data set to a person in one line."""
        parts = [
            f"n={self.num_classes:,} classes",
            f"{self.num_clients:,} clients of at most {self.max_positives:,} classes",
            f"{self.num_test_examples:,} test images",
        ]
        if self.public is not None:
            parts.append(
                f"{self.num_public_examples:,} public images of "
                f"{self.num_public_classes:,} other classes"
            )
        if self.note:
            parts.append(self.note)
        return f"{self.name}: {', '.join(parts)}"
