"""Learning processes, one file each, written like the papers' pseudo-code.

Begin at fedss.py (Algorithm 1), with its arguments in settings.py. Lines 6-7 of the
algorithm are in exchange.py, 8-11 in client_update.py, 12-13 in aggregation.py,
server_update.py and optimizers.py, which adds sparse rows to W. adapters.py lets TFF's
aggregators act on sparse rows; user_level_dp.py adds noise.
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
