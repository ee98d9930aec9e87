"""Feature extractors phi and the cosine classifier W."""

import functools

from tff_fedss.models.cosine_classifier import cosine_logits, initial_classifier
from tff_fedss.models.encoders import ImageEncoder, LstmEncoder, SparseEncoder
from tff_fedss.models.group_normalization import GroupNormalization
from tff_fedss.models.mobilenet_v3 import (
    communication_saving,
    last_layer_share,
    mobilenet_v3,
    paper_feature_extractor,
)
from tff_fedss.models.pretrained import LoadReport, load_pretrained
from tff_fedss.models.projection_head import with_projection_head
from tff_fedss.models.resnet50 import resnet50
from tff_fedss.models.small_cnn import small_cnn

# By the name that a user gives them: (image shape, d, seed=...) -> phi.
FEATURE_EXTRACTORS = {
    "small_cnn": small_cnn,
    "mobilenet_v3_small": functools.partial(mobilenet_v3, size="small"),
    "mobilenet_v3_paper": paper_feature_extractor,
    "mobilenet_v3_large": functools.partial(mobilenet_v3, size="large"),
}

# Of contrastive learning: (image shape, seed=...) -> a model that gives features.
BACKBONES = {
    "resnet50": resnet50,
    "resnet50_group": functools.partial(resnet50, normalization="group"),
    "small_cnn": functools.partial(small_cnn, embedding_dim=256),
}

__all__ = [
    "BACKBONES",
    "FEATURE_EXTRACTORS",
    "GroupNormalization",
    "ImageEncoder",
    "LoadReport",
    "LstmEncoder",
    "SparseEncoder",
    "communication_saving",
    "cosine_logits",
    "initial_classifier",
    "last_layer_share",
    "load_pretrained",
    "mobilenet_v3",
    "paper_feature_extractor",
    "resnet50",
    "small_cnn",
    "with_projection_head",
]
