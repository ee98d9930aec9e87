"""Feature extractors phi and the cosine classifier W."""

from tff_fedss.models.cosine_classifier import cosine_logits, initial_classifier
from tff_fedss.models.mobilenet_v3 import (
    communication_saving,
    last_layer_share,
    mobilenet_v3,
    paper_feature_extractor,
)
from tff_fedss.models.pretrained import LoadReport, load_pretrained
from tff_fedss.models.small_cnn import small_cnn

__all__ = [
    "LoadReport",
    "communication_saving",
    "cosine_logits",
    "initial_classifier",
    "last_layer_share",
    "load_pretrained",
    "mobilenet_v3",
    "paper_feature_extractor",
    "small_cnn",
]
