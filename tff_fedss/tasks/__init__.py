"""Tasks: a data set, a model and a metric each, with the paper's hyper-parameters.

Begin with `task.Task`, which all share, and `federated`, the paper's own two.
"""

from tff_fedss.tasks.central_images import (
    Contrastive,
    LabelledClassification,
    Pretraining,
)
from tff_fedss.tasks.datasets import (
    DATASETS,
    KINDS,
    DatasetSpec,
    Settings,
    load_clients,
)
from tff_fedss.tasks.extreme import ExtremeClassification
from tff_fedss.tasks.federated import (
    UNSEEN_METRIC,
    Classification,
    FederatedTask,
    Retrieval,
)
from tff_fedss.tasks.identities import IdentityVerification
from tff_fedss.tasks.language_model import LanguageModel
from tff_fedss.tasks.sampled_softmax import PooledImages, SampledSoftmaxTask
from tff_fedss.tasks.task import Task
