"""Clients' data for tests of a cluster: the actors import this module."""

import os

import numpy as np

from tests.runtime import broken_actors
from tff_fedss.errors import InvalidInputError
from tff_fedss.runtime import cluster_actor

UNREADABLE = "unreadable"  # A client's name.


def make(client_id, seed):
    """A client's argument: its number, and the process that has made it."""
    if client_id == UNREADABLE:
        raise OSError("file signature not found")  # As h5py says of a damaged file.
    assert int(client_id) == seed[0]
    return {"x": np.float32(seed[0]), "pid": np.int32(os.getpid())}


def load():
    """What `ClusterContext.share` takes."""
    return make, {"data": 1}


def load_if_there():
    """Data that are not on machines that were started with a variable."""
    if "TFF_FEDSS_TEST_WITHOUT" in os.environ:
        raise InvalidInputError("no such folder")
    return load()


class BrokenIfWithout(cluster_actor.Actor):
    """An actor that does not start on such a machine."""

    def __init__(self, *args):
        if "TFF_FEDSS_TEST_WITHOUT" in os.environ:
            broken_actors.Broken()
        super().__init__(*args)
