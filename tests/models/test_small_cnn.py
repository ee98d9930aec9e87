import numpy as np
import pytest

from tff_fedss import models


@pytest.mark.parametrize("image_shape", [(28, 28, 1), (32, 32, 3), (5, 7, 1)])
def test_maps_images_to_embeddings(image_shape):
    model = models.small_cnn(image_shape, embedding_dim=16)
    images = np.random.default_rng(0).integers(0, 256, (3, *image_shape))
    features = model(images.astype(np.float32)).numpy()
    assert features.shape == (3, 16)
    assert np.isfinite(features).all() and features.std() > 0
    assert not model.non_trainable_variables


def test_the_seed_decides_the_weights():
    first, again, other = (
        models.small_cnn((28, 28, 1), seed=seed).get_weights() for seed in (3, 3, 4)
    )
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
    kernels = [(a, b) for a, b in zip(first, other) if a.ndim > 1]
    assert len(kernels) == 5
    for a, b in kernels:
        assert np.abs(a - b).max() > 0.01


def test_layers_do_not_share_their_draws():
    kernels = [w for w in models.small_cnn((28, 28, 1)).get_weights() if w.ndim > 1]
    flat = [w.ravel()[:100] / w.std() for w in kernels]
    for i, a in enumerate(flat):
        for b in flat[:i]:
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.5
