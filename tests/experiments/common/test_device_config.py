"""The switches that decide results."""

import pytest
from tensorflow.python.framework import config as tf_config

from experiments.common import config, device_config
from tff_fedss import runtime

SWITCHES = ("deterministic", "tf32", "mixed_precision")


@pytest.fixture(autouse=True)
def as_before():
    yield
    runtime.configure_gpus()


def configured(*arguments):
    asked = config.parse(device_config.DeviceConfig(), *arguments)
    return device_config.configure_gpus(asked)


def test_what_is_off_is_not_recorded():
    # Runs of before there were such flags are the same ones.
    assert configured().deciding() == {}
    assert configured(*(f"--no{name}" for name in SWITCHES)).deciding() == {}


@pytest.mark.parametrize("name", SWITCHES)
def test_what_is_on_is_recorded(name):
    asked = configured(f"--{name}")
    assert asked.deciding() == {name: "true"}
    assert asked.marked("warm_start")[name]
    assert tf_config.is_op_determinism_enabled() == (name == "deterministic")


def test_every_program_has_its_gpus_set_up(monkeypatch):
    called = []
    monkeypatch.setattr(runtime, "configure_gpus", lambda *_, **how: called.append(how))
    asked = config.Config()
    assert device_config.configure_gpus(asked) is asked
    assert called == [{}]
