"""Losses, one per public function, each with its equation.

Those of FedSS are in `softmax`; they import nothing of the project.
"""

from tff_fedss.losses.info_nce import INFO_NCE_FORMS, info_nce_floor, info_nce_loss
from tff_fedss.losses.magnet import magnet_loss
from tff_fedss.losses.margins import MARGINS, Margin, arcface_loss, cosface_loss
from tff_fedss.losses.softmax import (
    LEFT_OUT,
    fedss_loss,
    neg_only_loss,
    pos_only_loss,
    sampled_softmax_loss,
    softmax_loss,
)
from tff_fedss.losses.spreadout import spreadout_loss_and_gradient
