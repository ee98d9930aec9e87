"""Feature extractors phi and the cosine classifier W."""

import functools

from tff_fedss.models.cosine_classifier import cosine_logits, initial_classifier
from tff_fedss.models.encoders import ImageEncoder, LstmEncoder, SparseEncoder
from tff_fedss.models.group_normalization import GroupNormalization
from tff_fedss.models.mlp import mlp
from tff_fedss.models.mobilenet_v3 import (
    communication_saving,
    last_layer_share,
    mobilenet_v3,
    paper_feature_extractor,
)
from tff_fedss.models.pretrained import LoadReport, load_pretrained
from tff_fedss.models.sharded_matrix import ShardedMatrix, scatter_rows
from tff_fedss.models.small_cnn import small_cnn

# By the name that a user gives them: (image shape, d, seed=...) -> phi.
FEATURE_EXTRACTORS = {
    "small_cnn": small_cnn,
    "mobilenet_v3_small": functools.partial(mobilenet_v3, size="small"),
    "mobilenet_v3_paper": paper_feature_extractor,
    "mobilenet_v3_large": functools.partial(mobilenet_v3, size="large"),
}

__all__ = [
    "FEATURE_EXTRACTORS",
    "GroupNormalization",
    "ImageEncoder",
    "LoadReport",
    "LstmEncoder",
    "ShardedMatrix",
    "SparseEncoder",
    "communication_saving",
    "cosine_logits",
    "initial_classifier",
    "last_layer_share",
    "load_pretrained",
    "mlp",
    "mobilenet_v3",
    "paper_feature_extractor",
    "scatter_rows",
    "small_cnn",
]
