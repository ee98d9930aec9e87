"""What all tests share: the context, the slow mark and the place of the real data.

TensorFlow is imported where it is used: the process that hands out the tests to others
starts in a second without it.
"""

import gc
import os
import pathlib

import pytest

from tests.experiments import program_server

# As the programs have it where clients train: a run in this process and one in another
# have the same bytes.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
# As in run.sh: TensorFlow logs three "errors" at every start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the slow tests too")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes minutes; runs with --slow only")
    config.addinivalue_line("markers", "gpu: needs a GPU: ./run.sh test -m gpu")
    config.addinivalue_line("markers", "soak: ./run.sh test --slow -m soak, alone")


def pytest_collection_modifyitems(config, items):
    # Not `item.keywords`: it has the names of folders, such as tests/gpu, as well.
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: needs --slow"))
    if "soak" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="soak: needs -m soak"))
    on_gpus = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpus:
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            for item in on_gpus:
                item.add_marker(pytest.mark.skip(reason="gpu: TensorFlow sees none"))


def pytest_collection_finish():
    from tff_fedss import runtime

    # TFF's own default context complains when a process ends without having used it.
    runtime.set_in_process_context()
    gc.freeze()  # The modules stay: without it a tenth of the time goes into them.


def pytest_terminal_summary(terminalreporter):
    """Says what tests have measured."""
    for report in terminalreporter.getreports(""):
        for name, value in getattr(report, "user_properties", ()):
            terminalreporter.write_line(f"{name}: {value}")


@pytest.fixture(scope="session")
def test_data() -> pathlib.Path:
    """The folder of real data sets; tests that need it skip where there is none."""
    folder = os.environ.get("TFF_FEDSS_TEST_DATA")
    if not folder:
        pytest.skip("needs real data: set TFF_FEDSS_TEST_DATA to its folder")
    return pathlib.Path(folder)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Keeps unpacked archives and the like out of the home of who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFF_FEDSS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of a cache of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TFF_FEDSS_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session", autouse=True)
def in_process_context():
    """Runs TFF computations in this process, unless a test says otherwise."""
    from tff_fedss import runtime

    context = runtime.set_in_process_context()
    yield context
    context.close()


@pytest.fixture(autouse=True)
def plain_operations():
    """A test that ran --deterministic or --precision=mixed leaves nothing behind."""
    yield
    import tensorflow as tf
    from tensorflow.python.framework import config as tf_config

    if tf_config.is_op_determinism_enabled():
        tf_config.disable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.keras.mixed_precision.set_global_policy("float32")


@pytest.fixture
def one_layer(monkeypatch):
    """Replaces small_cnn by a single layer: TensorFlow compiles it in less time."""
    import tensorflow as tf

    from tff_fedss import models

    def build(image_shape, embedding_dim=64, seed=0):
        images = tf.keras.Input(image_shape)
        x = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(images))
        kernel = tf.keras.initializers.GlorotUniform(seed)
        x = tf.keras.layers.Dense(embedding_dim, kernel_initializer=kernel)(x)
        return tf.keras.Model(images, x, name="small_cnn")

    monkeypatch.setattr(models, "small_cnn", build)
    monkeypatch.setitem(models.FEATURE_EXTRACTORS, "small_cnn", build)


@pytest.fixture
def run_program(capsys):
    """Runs a program in this process: module, flags -> an `Outcome`."""

    def run(module, *flags, **options):
        code = program_server.run_here(module, *flags, **options)
        return program_server.Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def server():
    """A process that runs any program, one after the other."""
    server = program_server.Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def native_context():
    """TFF's own runtime, to compare with: a worker that ends with the tests."""
    from tff_fedss import runtime

    context = runtime.NativeContext()
    yield context
    context.close()
