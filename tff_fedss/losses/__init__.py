"""Losses, one per public function, each with its equation."""

from tff_fedss.losses.softmax import (
    fedss_loss,
    neg_only_loss,
    pos_only_loss,
    softmax_loss,
)

__all__ = ["fedss_loss", "neg_only_loss", "pos_only_loss", "softmax_loss"]
