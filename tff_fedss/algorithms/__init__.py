"""Learning processes, one file each, written like the papers' pseudo-code.

Begin at fedss.py (Algorithm 1). settings.py has its arguments, exchange.py lines 6-7,
client_update.py lines 8-11, server_update.py and aggregation.py lines 12-13;
adapters.py lets TFF's own aggregators act on sparse rows.
"""

from tff_fedss.algorithms.centralized import Centralized, iid_batches
from tff_fedss.algorithms.dp_noise import tree_covariance
from tff_fedss.algorithms.fedaws import build_fedaws
from tff_fedss.algorithms.fedss import METHODS, build_fedss, compose_dataset_computation
from tff_fedss.algorithms.leap import (
    MagnetEmbedding,
    MagnetSettings,
    SelfPacedStudent,
    pixel_clusters,
)
from tff_fedss.algorithms.moco import MOCO_CLUSTERS, MoCo
from tff_fedss.algorithms.optimizers import (
    CosineByEpoch,
    SGDUnderRate,
    build_sparse_sgdm,
    clip_gradients,
    over_one_vector,
)
from tff_fedss.algorithms.partial_fc import PartialFC
from tff_fedss.algorithms.rf_softmax import Encoder, SampledSoftmax
from tff_fedss.algorithms.server_update import ServerState
from tff_fedss.algorithms.settings import ClassSets, ClientTraining, ServerUpdate
