"""Tasks: each has a data set, a model and a metric, with the paper's hyper-parameters.

Begin with `task.Task`, the base class, and `federated`, the paper's two tasks.
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
    PooledImages,
    Retrieval,
)
from tff_fedss.tasks.identities import IdentityVerification
from tff_fedss.tasks.language_model import LanguageModel
from tff_fedss.tasks.task import SampledSoftmaxTask, Task
