"""Labelled images that a small network learns in seconds, as MNIST's IDX files."""

import struct

import numpy as np

SIDE, NUM_CLASSES = 16, 3


def arrays(count, seed=0, num_classes=NUM_CLASSES):
    """Images uint8[count, 16, 16]: a bright square whose place is the class, noise."""
    generator = np.random.default_rng(seed)
    labels = (np.arange(count) % num_classes).astype(np.uint8)
    images = generator.integers(0, 60, (count, SIDE, SIDE)).astype(np.uint8)
    for image, label in zip(images, labels):
        image[2 + 4 * label : 6 + 4 * label, 6:10] += 150
    return images, labels


def idx(array):
    """The bytes of an IDX file."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def write(folder, num_train=60, num_test=30, num_classes=NUM_CLASSES):
    """Writes the four files."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count, seed in (("train", num_train, 0), ("t10k", num_test, 1)):
        images, labels = arrays(count, seed, num_classes)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))
