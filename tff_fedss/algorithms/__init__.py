"""Learning processes, one file each."""

from tff_fedss.algorithms.centralized import Centralized, iid_batches
from tff_fedss.algorithms.fedaws import build_fedaws
from tff_fedss.algorithms.fedss import METHODS, ServerState, build_fedss
from tff_fedss.algorithms.moco import MoCo
from tff_fedss.algorithms.rf_softmax import Encoder, SampledSoftmax

__all__ = [
    "METHODS",
    "Centralized",
    "Encoder",
    "MoCo",
    "SampledSoftmax",
    "ServerState",
    "build_fedaws",
    "build_fedss",
    "iid_batches",
]
