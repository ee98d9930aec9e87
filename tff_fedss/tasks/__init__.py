"""Tasks: a data set, a model and a metric each, with the paper's hyper-parameters.

Begin with `task.Task`, which all share, and `classification`, the paper's own.
"""

from tff_fedss.tasks.classification import UNSEEN_METRIC, Classification
from tff_fedss.tasks.contrastive import Contrastive
from tff_fedss.tasks.datasets import (
    DATASETS,
    KINDS,
    DatasetSpec,
    Settings,
    load_clients,
)
from tff_fedss.tasks.extreme import ExtremeClassification
from tff_fedss.tasks.federated_task import FederatedTask
from tff_fedss.tasks.identities import IdentityVerification
from tff_fedss.tasks.labelled_images import LabelledClassification
from tff_fedss.tasks.language_model import LanguageModel
from tff_fedss.tasks.pooled_images import PooledImages
from tff_fedss.tasks.pretraining import Pretraining
from tff_fedss.tasks.retrieval import Retrieval
from tff_fedss.tasks.sampled_softmax import SampledSoftmaxTask
from tff_fedss.tasks.task import Task

__all__ = [
    "DATASETS",
    "KINDS",
    "UNSEEN_METRIC",
    "Classification",
    "Contrastive",
    "DatasetSpec",
    "ExtremeClassification",
    "FederatedTask",
    "IdentityVerification",
    "LabelledClassification",
    "LanguageModel",
    "PooledImages",
    "Pretraining",
    "Retrieval",
    "SampledSoftmaxTask",
    "Settings",
    "Task",
    "load_clients",
]
