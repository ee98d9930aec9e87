"""What a GPU would do with the steps of all algorithms and models; none is needed."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.gpu_steps import assert_stays_on_the_gpu
from tff_fedss import algorithms, losses, models, runtime, samplers
from tff_fedss.datasets.central.augmentation import AUGMENTATIONS
from tff_fedss.models import placement
from tff_fedss.runtime import gpu_kernels

BATCH, CLIENT = 32, 96
NUM_CLASSES, DIM = 300, 64


@pytest.fixture(autouse=True)
def as_if_gpus():
    with placement.as_if_gpus():
        yield


def gather_loop(dtype):
    """Sums batches of a tensor, each gathered in the loop."""
    with tf.Graph().as_default() as graph:
        values = tf.compat.v1.placeholder(dtype, [CLIENT, 8, 8])
        order = tf.compat.v1.placeholder(tf.int32, [CLIENT])

        @tf.function
        def run(values, order):
            total = tf.zeros([])
            for start in tf.range(0, CLIENT, BATCH):
                batch = tf.gather(values, order[start : start + BATCH])
                total += tf.reduce_sum(tf.cast(batch, tf.float32))
            return total

        total = run(values, order)
    return gpu_kernels.inspect(gpu_kernels.optimize(graph.as_graph_def(), [total.name]))


def test_an_operation_without_a_kernel_is_found_and_what_it_costs():
    step = gather_loop(tf.uint8)
    assert set(step.without_kernel.values()) == {"GatherV2"}
    sizes = {(c.to_host, c.num_bytes) for c in step.crossings}
    # All bytes to the host, and a batch of them back.
    assert {(True, CLIENT * 64), (False, BATCH * 64)} <= sizes


def test_floats_are_gathered_on_the_gpu():
    step = gather_loop(tf.float32)
    assert not step.without_kernel
    assert step.launches == {"GatherV2": 1, "Sum": 1, "AddV2": 1}
    assert step.by_kind() == {"copies": 1, "sums and means": 1, "elementwise": 1}


def test_a_graph_without_a_loop_has_no_step():
    with tf.Graph().as_default() as graph:
        tf.zeros([])
    with pytest.raises(ValueError, match="no loop"):
        gpu_kernels.inspect(graph.as_graph_def())


# --- Clients --------------------------------------------------------------------------


def tiny(image_shape=(4, 4, 1)):
    images = tf.keras.Input(image_shape)
    x = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(images))
    return tf.keras.Model(images, tf.keras.layers.Dense(DIM)(x))


@pytest.mark.parametrize(
    "method",
    [
        "fedss",
        "full_softmax",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("neg_only", "pos_only", "fedaws")
        ),
    ],
)
def test_each_methods_compiled_client_stays_on_the_gpu(method):
    if method == "fedaws":
        process = algorithms.build_fedaws(
            tiny, NUM_CLASSES, 20, spreadout_weight=1.0, spreadout_margin=1.0
        )
    else:
        process = algorithms.build_fedss(
            tiny,
            NUM_CLASSES,
            20,
            method=method,
            num_negatives=50 if method in ("fedss", "neg_only") else 0,
        )
    assert_stays_on_the_gpu(gpu_kernels.of_client(process.next))


# --- Algorithms without clients -------------------------------------------------------


def images_spec(shape):
    return tf.TensorSpec([BATCH, *shape], tf.uint8)


LABELS = tf.TensorSpec([BATCH], tf.int32)


def test_centralized():
    run = algorithms.Centralized(
        models.small_cnn((12, 12, 1)), NUM_CLASSES, tf.keras.optimizers.SGD(0.1)
    )
    step = gpu_kernels.of_function(run.update.get_concrete_function())
    assert_stays_on_the_gpu(step)


@pytest.mark.parametrize(
    "name, augmentation",
    [
        ("lenet", "flip_crop"),
        pytest.param("wide_resnet_16_8", "none", marks=pytest.mark.slow),
        pytest.param("resnet18", "flips_crop_rotation", marks=pytest.mark.slow),
    ],
)
def test_a_student_of_leap(name, augmentation):
    shape = (16, 16, 3)
    student = algorithms.SelfPacedStudent(
        models.NETWORKS[name](shape, 10, 0),
        np.zeros([BATCH, *shape], np.uint8),
        np.zeros(BATCH, np.int32),
        tf.keras.optimizers.SGD(0.1, 0.9, nesterov=True),
        None,
        lambda: None,
        batch_size=BATCH,
        weight_decay=0.01,
        augmentation=AUGMENTATIONS[augmentation],
        seed=0,
    )
    function = student._update_graph.get_concrete_function(images_spec(shape), LABELS)
    assert_stays_on_the_gpu(gpu_kernels.of_function(function))


@pytest.mark.parametrize(
    "backbone, form",
    [
        ("small_cnn", "clustered"),
        pytest.param("small_cnn", "plain", marks=pytest.mark.slow),
        pytest.param("resnet50", "plain", marks=pytest.mark.slow),
        pytest.param("resnet50_group", "plain", marks=pytest.mark.slow),
    ],
)
def test_moco(backbone, form):
    shape = (32, 32, 3)
    moco = algorithms.MoCo(
        functools.partial(models.BACKBONES[backbone], shape),
        tf.keras.optimizers.SGD(0.1, momentum=0.9),
        queue_size=64,
        embedding_dim=16,
        form=form,
    )
    views = images_spec(shape)
    function = moco._update_graph.get_concrete_function(views, views, LABELS)
    assert_stays_on_the_gpu(gpu_kernels.of_function(function))


@pytest.mark.parametrize("sampler, host_ops", [("full", ()), ("exp", ("PyFunc",))])
def test_rf_softmax(sampler, host_ops):
    # A sampler is NumPy's, and what it is told and says goes through the host.
    options = samplers.SamplerOptions(NUM_CLASSES, DIM, 5.0)
    algorithm = algorithms.SampledSoftmax(
        models.SparseEncoder(500, DIM, seed=1),
        NUM_CLASSES,
        DIM,
        tf.keras.optimizers.SGD(0.5),
        None if sampler == "full" else samplers.SAMPLERS[sampler](options),
        num_negatives=10,
        logit_scale=5.0,
    )
    inputs = {
        "ids": tf.TensorSpec([3 * BATCH], tf.int32),
        "values": tf.TensorSpec([3 * BATCH], tf.float32),
        "rows": tf.TensorSpec([3 * BATCH], tf.int32),
        "num_rows": tf.TensorSpec([], tf.int32),
    }
    function = algorithm._update_graph.get_concrete_function(inputs, (), LABELS, None)
    assert_stays_on_the_gpu(gpu_kernels.of_function(function), host_ops)


# The images come from the host, where each device's are cut out of the mini-batch.
@pytest.mark.parametrize(
    "num_devices, host_ops",
    [(1, ()), pytest.param(2, ["SplitV"], marks=pytest.mark.slow)],
)
def test_partial_fc(num_devices, host_ops):
    algorithm = algorithms.PartialFC(
        models.ImageEncoder(tiny()),
        NUM_CLASSES,
        DIM,
        runtime.DeviceMesh(["/CPU:0"] * num_devices),
        margin=losses.Margin("arcface", 16.0, 0.5),
    )
    function = algorithm._build_graph(np.zeros([BATCH, 4, 4, 1], np.uint8))
    step = gpu_kernels.of_function(function.get_concrete_function())
    assert_stays_on_the_gpu(step, host_ops)
