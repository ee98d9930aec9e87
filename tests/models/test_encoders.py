import numpy as np

from tff_fedss import models


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
