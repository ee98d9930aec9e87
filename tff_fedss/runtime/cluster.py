"""An execution context that distributes the clients of a round over a Ray cluster.

A computation is cut (see `cluster_cut`): the server's part runs here, in the training
process, and clients train on the cluster's machines, in actors with an in-process
context each, on GPUs or on CPU cores.

Clients are sent in parts of a fixed number, and the parts' sums are added in the order
of the parts, pair by pair. So results do not depend on the number, speed or loss of
actors and machines: a part of a lost one is repeated by another, and counts once.
"""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow_federated as tff
from absl import logging

from tff_fedss.files import error_text
from tff_fedss.runtime import (
    arguments,
    cluster_actor,
    cluster_cut,
    cluster_machines,
    cluster_pool,
    cluster_round,
    compiler,
)
from tff_fedss.runtime.errors import WorkerError
from tff_fedss.runtime.frozen import ClientRef
from tff_fedss.runtime.in_process import InProcessContext


class ClusterContext(tff.framework.SyncContext):
    """A synchronous TFF context over a cluster.

    Computations without clients, those that cannot be cut, and the server's part run in
    this process, on its CPU. Failures raise the same errors as in an
    `InProcessContext`, and a `WorkerError` if the cluster fails.

    Attributes:
        traffic: The bytes that the last computation sent, a `cluster_round.Traffic`.
        close: Ends the actors; a no-argument function. Runs automatically when the
            context is dropped. The connection to the cluster ends with the process.
    """

    def __init__(
        self,
        address: str = "local",
        *,
        num_actors: int | None = None,
        gpus_per_actor: float | None = None,
        clients_per_gpu: int = 1,
        deterministic: bool = False,
        tf32: bool = False,
    ):
        """Connects to the cluster; actors start when needed.

        Args:
            address: See `cluster_machines.connect`.
            num_actors: Number of actors; by default one on each machine, also on those
                that join later, or one for each `gpus_per_actor` of its GPUs.
            gpus_per_actor: Number of an actor's GPUs; by default 1 if the cluster has
                any; 0: clients train on CPUs.
            clients_per_gpu: How many clients train on a GPU at once.
            deterministic: See `configure_gpus`, for the actors.
            tf32: See `configure_gpus`, for the actors. (The process that builds the
                computations decides mixed_precision.)

        Raises:
            InvalidInputError: If the cluster cannot be reached.
        """
        cluster_machines.connect(address)
        self._address = address
        self._here = InProcessContext(["CPU:0"])
        self._pool = cluster_pool.Pool(
            address,
            num_actors,
            gpus_per_actor,
            clients_per_gpu,
            {"deterministic": deterministic, "tf32": tf32},
        )
        self._client_fn: Callable[..., Any] | None = None
        self._compile = compiler.Cache(_compile)
        self.traffic = cluster_round.Traffic()
        self.close = weakref.finalize(self, self._pool.close)

    @property
    def actor_pids(self) -> list[int]:
        """The process ids of the running actors, each on its machine."""
        return [member.pid for member in self._pool.members]

    def share(
        self,
        load: Callable[[], tuple[Callable[..., Any], Mapping[str, Any]]],
        client_fn: Callable[..., Any],
        fingerprint: Mapping[str, Any],
    ) -> Callable[..., ClientRef]:
        """Lets actors read clients' data on their machines, instead of sending them.

        Args:
            load: Reads the data on an actor's machine: returns a client_fn, and the
                data's fingerprint. Must be picklable.
            client_fn: Makes a client's argument here, such as `Task.client`, for actors
                that cannot read the data, or have other data.

        Returns:
            A function with the same arguments that returns a reference to a client's
            value.
        """
        self._client_fn = client_fn
        # Actors start while the first round is compiled.
        self._pool.share(cluster_actor.Shared(load, dict(fingerprint)))
        return lambda *arguments: ClientRef(arguments)

    def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
        """Runs a computation; called by TFF.

        Args:
            arg: Its argument. A `ClientRef` may replace a client's value.

        Raises:
            ComputationError: If the computation itself failed.
            InvalidInputError: If the machines have not the requested GPUs.
            TypeError, ValueError: If the argument does not fit the computation.
            WorkerError: If no actor starts (as if all machines have another version of
                this project), several have died in the same part, or the cluster's
                memory is full.
        """
        parameter_type = comp.type_signature.parameter
        num_clients = arguments.count_clients(arg, parameter_type)
        compiled = self._compile(comp) if num_clients else None
        if compiled is None:
            return self._here.invoke(comp, self._resolved(arg, parameter_type))
        try:
            running = cluster_round.Round(
                self._pool, self._here, compiled, arg, num_clients, self._client_fn
            )
            self.traffic = running.traffic
            return running.run()
        except BaseException as error:
            self._pool.close()  # Running work is abandoned.
            why = error_text(error)[:300]
            if isinstance(error, cluster_machines.full_errors()):
                cure = "give `ray start` a larger --object-store-memory"
                why = f"its object memory is full: {cure} ({why})"
            # Ray's error for the connection to its local daemon has no number.
            elif not isinstance(error, OSError) or error.errno is not None:
                raise
            raise WorkerError(f"The cluster {self._address} failed: {why}.") from error

    def _resolved(self, arg: Any, parameter_type: tff.Type) -> Any:
        """Makes the clients' values from their `ClientRef`s."""
        return arguments.with_clients(
            arg,
            parameter_type,
            lambda v: self._client_fn(*v.arguments) if isinstance(v, ClientRef) else v,
        )


def _compile(
    comp: tff.framework.ConcreteComputation,
) -> cluster_round.Computation | None:
    try:
        return cluster_round.Computation(comp)
    except cluster_cut.NotCuttableError as error:
        logging.warning("A computation does not use the cluster: %s.", error)
        return None


def set_cluster_context(address: str = "local", **kwargs: Any) -> ClusterContext:
    """Sets a new `ClusterContext` as the thread's default context."""
    context = ClusterContext(address, **kwargs)
    tff.framework.set_default_context(context)
    return context
