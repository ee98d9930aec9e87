"""What the flags of the runtime mean on machines with and without GPUs."""

import types

import pytest
import tensorflow as tf
from tensorflow.python.framework import config as tf_config

from experiments.common import config, runtime_config
from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
GPUS = [f"/job:localhost/replica:0/task:0/device:GPU:{i}" for i in range(3)]


def parse(*arguments):
    return config.parse(runtime_config.RuntimeConfig(), *arguments)


@pytest.fixture
def three_gpus(monkeypatch):
    """Makes TensorFlow list GPUs. Returns how the runtime was set up, once it was."""
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in "012"]
    asked = types.SimpleNamespace(client_devices=set(), trained_on_host=False)

    def set_in_process_context(clients_per_device):
        asked.clients_per_device = clients_per_device
        asked.devices = GPUS
        return asked

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: gpus)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: gpus)
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda _: None)
    monkeypatch.setattr(runtime, "set_in_process_context", set_in_process_context)
    return asked


@pytest.mark.parametrize(
    "arguments, installed",
    [
        ((), "set_in_process_context"),
        (("--runtime=native",), "set_native_context"),
        (("--cluster=auto",), "set_cluster_context"),
        (("--runtime=cluster",), "set_cluster_context"),
    ],
)
def test_the_runtime_becomes_the_default(monkeypatch, arguments, installed):
    called = []
    for name in ("set_in_process_context", "set_native_context", "set_cluster_context"):
        monkeypatch.setattr(
            runtime, name, lambda *_, name=name, **__: called.append(name)
        )
    runtime_config.install(runtime_config.with_defaults(parse(*arguments)))
    assert called == [installed]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--num_gpus=2", "--runtime=native"), "--num_gpus=2 needs --runtime=in_pro"),
        (("--cluster=auto", "--runtime=native"), "does not go with --runtime=native"),
        (("--cluster=auto", "--num_gpus=1"), "needs --runtime=in_process, found clus"),
        (("--actors=2",), "--actors=2 needs --runtime=cluster, found in_process"),
        (("--xla", "--runtime=native"), "--xla=True needs --runtime=in_process or cl"),
        (("--gpus_per_actor=0", "--runtime=native"), "--gpus_per_actor=0.0 needs"),
    ],
)
def test_what_does_not_go_together(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        runtime_config.with_defaults(parse(*arguments))


@pytest.mark.parametrize(
    "arguments, used, at_once",
    [
        ((), None, 1),
        (("--num_gpus=2", "--clients_per_gpu=4"), 2, 4),
        (("--num_gpus=0",), 0, 1),
        # Evaluation is in this process: it would take GPUs that nothing trains on.
        (("--runtime=native",), 0, 1),
        (("--cluster=auto",), 0, 1),
    ],
)
def test_the_gpus_of_a_run(monkeypatch, arguments, used, at_once):
    calls = []
    monkeypatch.setattr(
        runtime, "configure_gpus", lambda n, **how: calls.append((n, how))
    )
    runtime_config.configure_gpus(parse(*arguments))
    ((number, how),) = calls
    assert number == used and how["clients_per_gpu"] == at_once


def test_xla_decides_results_and_off_is_as_before():
    plain, on, off = (
        runtime_config.with_defaults(parse(*flags)).deciding()
        for flags in ((), ("--xla",), ("--noxla",))
    )
    assert "xla" not in plain and plain == off
    assert on == {**plain, "xla": "true"}


def test_clients_that_did_not_train_on_the_gpus_are_noticed(three_gpus):
    asked = runtime_config.with_defaults(parse("--clients_per_gpu=4"))
    check = runtime_config.install(asked)
    assert three_gpus.clients_per_device == 4
    three_gpus.client_devices = {CPU, GPUS[0]}
    check()
    for devices in ({CPU}, set()):
        three_gpus.client_devices = devices
        with pytest.raises(RuntimeError, match="trained on .*GPU:0.*GPU:2, but they"):
            check()
    three_gpus.client_devices, three_gpus.trained_on_host = {GPUS[0]}, True
    with pytest.raises(RuntimeError, match="they trained on the CPU"):
        check()


# --- The switches that decide results ---------------------------------------------


def configured(*arguments):
    asked = config.parse(runtime_config.DeviceConfig(), *arguments)
    runtime_config.configure_gpus(asked)
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
