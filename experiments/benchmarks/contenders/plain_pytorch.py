"""FedAvg in plain PyTorch: a loop over clients and batches, all cores to each step."""

import numpy as np
import torch

from experiments.benchmarks import protocol
from experiments.benchmarks.contenders import torch_model
from experiments.benchmarks.workload import Workload


class PlainPyTorch(torch_model.TorchContender):
    """The counterpart of `plain_tensorflow`."""

    def __init__(self, workload: Workload):
        super().__init__(workload)
        self.settings = f"one client at a time, {torch.get_num_threads()} threads"

    def build(self) -> None:
        self.model = torch_model.Model(self._workload)
        self._server = [p.detach().clone() for p in self.model.parameters()]

    def one_round(self) -> None:
        parameters = list(self.model.parameters())
        sums, total = [torch.zeros_like(p) for p in self._server], 0
        for images, labels in self._data:
            self._load_server()
            self.model.train_client(images, labels)
            with torch.no_grad():
                for s, p, value in zip(sums, parameters, self._server, strict=True):
                    s.add_(p - value, alpha=len(labels))
            total += len(labels)
        for value, s in zip(self._server, sums, strict=True):
            value.add_(s, alpha=1 / total)

    def weights(self) -> dict[str, np.ndarray]:
        self._load_server()
        return super().weights()

    def loss(self) -> float:
        self._load_server()
        return super().loss()

    @torch.no_grad()
    def _load_server(self) -> None:
        for p, value in zip(self.model.parameters(), self._server, strict=True):
            p.copy_(value)


if __name__ == "__main__":
    protocol.serve(PlainPyTorch)
