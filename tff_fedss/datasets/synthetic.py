"""A synthetic federated data set of glyphs: no download, up to millions of classes."""

import enum
import functools
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tff_fedss import errors, memory
from tff_fedss.datasets import bijection, glyph_drawing
from tff_fedss.datasets.federated import partitions
from tff_fedss.datasets.federated.clients import (
    ArrayClientData,
    Arrays,
    dataset_from_chunks,
)
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut

_CHUNK_SIZE = 100  # images rendered at a time for the test and public splits
_CACHE_BYTES = 2**27  # of drawn images, for each split
_MAX_LABEL = 2**31 - 1


class _Purpose(enum.IntEnum):
    """Separates the random streams of one seed."""

    GLYPH = 0  # per class
    BIJECTION = 1  # per replica
    BOUNDARIES = 2  # per replica
    TRAIN_HAND = 3  # per client
    TRAIN_EXAMPLES = 4  # per client
    TEST_HAND = 5  # per test hand
    TEST_EXAMPLES = 6  # per chunk
    TEST_CLASSES = 7
    PUBLIC_HAND = 8  # per public hand
    PUBLIC_EXAMPLES = 9  # per chunk


def glyphs(
    num_classes: int = 500,
    *,
    seed: int = 0,
    image_size: int = 28,
    mean_classes_per_client: int = 20,
    clients_per_class: int = 4,
    mean_examples_per_class: int = 5,
    num_test_hands: int = 20,
    test_examples_per_class: int = 4,
    max_test_examples: int = 10_000,
    num_public_classes: int = 300,
    public_examples_per_class: int = 20,
) -> FederatedDataset:
    """Makes a federated data set of handwritten glyphs, drawn on request.

    A class is a few curved strokes. A client writes all of its images in one hand (its
    own slant, rotation, size, pen and unsteadiness), and no two images are the same. A
    client holds few of the n classes, as in the paper's data sets (Section 4, Appendix
    A.4): |P_k| varies between clients by a factor of 0.5 to 1.5 around its mean, the
    images per class by about the same.

    Every draw is a function of (seed, purpose, class or client), so that the same
    arguments give the same images in any order of access and in any process. Nothing
    is drawn at construction; a million classes need only a list of client ids.

    Args:
        num_classes: n.
        seed: Seed of the data set; 0 <= seed < 2^63.
        image_size: Height and width of an image in pixels.
        mean_classes_per_client: The mean of |P_k| (n, if n is smaller).
        clients_per_class: The exact number of clients that hold each class.
        mean_examples_per_class: Mean number of images that a client has of each of its
            classes.
        num_test_hands: Number of hands that write the test images, none of them a
            client's.
        test_examples_per_class: Test images of each class, each by another hand while
            there are enough.
        max_test_examples: Largest number of test images; if it is reached, they are of
            a random sample of the classes.
        num_public_classes: Classes of the public images, beyond the n. 0 for none.
        public_examples_per_class: Public images of each of these, written by this
            number of further hands, none of them a client's or a test hand.

    Returns:
        The data set. Images are uint8[image_size, image_size, 1], ink 255 on 0.
    """
    errors.check_at_least(
        1,
        image_size=image_size,
        mean_classes_per_client=mean_classes_per_client,
        clients_per_class=clients_per_class,
        mean_examples_per_class=mean_examples_per_class,
        num_test_hands=num_test_hands,
        test_examples_per_class=test_examples_per_class,
        max_test_examples=max_test_examples,
        public_examples_per_class=public_examples_per_class,
    )
    errors.check_at_least(0, num_public_classes=num_public_classes)
    errors.check_range("num_classes", num_classes, 1, _MAX_LABEL - num_public_classes)
    errors.check_range("seed", seed, 0, 2**63 - 1)

    train = _GlyphClientData(
        seed,
        _Partition(seed, num_classes, mean_classes_per_client, clients_per_class),
        mean_classes_per_client * mean_examples_per_class,
        mean_examples_per_class,
        image_size,
    )
    num_test_classes = max(1, max_test_examples // test_examples_per_class)
    test_classes = np.arange(num_classes, dtype=np.int32)
    if num_classes > num_test_classes:
        permute = bijection.Bijection(num_classes, _rng(seed, _Purpose.TEST_CLASSES))
        test_classes = np.sort(permute(np.arange(num_test_classes))).astype(np.int32)
    test = _held_out(
        seed,
        test_classes,
        test_classes,
        min(test_examples_per_class, max_test_examples),
        num_test_hands,
        (_Purpose.TEST_HAND, _Purpose.TEST_EXAMPLES),
        image_size,
    )
    public_labels = np.arange(num_public_classes, dtype=np.int32)
    public = _held_out(
        seed,
        num_classes + public_labels,
        public_labels,
        public_examples_per_class,
        public_examples_per_class,
        (_Purpose.PUBLIC_HAND, _Purpose.PUBLIC_EXAMPLES),
        image_size,
    )
    return FederatedDataset(
        name="glyphs",
        num_classes=num_classes,
        image_shape=(image_size, image_size, 1),
        train=train,
        test=test,
        public=public if num_public_classes else None,
        note=f"test images by {num_test_hands} other hands",
        # These and the rest of the fingerprint decide all images. Pixels are not in it:
        # the last bit of a curve differs between processors.
        contents=lambda: {
            "seed of glyphs": seed,
            "mean images per class of a client": mean_examples_per_class,
            "classes of test images": test_classes,
            "hands of test images": num_test_hands,
            "images per public class": public_examples_per_class,
        },
    )


def _rng(seed: int, purpose: _Purpose, index: int = 0) -> np.random.Generator:
    """Returns a random stream: Philox, keyed by (seed, purpose, index)."""
    key = np.array([seed, (int(purpose) << 56) | int(index)], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _rngs(seed: int, purpose: _Purpose, indices) -> list[np.random.Generator]:
    return [_rng(seed, purpose, index) for index in indices]


class _Partition:
    """The classes of each client, computed without a table of classes.

    There are `clients_per_class` replicas. Each permutes the n classes by its own
    bijection and cuts the sequence into clients, so that a replica gives every class to
    exactly one client. Cuts are displaced from an even spacing by up to a quarter of
    it, so that sizes are between 0.5 and 1.5 of the mean.
    """

    def __init__(
        self, seed: int, num_classes: int, mean_classes: int, clients_per_class: int
    ):
        self._per_replica = max(1, round(num_classes / mean_classes))
        self._bijections = [
            bijection.Bijection(num_classes, _rng(seed, _Purpose.BIJECTION, replica))
            for replica in range(clients_per_class)
        ]
        spacing = num_classes / self._per_replica
        self._cuts = np.empty([clients_per_class, self._per_replica + 1], np.int64)
        self._cuts[:] = np.rint(spacing * np.arange(self._per_replica + 1))
        if spacing >= 2:  # Below, moving a cut could leave a client without a class.
            for replica, rng in enumerate(
                _rngs(seed, _Purpose.BOUNDARIES, range(clients_per_class))
            ):
                move = rng.uniform(-spacing / 4, spacing / 4, self._per_replica - 1)
                self._cuts[replica, 1:-1] += np.trunc(move).astype(np.int64)

    @property
    def num_clients(self) -> int:
        return len(self._bijections) * self._per_replica

    @property
    def max_classes(self) -> int:
        return int(np.diff(self._cuts).max())

    def num_classes(self, client: int) -> int:
        _, start, stop = self._cut(client)
        return stop - start

    def classes(self, client: int) -> np.ndarray:
        """The sorted classes of a client, int32."""
        replica, start, stop = self._cut(client)
        held = self._bijections[replica](np.arange(start, stop))
        return np.sort(held).astype(np.int32)

    def _cut(self, client: int) -> tuple[int, int, int]:
        """Returns a client's replica, and its part of that replica's sequence."""
        replica, position = divmod(client, self._per_replica)
        return replica, *self._cuts[replica, position : position + 2].tolist()


class _GlyphClientData(ArrayClientData):
    """The clients' glyphs; a client's are drawn on request."""

    def __init__(
        self,
        seed: int,
        partition: _Partition,
        mean_examples: int,
        mean_examples_per_class: int,
        image_size: int,
    ):
        num_clients = partition.num_clients
        num_bytes = num_clients * (sys.getsizeof(f"client_{num_clients}") + 8)
        memory.check({f"the names of {num_clients:,} clients": num_bytes})
        super().__init__(
            partitions.client_ids(num_clients),
            tf.TensorSpec([image_size, image_size, 1], tf.uint8),
        )
        self.partition = partition
        self._seed = seed
        self._per_class = mean_examples_per_class
        self._image_size = image_size
        self._kept = _cached(self._write, mean_examples * image_size**2)

    def position(self, client_id: str) -> int:
        """See the base class; here without a dictionary of all clients."""
        digits = client_id.removeprefix(partitions.CLIENT_PREFIX)
        client = int(digits) if digits.isdecimal() else self.partition.num_clients
        if self._client_ids[client : client + 1] != [client_id]:
            raise ValueError(f"{client_id!r} is not a client of this data set.")
        return client

    def positives(self, client_id: str) -> np.ndarray:
        return self.partition.classes(self.position(client_id))

    @property
    def max_positives(self) -> int:
        return self.partition.max_classes

    def num_examples(self, client_id: str) -> int:
        """Returns n_k, the number of a client's images; draws none."""
        _, counts = self._counts(self.position(client_id))
        return int(counts.sum())

    def client_arrays(self, client_id: str) -> Arrays:
        return self._kept(self.position(client_id))

    def _counts(self, client: int) -> tuple[np.random.Generator, np.ndarray]:
        """Returns a client's random stream and images per class, as drawn."""
        rng = _rng(self._seed, _Purpose.TRAIN_EXAMPLES, client)
        fewest = (self._per_class + 1) // 2
        most = 2 * self._per_class - fewest
        num_classes = self.partition.num_classes(client)
        return rng, rng.integers(fewest, most, num_classes, endpoint=True)

    def _write(self, client: int) -> Arrays:
        rng, counts = self._counts(client)
        classes = self.partition.classes(client)
        # Not sorted by class: this is the order of a local epoch.
        of_class = rng.permutation(np.repeat(np.arange(len(classes)), counts))
        drawn = glyph_drawing.draw_glyphs(_rngs(self._seed, _Purpose.GLYPH, classes))
        hand = glyph_drawing.draw_hands(
            _rngs(self._seed, _Purpose.TRAIN_HAND, [client])
        )
        images = glyph_drawing.render(
            drawn.take(of_class),
            hand.take(np.zeros_like(of_class)),
            rng,
            self._image_size,
        )
        return images, classes[of_class]


def _held_out(
    seed: int,
    classes: np.ndarray,
    labels: np.ndarray,
    per_class: int,
    num_hands: int,
    purposes: tuple[_Purpose, _Purpose],
    image_size: int,
) -> HeldOut:
    """Returns images of some classes by hands of no client, class after class."""
    num_examples = len(classes) * per_class
    hand_purpose, example_purpose = purposes

    @functools.cache
    def hands() -> glyph_drawing.Hands:
        return glyph_drawing.draw_hands(_rngs(seed, hand_purpose, range(num_hands)))

    def write(chunk: int) -> Arrays:
        start = chunk * _CHUNK_SIZE
        example = np.arange(start, min(start + _CHUNK_SIZE, num_examples))
        position, of_class = np.unique(example // per_class, return_inverse=True)
        drawn = glyph_drawing.draw_glyphs(
            _rngs(seed, _Purpose.GLYPH, classes[position])
        )
        images = glyph_drawing.render(
            drawn.take(of_class),
            hands().take(example % num_hands),
            _rng(seed, example_purpose, chunk),
            image_size,
        )
        return images, labels[position[of_class]]

    data = dataset_from_chunks(
        _cached(write, _CHUNK_SIZE * image_size**2),
        -(-num_examples // _CHUNK_SIZE),
        num_examples,
        tf.TensorSpec([image_size, image_size, 1], tf.uint8),
    )
    return HeldOut(data, num_examples, len(classes))


def _cached(write: Callable[[int], Arrays], num_bytes: int) -> Callable[[int], Arrays]:
    """Caches the last used arrays, num_bytes each, as read-only."""

    @functools.lru_cache(max(1, _CACHE_BYTES // num_bytes))
    def kept(number: int) -> Arrays:
        arrays = write(number)
        for array in arrays:
            array.setflags(write=False)
        return arrays

    return kept
