"""Metrics of a model (accuracy, retrieval, pairs) and of a round (traffic, noise).

MAP@R of the FedSS paper is in `map_at_r`, on the exact search of `nearest`; top-1
accuracy and confusion matrices are in `classification`.
"""

from tff_fedss.metrics.classification import (
    center_accuracy,
    client_predictions,
    confusion_matrix,
    nearest_classes,
)
from tff_fedss.metrics.collapse import MeanCosine, effective_rank
from tff_fedss.metrics.communication import (
    AGGREGATIONS,
    BYTES_PER_PARAMETER,
    ClassifierTraffic,
    Protocol,
    classifier_traffic,
)
from tff_fedss.metrics.gradient_noise import GradientNoise, gradient_noise
from tff_fedss.metrics.linear_evaluation import linear_accuracy
from tff_fedss.metrics.map_at_r import average_precision_at_r, map_at_r
from tff_fedss.metrics.nearest import nearest_images
from tff_fedss.metrics.precision import precision_at_k
from tff_fedss.metrics.proposal import ProposalQuality, proposal_quality
from tff_fedss.metrics.r_precision import (
    RetrievalScores,
    r_precision,
    retrieval_scores,
)
from tff_fedss.metrics.verification import (
    Pairs,
    draw_pairs,
    fold_accuracies,
    pair_accuracy,
    pair_cosines,
    tar_at_far,
)

__all__ = [
    "MeanCosine",
    "AGGREGATIONS",
    "BYTES_PER_PARAMETER",
    "ClassifierTraffic",
    "GradientNoise",
    "Pairs",
    "ProposalQuality",
    "Protocol",
    "RetrievalScores",
    "average_precision_at_r",
    "center_accuracy",
    "classifier_traffic",
    "client_predictions",
    "confusion_matrix",
    "draw_pairs",
    "effective_rank",
    "fold_accuracies",
    "gradient_noise",
    "linear_accuracy",
    "map_at_r",
    "nearest_classes",
    "nearest_images",
    "pair_accuracy",
    "pair_cosines",
    "precision_at_k",
    "proposal_quality",
    "r_precision",
    "retrieval_scores",
    "tar_at_far",
]
