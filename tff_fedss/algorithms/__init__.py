"""Learning processes, one file each."""

from tff_fedss.algorithms.centralized import Centralized, iid_batches
from tff_fedss.algorithms.dp_noise import tree_covariance
from tff_fedss.algorithms.fedaws import build_fedaws
from tff_fedss.algorithms.fedss import METHODS, ServerState, build_fedss
from tff_fedss.algorithms.leap import SelfPacedStudent
from tff_fedss.algorithms.magnet_embedding import (
    MagnetEmbedding,
    MagnetSettings,
    pixel_clusters,
)
from tff_fedss.algorithms.moco import MOCO_CLUSTERS, MoCo
from tff_fedss.algorithms.one_vector import over_one_vector
from tff_fedss.algorithms.partial_fc import PartialFC, ShardedState
from tff_fedss.algorithms.rf_softmax import Encoder, SampledSoftmax
from tff_fedss.algorithms.sgd_under_rate import CosineByEpoch, SGDUnderRate
from tff_fedss.algorithms.sparse_sgdm import build_sparse_sgdm

__all__ = [
    "METHODS",
    "MOCO_CLUSTERS",
    "Centralized",
    "CosineByEpoch",
    "Encoder",
    "MagnetEmbedding",
    "MagnetSettings",
    "MoCo",
    "PartialFC",
    "SGDUnderRate",
    "SampledSoftmax",
    "SelfPacedStudent",
    "ServerState",
    "ShardedState",
    "build_fedaws",
    "build_fedss",
    "build_sparse_sgdm",
    "iid_batches",
    "over_one_vector",
    "pixel_clusters",
    "tree_covariance",
]
