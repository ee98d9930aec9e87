"""Flower's simulation engine (Ray), with clients in PyTorch: an actor on each core."""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # Flower reads it at import.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import functools
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from experiments.benchmarks import protocol
from experiments.benchmarks.contenders import torch_model
from experiments.benchmarks.workload import Workload

_MANY_ROUNDS = 10**6


# Kept by an actor between its clients, as a user would do.
@functools.cache
def _model(workload: Workload) -> torch_model.Model:
    return torch_model.Model(workload)


@functools.cache
def _data(workload: Workload, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch_model.tensors(workload.client(k))


def _client_app(workload: Workload) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        # Imported here: objects sent to the actors must not contain this module, which
        # is __main__ in this process only.
        from experiments.benchmarks.contenders import flower

        return flower.train_client(workload, message, context)

    return app


def train_client(workload: Workload, message: Message, context: Context) -> Message:
    """Trains a client on the server's message."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    model = _model(workload)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = _data(workload, int(context.node_config["partition-id"]))
    model.train_client(images, labels)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)


class _FedAvg(FedAvg):
    """Remembers why clients failed; Flower continues without them."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.failures: list[str] = []

    def aggregate_train(self, server_round: int, replies: Iterable[Message]):
        replies = list(replies)
        self.failures += [r.error.reason for r in replies if r.has_error()]
        return super().aggregate_train(server_round, replies)


class Flower(torch_model.TorchContender):
    """Flower's FedAvg strategy over its simulation engine."""

    def __init__(self, workload: Workload):
        super().__init__(workload)
        self._cores = len(os.sched_getaffinity(0))
        self.settings = f"{self._cores} Ray actors with one thread each"
        self._strategy = _FedAvg(fraction_evaluate=0.0)
        self._turns = protocol.Turns(self._run)

    def build(self) -> None:
        self.model = torch_model.Model(self._workload)
        self._turns.start()

    def _run(self) -> None:
        server_app = ServerApp()

        @server_app.main()
        def main(grid: Grid, context: Context) -> None:
            del context
            self._strategy.start(
                grid,
                ArrayRecord(self.model.state_dict()),
                num_rounds=_MANY_ROUNDS,
                # Called before the first round and after each.
                evaluate_fn=self._pause,
            )

        run_simulation(
            server_app,
            _client_app(self._workload),
            num_supernodes=self._workload.num_clients,
            backend_config={
                "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
                "init_args": {"num_cpus": self._cores, "include_dashboard": False},
            },
        )

    def _pause(self, server_round: int, arrays: ArrayRecord) -> None:
        del server_round
        self.model.load_state_dict(arrays.to_torch_state_dict())
        self._turns.pause()

    def one_round(self) -> None:
        self._turns.one_round()
        if failures := self._strategy.failures:
            raise RuntimeError(f"{len(failures)} clients failed: {failures[0]}")


if __name__ == "__main__":
    protocol.serve(Flower)
