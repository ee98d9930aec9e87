"""FedJAX, `fedjax.algorithms.fed_avg`: one client at a time, compiled."""

import functools

import fedjax
import jax
import numpy as np
from fedjax.algorithms import fed_avg

from experiments.benchmarks import protocol
from experiments.benchmarks.contenders import jax_model
from experiments.benchmarks.workload import BATCH_SIZE, LEARNING_RATE, Workload


class FedJax(protocol.Contender):
    """FedJAX's federated averaging."""

    settings = "backend jit"

    def __init__(self, workload: Workload):
        if workload.num_examples % BATCH_SIZE:
            raise ValueError(
                "FedJAX fills a short last batch with examples from the front: "
                f"{workload.num_examples} images do not make whole batches of "
                f"{BATCH_SIZE}."
            )
        fedjax.set_for_each_client_backend("jit")
        self._workload = workload
        self._data = workload.clients()
        self._clients = [
            (
                str(k),
                fedjax.ClientDataset({"x": c.images, "y": c.labels}),
                jax.random.PRNGKey(k),
            )
            for k, c in enumerate(self._data)
        ]

    def build(self) -> None:
        def loss(params, batch):
            return jax_model.mean_loss(self._workload, params, batch["x"], batch["y"])

        def gradient(params, batch, rng):
            del rng
            return jax.grad(loss)(params, batch)

        self._algorithm = fed_avg.federated_averaging(
            gradient,
            fedjax.optimizers.sgd(LEARNING_RATE),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(BATCH_SIZE, skip_shuffle=True),
        )
        weights = jax.tree_util.tree_map(
            jax.numpy.asarray, self._workload.initial_weights()
        )
        self._state = self._algorithm.init(weights)

    def one_round(self) -> None:
        self._state, diagnostics = self._algorithm.apply(self._state, self._clients)
        jax.block_until_ready((self._state.params, diagnostics))

    def weights(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(v) for name, v in self._state.params.items()}

    def loss(self) -> float:
        mean_loss = jax.jit(functools.partial(jax_model.mean_loss, self._workload))
        params = self._state.params
        return float(
            np.mean([mean_loss(params, c.images, c.labels) for c in self._data])
        )


if __name__ == "__main__":
    protocol.serve(FedJax)
