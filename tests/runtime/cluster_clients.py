"""Clients' data for tests of a cluster: the actors import this module."""

import os

from tff_fedss.errors import InvalidInputError


def make(client_id, seed):
    """A client's argument: its number, and the process that has made it."""
    assert int(client_id) == seed[0]
    return {"x": float(seed[0]), "pid": os.getpid()}


def load():
    """What `ClusterContext.share` takes."""
    return make, {"data": 1}


def load_nothing():
    """Data that are not on this machine."""
    raise InvalidInputError("no such folder")
