"""Learning processes, one file each."""

from tff_fedss.algorithms.centralized import Centralized, iid_batches
from tff_fedss.algorithms.fedaws import build_fedaws
from tff_fedss.algorithms.fedss import METHODS, ServerState, build_fedss
from tff_fedss.algorithms.leap import SelfPacedStudent
from tff_fedss.algorithms.magnet_embedding import (
    MagnetEmbedding,
    MagnetSettings,
    pixel_clusters,
)
from tff_fedss.algorithms.rf_softmax import Encoder, SampledSoftmax

__all__ = [
    "METHODS",
    "Centralized",
    "Encoder",
    "MagnetEmbedding",
    "MagnetSettings",
    "SampledSoftmax",
    "SelfPacedStudent",
    "ServerState",
    "build_fedaws",
    "build_fedss",
    "iid_batches",
    "pixel_clusters",
]
