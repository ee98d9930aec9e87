"""Metrics of a model (accuracy, retrieval, pairs) and of a round (traffic, noise).

`retrieval` has MAP@R of the FedSS paper; `classification` top-1
accuracy; `verification` pairs.
"""

from tff_fedss.metrics.classification import (
    MeanCosine,
    center_accuracy,
    client_predictions,
    effective_rank,
    linear_accuracy,
    nearest_classes,
)
from tff_fedss.metrics.communication import (
    BYTES_PER_PARAMETER,
    ClassifierTraffic,
    Protocol,
    classifier_traffic,
)
from tff_fedss.metrics.retrieval import (
    APPROXIMATE,
    RetrievalScores,
    approximate_search,
    average_precision_at_r,
    is_approximate,
    map_at_r,
    nearest_images,
    precision_at_k,
    retrieval_scores,
    search_for,
    unit,
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
    pair_cosines,
    tar_at_far,
)
