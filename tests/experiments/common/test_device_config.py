"""The switches that decide results."""

import pytest
import tensorflow as tf
from tensorflow.python.framework import config as tf_config

from experiments.common import config, device_config
from tff_fedss import runtime


@pytest.fixture(autouse=True)
def as_before():
    yield
    runtime.configure_gpus()


def configured(*arguments):
    asked = config.parse(device_config.DeviceConfig(), *arguments)
    device_config.configure_gpus(asked)
    return asked


def test_what_is_off_is_not_recorded():
    # Runs of before there were such flags are the same ones.
    assert configured().deciding() == {}
    assert configured("--nodeterministic", "--precision=float32").deciding() == {}


@pytest.mark.parametrize(
    "name, value",
    [("deterministic", "true"), ("precision", "tf32"), ("precision", "mixed")],
)
def test_what_is_on_is_recorded(name, value):
    asked = configured(f"--{name}={value}")
    assert asked.deciding() == {name: value}
    assert tf_config.is_op_determinism_enabled() == (name == "deterministic")
    assert tf.config.experimental.tensor_float_32_execution_enabled() == (
        value == "tf32"
    )
    policy = tf.keras.mixed_precision.global_policy().name
    assert policy == ("mixed_bfloat16" if value == "mixed" else "float32")


def test_every_program_has_its_gpus_set_up(monkeypatch):
    called = []
    monkeypatch.setattr(runtime, "configure_gpus", lambda *_, **how: called.append(how))
    device_config.configure_gpus(config.Config())
    assert called == [{}]
