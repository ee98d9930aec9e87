"""The loop: rounds, evaluation, progress, and the folder that a run leaves behind."""

from tff_fedss.training.draws import client_seed, cohort
from tff_fedss.training.federated_run import FederatedRun, Metrics, client_selection_fn
from tff_fedss.training.loop import train
from tff_fedss.training.progress import Progress
from tff_fedss.training.results_folder import ResultsFolder

__all__ = [
    "FederatedRun",
    "Metrics",
    "Progress",
    "ResultsFolder",
    "client_seed",
    "client_selection_fn",
    "cohort",
    "train",
]
