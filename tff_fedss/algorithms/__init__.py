"""Learning processes, one file each."""

from tff_fedss.algorithms.centralized import CentralizedResult, train_centralized
from tff_fedss.algorithms.fedss import METHODS, ServerState, build_fedss

__all__ = [
    "METHODS",
    "CentralizedResult",
    "ServerState",
    "build_fedss",
    "train_centralized",
]
