"""Clusters that cannot be reached: one line each, at once."""

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


def message_of(address):
    with pytest.raises(InvalidInputError) as error:
        cluster_machines.connect(address)
    message = str(error.value)
    assert "\n" not in message
    return message


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
