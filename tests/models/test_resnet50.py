import numpy as np
import pytest
import tensorflow as tf

from tff_fedss import models


@pytest.mark.parametrize(
    "name, num_statistics",
    [("resnet50", 53_120), ("resnet50_split", 53_120), ("resnet50_group", 0)],
)
def test_it_has_the_size_of_torchvision_s_without_its_classifier(name, num_statistics):
    model = models.BACKBONES[name]((64, 64, 3), seed=0)
    assert model.output_shape == (None, 2048)
    trainable = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    # 25,557,032 parameters, of which 2,049,000 are the classifier's.
    assert trainable == 25_557_032 - 2_049_000
    assert model.count_params() - trainable == num_statistics
    # Five times halved: stem, pooling and three stages.
    last = [layer for layer in model.layers if len(layer.output_shape) == 4][-1]
    assert last.output_shape == (None, 2, 2, 2048)


def test_the_head_shares_the_backbone():
    backbone = models.small_cnn((16, 16, 3), 12, seed=0)
    head = models.with_projection_head(backbone, 5, 1)
    assert head.output_shape == (None, 5)
    shapes = [w.shape for w in head.get_weights()[-4:]]
    assert shapes == [(12, 12), (12,), (12, 5), (5,)]
    images = tf.random.stateless_uniform([3, 16, 16, 3], [0, 0], 0.0, 255.0)
    features = backbone(images).numpy()
    kernel_1, bias_1, kernel_2, bias_2 = head.get_weights()[-4:]
    expected = np.maximum(features @ kernel_1 + bias_1, 0) @ kernel_2 + bias_2
    np.testing.assert_allclose(head(images), expected, rtol=1e-4, atol=1e-5)
    backbone.set_weights([0 * w for w in backbone.get_weights()])
    np.testing.assert_allclose(head(images), np.zeros([3, 5]), atol=1e-6)
