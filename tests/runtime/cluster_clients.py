"""Clients' data for tests of a cluster: the actors import this module."""

import os

import numpy as np

from tff_fedss.errors import InvalidInputError


def make(client_id, seed):
    """A client's argument: its number, and the process that has made it."""
    assert int(client_id) == seed[0]
    return {"x": np.float32(seed[0]), "pid": np.int32(os.getpid())}


def load():
    """What `ClusterContext.share` takes."""
    return make, {"data": 1}


def load_nothing():
    """Data that are not on this machine."""
    raise InvalidInputError("no such folder")
