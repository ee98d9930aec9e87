"""FedAvg in plain PyTorch: a loop over clients and batches, all cores to each step."""

import numpy as np
import torch

from experiments.benchmarks import protocol
from experiments.benchmarks.contenders import torch_model
from experiments.benchmarks.workload import BATCH_SIZE, LEARNING_RATE, Workload


class PlainPyTorch(protocol.Contender):
    """The counterpart of `plain_tensorflow`."""

    def __init__(self, workload: Workload):
        self.settings = f"one client at a time, {torch.get_num_threads()} threads"
        self._workload = workload
        self._clients = [
            (torch_model.images(c.images), torch_model.labels(c.labels))
            for c in workload.clients()
        ]

    def build(self) -> None:
        self._model = torch_model.Model(self._workload)
        self._server = [p.detach().clone() for p in self._model.parameters()]

    def one_round(self) -> None:
        parameters = list(self._model.parameters())
        sums, total = [torch.zeros_like(p) for p in self._server], 0
        for images, labels in self._clients:
            self._load_server()
            optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
            for start in range(0, len(labels), BATCH_SIZE):
                batch = slice(start, start + BATCH_SIZE)
                optimizer.zero_grad()
                self._model.mean_loss(images[batch], labels[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                for s, p, value in zip(sums, parameters, self._server, strict=True):
                    s.add_(p - value, alpha=len(labels))
            total += len(labels)
        for value, s in zip(self._server, sums, strict=True):
            value.add_(s, alpha=1 / total)

    def weights(self) -> dict[str, np.ndarray]:
        self._load_server()
        return self._model.arrays()

    def loss(self) -> float:
        self._load_server()
        return torch_model.evaluate(self._model, self._workload)

    @torch.no_grad()
    def _load_server(self) -> None:
        for p, value in zip(self._model.parameters(), self._server, strict=True):
            p.copy_(value)


if __name__ == "__main__":
    protocol.serve(PlainPyTorch)
