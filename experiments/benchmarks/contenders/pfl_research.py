"""pfl-research (Apple), its simulated backend with PyTorch.

One process, since its backend trains clients one after the other in each.
"""

import asyncio

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from experiments.benchmarks import protocol
from experiments.benchmarks.contenders import torch_model
from experiments.benchmarks.workload import BATCH_SIZE, LEARNING_RATE, Workload

_MANY_ROUNDS = 10**6


class _Module(torch_model.Model):
    """The model in pfl's form."""

    def loss(self, images, labels):
        return self.mean_loss(images, labels)

    def metrics(self, images, labels):
        return {}  # pfl needs some in the first round, whatever its settings.


class _Pause(TrainingProcessCallback):
    def __init__(self, turns: protocol.Turns):
        self._turns = turns

    def on_train_begin(self, *, model):
        self._turns.pause()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self._turns.pause()
        return False, Metrics()


class PflResearch(torch_model.TorchContender):
    """pfl's FederatedAveraging."""

    def __init__(self, workload: Workload):
        super().__init__(workload)
        self.settings = f"one process, {torch.get_num_threads()} threads"
        self._turns = protocol.Turns(self._run)

    def build(self) -> None:
        self.model = _Module(self._workload)
        self._turns.start()

    def _run(self) -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())  # pfl asks for the thread's.
        data, workload = self._data, self._workload
        dataset = FederatedDataset(
            lambda k: Dataset(data[k], user_id=str(k)),
            get_user_sampler("minimize_reuse", list(range(len(data)))),
        )
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=_MANY_ROUNDS,
                evaluation_frequency=_MANY_ROUNDS,
                train_cohort_size=workload.num_clients,
                val_cohort_size=0,
            ),
            SimulatedBackend(dataset, dataset, postprocessors=[WeightByDatapoints()]),
            PyTorchModel(
                self.model,
                torch.optim.SGD,
                torch.optim.SGD(self.model.parameters(), lr=1.0),
            ),
            NNTrainHyperParams(
                local_num_epochs=1,
                local_learning_rate=LEARNING_RATE,
                local_batch_size=BATCH_SIZE,
            ),
            callbacks=[_Pause(self._turns)],
        )

    def one_round(self) -> None:
        self._turns.one_round()


if __name__ == "__main__":
    protocol.serve(PflResearch)
