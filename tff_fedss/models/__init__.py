"""Feature extractors phi and the cosine classifier W."""

from tff_fedss.models.cosine_classifier import (
    cosine_logits,
    initial_classifier,
)
from tff_fedss.models.small_cnn import small_cnn

__all__ = ["cosine_logits", "initial_classifier", "small_cnn"]
