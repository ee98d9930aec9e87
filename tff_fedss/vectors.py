"""Unit vectors in NumPy."""

import numpy as np


def unit(vectors: np.ndarray) -> np.ndarray:
    """Brings vectors, float[..., d], to length 1 in float64; zero stays zero."""
    vectors = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)
