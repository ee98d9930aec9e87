"""How TensorFlow is set up for GPUs, on machines with and without them."""

import subprocess
import types

import pytest
import tensorflow as tf
from tensorflow.python.framework import config as tf_config

from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError


@pytest.fixture
def two_gpus(monkeypatch):
    """Makes TensorFlow see GPUs. Returns how it is set up for them."""
    seen = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in "01"]
    settings = types.SimpleNamespace(
        seen=seen, visible=list(seen), growth={}, logical={}
    )
    for name, function in {
        "list_physical_devices": lambda kind: seen,
        "get_visible_devices": lambda kind: settings.visible,
        "set_visible_devices": lambda d, kind: setattr(settings, "visible", list(d)),
        "get_logical_device_configuration": settings.logical.get,
        "set_logical_device_configuration": settings.logical.__setitem__,
    }.items():
        monkeypatch.setattr(tf.config, name, function)
    for name, function in {
        "get_memory_growth": settings.growth.get,
        "set_memory_growth": settings.growth.__setitem__,
    }.items():
        monkeypatch.setattr(tf.config.experimental, name, function)
    return settings


def answer(monkeypatch, text):
    def run(command, **kwargs):
        assert command[0] == "nvidia-smi"
        if text is None:
            raise FileNotFoundError(command[0])
        return types.SimpleNamespace(stdout=text)

    monkeypatch.setattr(subprocess, "run", run)


def test_memory_grows_on_the_gpus_that_are_used(two_gpus):
    runtime.configure_gpus(1)
    assert two_gpus.visible == two_gpus.seen[:1]
    assert two_gpus.growth == {two_gpus.seen[0]: True} and not two_gpus.logical


def test_none_is_touched_if_none_is_used(two_gpus):
    runtime.configure_gpus(0)
    assert two_gpus.visible == [] and not two_gpus.growth
    assert runtime.clients_per_device(1) is None


def test_several_clients_have_a_logical_device_each(two_gpus, monkeypatch):
    answer(monkeypatch, "80000\n40000\n")
    runtime.configure_gpus(clients_per_gpu=3)
    for gpu in two_gpus.seen:
        limits = [device.memory_limit for device in two_gpus.logical[gpu]]
        assert limits == [12000] * 3  # Of what the fuller one has, less a tenth.
        assert not two_gpus.growth[gpu]
    assert runtime.clients_per_device(3) == 1
    runtime.InProcessContext().close()
    assert not any(two_gpus.growth.values())


def test_the_memory_of_gpus_that_are_not_used_does_not_count(two_gpus, monkeypatch):
    answer(monkeypatch, "80000\n900\n")
    runtime.configure_gpus(1, clients_per_gpu=4)
    limits = [device.memory_limit for device in two_gpus.logical[two_gpus.seen[0]]]
    assert limits == [18000] * 4


def test_clients_share_a_device_whose_memory_nobody_knows(two_gpus, monkeypatch):
    answer(monkeypatch, None)
    runtime.configure_gpus(clients_per_gpu=3)
    assert not two_gpus.logical and all(two_gpus.growth.values())
    assert runtime.clients_per_device(3) == 3


def test_more_gpus_than_there_are(two_gpus):
    with pytest.raises(InvalidInputError, match="num_gpus=3, but TensorFlow sees 2"):
        runtime.configure_gpus(3)
    with pytest.raises(InvalidInputError, match="num_gpus=-1 must be at least 0"):
        runtime.configure_gpus(-1)


def test_what_comes_too_late_is_said(two_gpus, monkeypatch):
    def refuse(*_):
        raise RuntimeError("cannot be modified")

    monkeypatch.setattr(tf.config, "set_visible_devices", refuse)
    with pytest.raises(InvalidInputError, match="num_gpus=1.*cannot be modified"):
        runtime.configure_gpus(1)


def test_precision_is_forgotten_by_the_next_call():
    def state():
        return (
            tf_config.is_op_determinism_enabled(),
            tf.config.experimental.tensor_float_32_execution_enabled(),
            tf.keras.mixed_precision.global_policy().name,
        )

    try:
        runtime.configure_gpus(deterministic=True, tf32=True, mixed_precision=True)
        assert state() == (True, True, "mixed_bfloat16")
    finally:
        runtime.configure_gpus()
    assert state() == (False, False, "float32")
