"""Metrics of a model (accuracy, retrieval, pairs) and of a round (traffic, noise).

`retrieval` has MAP@R of the FedSS paper, on an exact search; `classification` top-1
accuracy and confusion matrices; `verification` pairs.
"""

from tff_fedss.metrics.classification import (
    MeanCosine,
    center_accuracy,
    client_predictions,
    confusion_matrix,
    effective_rank,
    linear_accuracy,
    nearest_classes,
)
from tff_fedss.metrics.communication import (
    AGGREGATIONS,
    BYTES_PER_PARAMETER,
    ClassifierTraffic,
    Protocol,
    classifier_traffic,
)
from tff_fedss.metrics.nearest_index import (
    APPROXIMATE,
    approximate_search,
    is_approximate,
    search_for,
)
from tff_fedss.metrics.retrieval import (
    RetrievalScores,
    average_precision_at_r,
    map_at_r,
    nearest_images,
    precision_at_k,
    r_precision,
    retrieval_scores,
)
from tff_fedss.metrics.sampling import (
    GradientNoise,
    ProposalQuality,
    gradient_noise,
    proposal_quality,
)
from tff_fedss.metrics.verification import (
    Pairs,
    draw_pairs,
    fold_accuracies,
    pair_accuracy,
    pair_cosines,
    tar_at_far,
)
