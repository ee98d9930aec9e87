"""Training: rounds, evaluations, checkpoints and the results folder of a run.

Begin with `loop.train`; a `Run` is one method in training (`FederatedRun`, ...), and a
`ResultsFolder` keeps its results.
"""

from tff_fedss.training.centralized_run import (
    CENTRALIZED_UPDATES,
    CentralizedRun,
    pooled_batches,
)
from tff_fedss.training.checkpoints import Checkpoints
from tff_fedss.training.draws import (
    SAMPLINGS,
    client_seed,
    cohort,
    permanent_seed,
    poisson_cohort,
)
from tff_fedss.training.embedding_process import EmbeddingProcess
from tff_fedss.training.federated_run import (
    FederatedRun,
    client_selection_fn,
    cohort_fn,
)
from tff_fedss.training.leap_run import Embedding, LeapRun
from tff_fedss.training.loop import train
from tff_fedss.training.program import DataSource, for_programs
from tff_fedss.training.progress import Progress
from tff_fedss.training.provenance import processor
from tff_fedss.training.results_folder import ResultsFolder
from tff_fedss.training.run import Metrics, Run
from tff_fedss.training.step_run import MocoRun, SampledSoftmaxRun, StepRun
from tff_fedss.training.warm_start import cached_warm_start, warm_start
from tff_fedss.unpacking import read_npz as read_arrays
