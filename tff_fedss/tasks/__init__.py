"""Tasks: a data set, a model and a metric each, with the paper's hyper-parameters."""

from tff_fedss.tasks.classification import Classification
from tff_fedss.tasks.contrastive import Contrastive
from tff_fedss.tasks.extreme import ExtremeClassification
from tff_fedss.tasks.family import KINDS, DataOptions, Family, Settings
from tff_fedss.tasks.identities import IdentityVerification
from tff_fedss.tasks.imagenet21k import IMAGENET21K
from tff_fedss.tasks.labelled_images import LabelledClassification
from tff_fedss.tasks.landmarks import LANDMARKS_23K, LANDMARKS_160K
from tff_fedss.tasks.language_model import LanguageModel
from tff_fedss.tasks.omniglot import OMNIGLOT
from tff_fedss.tasks.pooled_images import PooledImages
from tff_fedss.tasks.retrieval import Retrieval
from tff_fedss.tasks.sampled_softmax import SampledSoftmaxTask
from tff_fedss.tasks.sop import SOP
from tff_fedss.tasks.synthetic import GLYPHS
from tff_fedss.tasks.task import Task
from tff_fedss.tasks.tiny_imagenet import TINY_IMAGENET

# By the name that a user gives the data set.
FAMILIES = {
    "glyphs": GLYPHS,
    "omniglot": OMNIGLOT,
    "tiny_imagenet": TINY_IMAGENET,
    "landmarks": LANDMARKS_160K,
    "landmarks_23k": LANDMARKS_23K,
    "sop": SOP,
    "imagenet21k": IMAGENET21K,
}

__all__ = [
    "FAMILIES",
    "KINDS",
    "Classification",
    "Contrastive",
    "DataOptions",
    "ExtremeClassification",
    "Family",
    "IdentityVerification",
    "LabelledClassification",
    "LanguageModel",
    "PooledImages",
    "Retrieval",
    "SampledSoftmaxTask",
    "Settings",
    "Task",
]
