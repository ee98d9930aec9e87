"""`./run.sh worker`, and training over two of them."""

import contextlib
import csv
import signal
import socket
import subprocess
import sys

import portpicker
import psutil
import pytest

from tests import waiting

SMALL = (
    "--num_classes=40",
    "--num_negatives=5",
    "--clients_per_round=3",
    "--warm_start_epochs=0",
    "--rounds_per_evaluation=2",
)


@contextlib.contextmanager
def start(name, *flags):
    process = subprocess.Popen(
        [sys.executable, "-m", f"experiments.{name}", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what runs in the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def start_worker(*flags):
    port = portpicker.pick_unused_port()
    with start("common.worker", f"--port={port}", *flags) as process:
        process.address = f"localhost:{port}"
        process.ready = process.stdout.readline()
        yield process


@contextlib.contextmanager
def two_workers():
    with start_worker() as a, start_worker("--max_clients_at_once=1") as b:
        yield a, b


@pytest.mark.parametrize(
    "signal_number, code",
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
)
def test_a_worker_says_that_it_is_ready_and_ends_when_told(signal_number, code):
    with start_worker() as process:
        port = process.address.partition(":")[2]
        assert process.ready.startswith(f"TFF worker listening on port {port} (")
        (binary,) = psutil.Process(process.pid).children()
        process.send_signal(signal_number)
        _, errors = process.communicate(timeout=waiting.LIMIT)
        assert process.returncode == code, errors
        assert "Traceback" not in errors
        assert not binary.is_running()


def test_a_worker_that_dies_is_an_error():
    with start_worker() as process:
        (binary,) = psutil.Process(process.pid).children()
        binary.kill()
        _, errors = process.communicate(timeout=waiting.LIMIT)
        assert process.returncode == 1
        assert errors.splitlines()[-1].startswith(
            "error: TFF's worker process was killed by signal 9"
        )


def test_a_port_in_use_is_one_clear_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with start("common.worker", f"--port={port}") as process:
            output, errors = process.communicate(timeout=waiting.LIMIT)
    assert process.returncode == 2 and output == ""
    assert errors == f"error: --port={port} cannot be used: Address already in use.\n"


@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "--port=P is needed"),
        (["--port=0"], "--port=0"),
        pytest.param(["--port=http"], "--port=http", marks=pytest.mark.slow),
        pytest.param(
            ["--port=8000", "--max_clients_at_once=0"],
            "--max_clients_at_once=0",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bad_flags_of_a_worker_are_one_clear_line(flags, message):
    with start("common.worker", *flags) as process:
        output, errors = process.communicate(timeout=waiting.LIMIT)
    assert process.returncode == 2 and output == ""
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert message in errors


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--workers="], "--workers takes host:port"),
        (["--workers=host"], "found 'host'"),
        (["--workers=host:80,:81"], "found ':81'"),
        (["--workers=host:0"], "found 'host:0'"),
        (["--workers=host:65536"], "found 'host:65536'"),
        (["--workers=http://host:80"], "found 'http://host:80'"),
        (["--workers=a:1,b:1,a:1"], "--workers names a:1 more than once"),
        (["--workers=a:1", "--runtime=in_process"], "--workers needs --runtime=native"),
        (["--workers=a:1", "--num_gpus=1"], "--num_gpus=1 does not go with --workers"),
    ],
)
def test_bad_workers_are_one_clear_line(run_train, tmp_path, flags, message):
    folder = tmp_path / "run"
    code, output, errors = run_train(*SMALL, f"--results_dir={folder}", *flags)
    assert code == 2 and output == "", errors
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert message in errors
    assert not folder.exists()


def rows_of(folder):
    return list(csv.DictReader((folder / "metrics.csv").open()))


def assert_same_metrics(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"method"}:
            if a[name] or b[name]:
                assert float(a[name]) == pytest.approx(float(b[name]), rel=1e-4), name


@pytest.mark.slow
def test_two_workers_train_like_one_process_and_a_lost_run_goes_on(run_train, tmp_path):
    native, remote = tmp_path / "native", tmp_path / "remote"
    flags = (*SMALL, "--rounds=12", "--runtime=native")
    code, _, errors = run_train(*flags, f"--results_dir={native}")
    assert code == 0, errors
    flags = (*flags, f"--results_dir={remote}")

    with two_workers() as (a, b):
        workers = f"--workers={a.address},{b.address}"
        with start("fedss.train", *flags, workers) as process:
            waiting.wait_until(
                lambda: (remote / "metrics.csv").exists() and len(rows_of(remote)) >= 4,
                process,
            )
            a.kill()
            b.kill()
            _, errors = process.communicate(timeout=waiting.LIMIT)
    assert process.returncode == 1, errors
    assert (
        f"error: No worker is left of {a.address}, {b.address}."
        in errors.splitlines()[-1]
    )
    done = len(rows_of(remote)) - 1
    assert 3 <= done < 12, "The workers were killed too late."

    # The same command, once there are workers again.
    with two_workers() as (a, b):
        workers = f"--workers={a.address},{b.address}"
        with start("fedss.train", *flags, workers) as process:
            output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    assert f"fedss: goes on after round {done}." in output
    assert_same_metrics(rows_of(remote), rows_of(native))
