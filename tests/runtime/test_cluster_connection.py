"""Clusters that cannot be reached: one line each, at once."""

import contextlib
import http.server
import sys
import threading

import portpicker
import pytest

from tff_fedss.errors import InvalidInputError
from tff_fedss.runtime import cluster_machines

ray = pytest.importorskip("ray")


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch, tmp_path):
    """This machine is a part of none, whatever else runs here."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert not ray.is_initialized()


@contextlib.contextmanager
def web_server():
    """What listens, but is not Ray."""
    server = http.server.HTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    )
    server.RequestHandlerClass.log_message = lambda *_: None
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def message_of(address):
    with pytest.raises(InvalidInputError) as error:
        cluster_machines.connect(address)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_no_ray_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    message = message_of("auto")
    assert message.startswith("cluster=auto needs Ray") and "setup" in message


def test_a_machine_without_a_cluster_is_reported():
    message = message_of("auto")
    assert message.startswith("cluster=auto: this machine is not a part of a cluster")
    assert "ray start" in message and "RAY_ADDRESS" in message


def test_an_address_where_nobody_listens_is_reported(monkeypatch):
    address = f"127.0.0.1:{portpicker.pick_unused_port()}"
    assert message_of(address).startswith(
        f"cluster={address} cannot be reached: Connection refused"
    )
    # `ray start` has written it down, and the cluster is gone.
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert message_of("auto").startswith(f"cluster=auto ({address}) cannot be reached")


def test_a_host_that_is_not_known_is_reported():
    assert "cluster=ray://no.such.host.invalid:10001 cannot be" in message_of(
        "ray://no.such.host.invalid:10001"
    )


@pytest.mark.slow  # Ray tries for half a minute.
def test_something_else_that_listens_is_reported():
    with web_server() as port:
        message = message_of(f"127.0.0.1:{port}")
    assert message.startswith(f"cluster=127.0.0.1:{port} cannot be reached: ")
    assert "with the same version of Ray" in message
