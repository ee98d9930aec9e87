"""Learning processes, one file each."""

from tff_fedss.algorithms.fedss import METHODS, ServerState, build_fedss

__all__ = ["METHODS", "ServerState", "build_fedss"]
