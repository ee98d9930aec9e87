"""An embedded federated data set of glyphs: no download, up to millions of classes."""

import collections
import enum
import functools
import sys
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tff_fedss import errors, memory
from tff_fedss.datasets import bijection, glyph_drawing
from tff_fedss.datasets.federated.clients import (
    ArrayClientData,
    Arrays,
    dataset_from_chunks,
)
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut

_CHUNK_SIZE = 100  # images rendered at a time for the test and public splits
_CLIENT_PREFIX = "client_"
_MAX_LABEL = 2**31 - 1
_POINTER_BYTES = 8


class _Purpose(enum.IntEnum):
    """Keeps the random streams of one seed apart."""

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
    cache_bytes: int = 256 * 2**20,
) -> FederatedDataset:
    """Makes a federated data set of handwritten glyphs, drawn when they are asked for.

    A class is a few curved strokes. A client writes all of its images in one hand (its
    own slant, rotation, size, pen and unsteadiness), and no two images are the same. A
    client holds few of the n classes, as in the paper's data sets (Section 4, Appendix
    A.4): |P_k| varies between clients by a factor of 0.5 to 1.5 around its mean, the
    images per class by about as much.

    Every draw comes from (seed, what for, which class or client), so that the same
    arguments give the same images in any order of access and in any process. Nothing
    is drawn at construction; a million classes cost a list of client ids.

    Args:
        num_classes: n.
        seed: Which data set of this kind; 0 <= seed < 2^63.
        image_size: Height and width of an image in pixels.
        mean_classes_per_client: The mean of |P_k| (n, if n is smaller).
        clients_per_class: How many clients hold a class: exactly this many hold each.
        mean_examples_per_class: Mean number of images that a client has of each of its
            classes.
        num_test_hands: How many hands, none of them a client's, write the test images.
        test_examples_per_class: Test images of each class, each by another hand while
            there are enough.
        max_test_examples: At most this many test images; where it is reached, they
            show a random sample of the classes.
        num_public_classes: Classes of the public images, beyond the n. 0 for none.
        public_examples_per_class: Public images of each of these; they are written by
            as many hands again, none of them a client's or a test hand.
        cache_bytes: How many bytes of drawn images are kept, least recently used
            thrown away first.

    Returns:
        The data set. Images are uint8[image_size, image_size, 1], ink 255 on 0.
    """
    errors.check_at_least(
        1,
        num_classes=num_classes,
        image_size=image_size,
        mean_classes_per_client=mean_classes_per_client,
        clients_per_class=clients_per_class,
        mean_examples_per_class=mean_examples_per_class,
        num_test_hands=num_test_hands,
        test_examples_per_class=test_examples_per_class,
        max_test_examples=max_test_examples,
        public_examples_per_class=public_examples_per_class,
    )
    errors.check_at_least(
        0, seed=seed, num_public_classes=num_public_classes, cache_bytes=cache_bytes
    )
    errors.check_range("num_classes", num_classes, 1, _MAX_LABEL - num_public_classes)
    errors.check_range("seed", seed, 0, 2**63 - 1)

    cache = _ArrayCache(cache_bytes)
    train = _GlyphClientData(
        seed,
        _Partition(seed, num_classes, mean_classes_per_client, clients_per_class),
        mean_examples_per_class,
        image_size,
        cache,
    )
    test_classes = _test_classes(
        seed, num_classes, max(1, max_test_examples // test_examples_per_class)
    )
    test = _HeldOutImages(
        seed,
        test_classes,
        test_classes,
        min(test_examples_per_class, max_test_examples),
        num_test_hands,
        (_Purpose.TEST_HAND, _Purpose.TEST_EXAMPLES),
        image_size,
        cache,
    )
    public_labels = np.arange(num_public_classes, dtype=np.int32)
    public = _HeldOutImages(
        seed,
        num_classes + public_labels,
        public_labels,
        public_examples_per_class,
        public_examples_per_class,
        (_Purpose.PUBLIC_HAND, _Purpose.PUBLIC_EXAMPLES),
        image_size,
        cache,
    )
    return FederatedDataset(
        name="glyphs",
        num_classes=num_classes,
        image_shape=(image_size, image_size, 1),
        train=train,
        test=test.held_out(),
        public=public.held_out() if num_public_classes else None,
        note=f"test images by {num_test_hands} other hands",
        # All images follow from these and from what else is in a fingerprint. Not
        # from pixels: the last bit of a curve is another on another processor.
        contents=lambda: {
            "seed of glyphs": seed,
            "mean images per class of a client": mean_examples_per_class,
            "classes of test images": test_classes,
            "hands of test images": num_test_hands,
            "images per public class": public_examples_per_class,
        },
    )


def _rng(seed: int, purpose: _Purpose, index: int = 0) -> np.random.Generator:
    """The random stream of one thing: Philox, keyed by (seed, purpose, index)."""
    key = np.array([seed, (int(purpose) << 56) | int(index)], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _rngs(seed: int, purpose: _Purpose, indices) -> list[np.random.Generator]:
    return [_rng(seed, purpose, index) for index in indices]


class _Partition:
    """Which classes a client holds, found without a table of classes.

    There are `clients_per_class` replicas. Each permutes the n classes by a bijection
    of its own and cuts the sequence into clients, so that a replica gives every class
    to exactly one client. Cuts are moved off an even spacing by up to a quarter of it
    either way, so that sizes lie between 0.5 and 1.5 of the mean.
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
        if spacing >= 2:  # Below that, moving a cut could leave a client without class.
            for replica, rng in enumerate(
                _rngs(seed, _Purpose.BOUNDARIES, range(clients_per_class))
            ):
                move = rng.uniform(-spacing / 4, spacing / 4, self._per_replica - 1)
                self._cuts[replica, 1:-1] += np.trunc(move).astype(np.int64)

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self._bijections) * self._per_replica

    @property
    def max_classes(self) -> int:
        """The largest number of classes of a client."""
        return int(np.diff(self._cuts).max())

    def classes(self, client: int) -> np.ndarray:
        """The sorted classes of a client, int32."""
        replica, position = divmod(client, self._per_replica)
        start, stop = self._cuts[replica, position : position + 2]
        held = self._bijections[replica](np.arange(start, stop))
        return np.sort(held).astype(np.int32)


class _GlyphClientData(ArrayClientData):
    """The clients' glyphs; a client is written when its arrays are asked for."""

    def __init__(
        self,
        seed: int,
        partition: _Partition,
        mean_examples_per_class: int,
        image_size: int,
        cache: "_ArrayCache",
    ):
        self._digits = len(str(partition.num_clients - 1))
        memory.check(
            {
                f"the names of {partition.num_clients:,} clients": partition.num_clients
                * (sys.getsizeof(self._client_id(0)) + _POINTER_BYTES)
            }
        )
        super().__init__(
            [self._client_id(k) for k in range(partition.num_clients)],
            (image_size, image_size, 1),
        )
        self.partition = partition
        self._seed = seed
        self._mean_examples = mean_examples_per_class
        self._image_size = image_size
        self._cache = cache

    def positives(self, client_id: str) -> np.ndarray:
        """P_k, the sorted distinct labels of a client, int32[|P_k|]."""
        return self.partition.classes(self._index(client_id))

    @property
    def max_positives(self) -> int:
        """The largest |P_k|."""
        return self.partition.max_classes

    def num_examples(self, client_id: str) -> int:
        """n_k, the number of a client's images; none of them is drawn."""
        _, _, counts = self._counts(self._index(client_id))
        return int(counts.sum())

    def client_arrays(self, client_id: str) -> Arrays:
        """Returns the images and labels of a client."""
        client = self._index(client_id)
        return self._cache.get(("train", client), lambda: self._write(client))

    def _counts(
        self, client: int
    ) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
        """A client's random stream, classes and images of each, in drawing order."""
        rng = _rng(self._seed, _Purpose.TRAIN_EXAMPLES, client)
        classes = self.partition.classes(client)
        fewest = (self._mean_examples + 1) // 2
        most = 2 * self._mean_examples - fewest
        return rng, classes, rng.integers(fewest, most, len(classes), endpoint=True)

    def _write(self, client: int) -> Arrays:
        rng, classes, counts = self._counts(client)
        # Not sorted by class: a local epoch takes the examples as they come.
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

    def _client_id(self, client: int) -> str:
        return f"{_CLIENT_PREFIX}{client:0{self._digits}}"

    def _index(self, client_id: str) -> int:
        digits = client_id[len(_CLIENT_PREFIX) :]
        if digits.isdecimal():
            client = int(digits)
            if client < len(self._client_ids) and self._client_ids[client] == client_id:
                return client
        raise ValueError(f"{client_id!r} is not a client of this data set.")


class _HeldOutImages:
    """Images of some classes by hands that belong to no client, class after class."""

    def __init__(
        self,
        seed: int,
        classes: np.ndarray,
        labels: np.ndarray,
        examples_per_class: int,
        num_hands: int,
        purposes: tuple[_Purpose, _Purpose],
        image_size: int,
        cache: "_ArrayCache",
    ):
        self._seed = seed
        self._classes = classes
        self._labels = labels
        self._per_class = examples_per_class
        self._num_examples = len(classes) * examples_per_class
        self._num_hands = num_hands
        self._hand_purpose, self._example_purpose = purposes
        self._image_size = image_size
        self._cache = cache

    def held_out(self) -> HeldOut:
        """The images; a chunk of them is written when it is reached."""
        data = dataset_from_chunks(
            lambda i: self._cache.get(
                (self._example_purpose, i), lambda: self._write(i)
            ),
            -(-self._num_examples // _CHUNK_SIZE),
            self._num_examples,
            tf.TensorSpec([self._image_size, self._image_size, 1], tf.uint8),
        )
        return HeldOut(data, self._num_examples, len(self._classes))

    @functools.cached_property
    def _hands(self) -> glyph_drawing.Hands:
        return glyph_drawing.draw_hands(
            _rngs(self._seed, self._hand_purpose, range(self._num_hands))
        )

    def _write(self, chunk: int) -> Arrays:
        start = chunk * _CHUNK_SIZE
        example = np.arange(start, min(start + _CHUNK_SIZE, self._num_examples))
        position, of_class = np.unique(example // self._per_class, return_inverse=True)
        drawn = glyph_drawing.draw_glyphs(
            _rngs(self._seed, _Purpose.GLYPH, self._classes[position])
        )
        images = glyph_drawing.render(
            drawn.take(of_class),
            self._hands.take(example % self._num_hands),
            _rng(self._seed, self._example_purpose, chunk),
            self._image_size,
        )
        return images, self._labels[position[of_class]]


def _test_classes(seed: int, num_classes: int, limit: int) -> np.ndarray:
    """All classes, or a sorted random sample of `limit` of them, int32."""
    if num_classes <= limit:
        return np.arange(num_classes, dtype=np.int32)
    permute = bijection.Bijection(num_classes, _rng(seed, _Purpose.TEST_CLASSES))
    return np.sort(permute(np.arange(limit))).astype(np.int32)


class _ArrayCache:
    """Keeps the arrays that were used last, up to a number of bytes. Thread-safe."""

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key, make: Callable[[], Arrays]) -> Arrays:
        """Returns the arrays under a key, made now if they are not kept."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        arrays = make()  # Outside the lock: two threads may write the same bytes.
        for array in arrays:
            array.setflags(write=False)
        with self._lock:
            if key not in self._entries:
                self._entries[key] = arrays
                self._bytes += _num_bytes(arrays)
            while self._bytes > self._max_bytes:
                _, oldest = self._entries.popitem(last=False)
                self._bytes -= _num_bytes(oldest)
        return arrays


def _num_bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays)
