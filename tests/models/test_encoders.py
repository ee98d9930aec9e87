import numpy as np
import pytest

from tff_fedss import models

BUILDERS = {
    "lstm": lambda seed: models.LstmEncoder(
        20, 6, batch_size=2, num_units=5, seed=seed
    ),
    "sparse": lambda seed: models.SparseEncoder(20, 6, seed=seed),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_the_seed_decides_the_weights(name):
    first, same, other = map(BUILDERS[name], (0, 0, 1))
    for a, b in zip(first.trainable_variables, same.trainable_variables, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(
        first.trainable_variables[0], other.trainable_variables[0]
    )


def test_rows_are_weighted_sums_of_their_features():
    encoder = models.SparseEncoder(4, 3, seed=0)
    (weights,) = encoder.trainable_variables
    inputs = {
        "ids": np.array([1, 3, 3], np.int32),
        "values": np.array([2.0, -1.0, 0.5], np.float32),
        "rows": np.array([0, 0, 2], np.int32),
        "num_rows": np.int32(3),
    }
    features, carry = encoder(inputs, (), training=True)
    w = weights.numpy()
    np.testing.assert_allclose(
        features, [2 * w[1] - w[3], np.zeros(3), 0.5 * w[3]], atol=1e-6
    )
    assert carry == ()
