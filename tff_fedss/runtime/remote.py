"""TFF's own C++ runtime on several machines: an execution context over workers.

A round goes to the workers in TFF's mergeable form (`tff.backends.native.
compile_to_mergeable_comp_form`): each worker selects, trains and accumulates for its
part of the clients, the parts are merged with the `merge` of the aggregations, and what
comes after is done once. All our rounds have this form, `tff.federated_select`
included: it stands before the aggregation.

TFF has a context for such forms, `tff.backends.native.
create_mergeable_comp_execution_context`. Release 0.87's does not serve here:

- Its remote executors block the one thread that it has for all workers, so that they
  take turns instead of working at once.
- It merges in the order in which the parts come in. The last digits of a round would
  depend on which worker was quicker.
- It calls a worker that died again for ever, and never another one.

Here the clients are cut into as many parts as workers were named, whoever of them is
there, and the parts are merged in their order: the result is the same bytes, whichever
worker does which part. The parts of a worker that died are done again by the others.
Computations are functions of their arguments, so nothing is lost or counted twice.
"""

import collections
import concurrent.futures
import functools
import itertools
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import grpc
import tensorflow_federated as tff
from absl import logging
from tensorflow_federated.python.core.impl.types import type_analysis

from tff_fedss.runtime import values, worker_service
from tff_fedss.runtime.errors import ComputationError, WorkerError, describe

# How long to wait for the workers when the program starts, and for one of them to
# return when none is left.
_START_TIMEOUT_SECONDS = 60.0
_RETURN_TIMEOUT_SECONDS = 10.0
# How often a worker at work is asked whether it is there, and how long it may take to
# answer. A machine that vanishes sends no word of it, so that gRPC waits for ever.
_HEARTBEAT_SECONDS = 10.0
_HEARTBEAT_TIMEOUT_SECONDS = 60.0
# How many workers may die of the same part.
_MAX_ATTEMPTS = 3
_MAX_COMPILED = 128

_LOST = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,  # We have closed the channel.
        grpc.StatusCode.FAILED_PRECONDITION,  # A new worker: it has not our executor.
    }
)
_CHANNEL_OPTIONS = (
    # A worker that comes back is found within seconds.
    ("grpc.max_reconnect_backoff_ms", 5000),
    # A new channel is a new connection.
    ("grpc.use_local_subchannel_pool", 1),
)


class _LostError(WorkerError):
    """The worker has died, or cannot be reached any more."""


class _LosableChannel(worker_service.Channel):
    """A channel that tells a worker that was lost from a computation that failed.

    TFF's executors would call a lost worker again for ever.

    Attributes:
        why_closed: Why the channel was closed, if gRPC does not know.
    """

    why_closed: str | None = None

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        call = self._channel.unary_unary(method, *args, **kwargs)
        is_farewell = method.endswith(("/Dispose", "/DisposeExecutor"))

        def call_or_lose(request):
            try:
                return call(request)
            except grpc.RpcError as error:
                if error.code() not in _LOST:
                    raise
                lost = _LostError(
                    self.why_closed or f"{error.code().name}: {error.details()}"
                )
            except ValueError as error:  # gRPC's, of a channel that is closed.
                lost = _LostError(self.why_closed or str(error))
            if is_farewell:  # Of values that went with the worker.
                return None
            raise lost

        return call_or_lose


class _Connection:
    """A connection to a worker, until the worker is lost.

    Attributes:
        address: "host:port".
        is_there: Set as soon as the worker has answered.
    """

    def __init__(self, address: str, compiler_fn: Any):
        self.address = address
        self.is_there = threading.Event()
        self._channel = _LosableChannel(address, _CHANNEL_OPTIONS)
        self._invoker = worker_service.Invoker(
            functools.partial(worker_service.create_executor, self._channel),
            compiler_fn,
        )
        self.submit = self._invoker.submit
        self._channel.ask(
            lambda is_there: is_there and self.is_there.set(), wait_for_ready=True
        )

    def check(self) -> None:
        """Closes the connection if the worker does not answer in good time."""

        def close_if_not(is_there: bool) -> None:
            if not is_there:
                self._channel.why_closed = (
                    f"no answer within {_HEARTBEAT_TIMEOUT_SECONDS:.0f} s"
                )
                # gRPC waits in `close` for the thread that calls this.
                threading.Thread(target=self._channel.close, daemon=True).start()

        self._channel.ask(close_if_not, timeout=_HEARTBEAT_TIMEOUT_SECONDS)

    def close(self) -> None:
        """Ends what waits for the worker."""
        self._channel.close()
        self._invoker.stop()


class _Workers:
    """All workers, each behind the newest connection to it."""

    def __init__(self, addresses: Sequence[str]):
        compile_once = functools.lru_cache(_MAX_COMPILED)(
            tff.backends.native.desugar_and_transform_to_native
        )
        lock = threading.Lock()

        def compile_for_all(comp):
            with lock:  # The first worker's thread compiles, the others wait for it.
                return compile_once(comp)

        self._compiler_fn = compile_for_all
        self._lock = threading.Lock()
        self._has_started = False
        self.connections = [_Connection(a, self._compiler_fn) for a in addresses]
        self.addresses = ", ".join(addresses)

    def wait_for_start(self) -> None:
        """Gives all workers the time to answer, the first time that it is called."""
        if self._has_started:
            return
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        absent = [
            connection.address
            for connection in self.connections
            if not connection.is_there.wait(max(0.0, deadline - time.monotonic()))
        ]
        what_now = (
            "The others do its part."
            if len(absent) < len(self.connections)
            else "There is no other one."
            if len(absent) == 1
            else "Nor from any other."
        )
        for address in absent:
            logging.warning(
                "No answer from worker %s within %.0f s. %s",
                address,
                _START_TIMEOUT_SECONDS,
                what_now,
            )
        self._has_started = True

    def wait_for_any(self) -> None:
        """Gives the workers, all of them lost, the time to return.

        Raises:
            WorkerError: If none has.
        """
        deadline = time.monotonic() + _RETURN_TIMEOUT_SECONDS
        while not any(c.is_there.is_set() for c in self.connections):
            if time.monotonic() > deadline:
                raise WorkerError(f"No worker is left of {self.addresses}.")
            time.sleep(0.05)

    def reconnect(self, connection: _Connection) -> None:
        """Replaces a connection; the worker is back as soon as it answers."""
        with self._lock:
            if connection in self.connections:
                place = self.connections.index(connection)
                connection.close()
                self.connections[place] = _Connection(
                    connection.address, self._compiler_fn
                )

    def close(self) -> None:
        """Closes all connections."""
        for connection in self.connections:
            connection.close()


class RemoteContext(tff.framework.SyncContext):
    """A synchronous TFF context that shares the clients out to several workers.

    `./run.sh worker` starts one. Computations without clients run on one worker, and so
    do those that have no mergeable form, with a warning: aggregations that need the
    result of others, or results that stay at the clients.

    A worker has no state worth saving. One that dies, or does not answer any more, is
    left out, with a warning, until it answers again.

    Attributes:
        close: Ends the connections; a no-argument function. Runs by itself when the
            context is dropped.
    """

    def __init__(self, workers: Sequence[str]):
        """Creates the context, which starts to connect.

        Args:
            workers: The addresses, "host:port". The number of them and their order
                decide how the clients are cut into parts.

        Raises:
            ValueError: If there is none.
        """
        if not workers:
            raise ValueError("There must be at least one worker.")
        self._workers = _Workers(workers)
        self._num_parts = len(workers)
        self._mergeable_form = functools.lru_cache(_MAX_COMPILED)(_mergeable_form)
        self.close = weakref.finalize(self, self._workers.close)

    def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
        """Runs a computation; called by TFF.

        Args:
            comp: The computation.
            arg: Its argument.

        Returns:
            Its result.

        Raises:
            ComputationError: If the computation itself failed.
            WorkerError: If no worker is left, or several have died of the same part.
            TypeError, ValueError: If the argument does not fit the computation.
        """
        parameter_type = comp.type_signature.parameter
        num_clients = values.count_clients(arg, parameter_type)
        self._workers.wait_for_start()
        form = self._mergeable_form(comp) if num_clients else None
        if form is None:
            return self._run(comp, [arg])[0]
        num_parts = min(self._num_parts, num_clients)
        # Sizes differ by one at most.
        ends = [-(-num_clients * k // num_parts) for k in range(num_parts + 1)]
        parts = self._run(
            form.up_to_merge,
            [
                _with_clients(arg, parameter_type, slice(start, end))
                for start, end in itertools.pairwise(ends)
            ],
        )
        merged = functools.reduce(
            lambda a, b: self._run(form.merge, [tff.structure.Struct.unnamed(a, b)])[0],
            parts,
        )
        # Only what the server has counts now. Without clients none trains again.
        at_server = _with_clients(arg, parameter_type, slice(0))
        return self._run(
            form.after_merge, [tff.structure.Struct.unnamed(at_server, merged)]
        )[0]

    def _run(self, comp: Any, args: Sequence[Any]) -> list[Any]:
        """Runs a computation for several arguments, one at a time on each worker."""
        workers = self._workers
        results = [None] * len(args)
        waiting = collections.deque(range(len(args)))
        running: dict[concurrent.futures.Future, tuple[int, _Connection]] = {}
        deaths = collections.Counter()
        try:
            while waiting or running:
                if waiting and not running:
                    workers.wait_for_any()
                # A worker has the same part in every round, if it can: other numbers
                # of clients would have it prepare the computation anew.
                busy = [connection for _, connection in running.values()]
                free = {
                    k: connection
                    for k, connection in enumerate(list(workers.connections))
                    if connection.is_there.is_set() and connection not in busy
                }
                for part in [p for p in waiting if p in free] + list(waiting):
                    if free and part in waiting:
                        connection = free.pop(part if part in free else min(free))
                        running[connection.submit(comp, args[part])] = part, connection
                        waiting.remove(part)
                done, _ = concurrent.futures.wait(
                    running,
                    timeout=_HEARTBEAT_SECONDS,
                    return_when=concurrent.futures.FIRST_COMPLETED,
                )
                if not done:
                    for _, connection in running.values():
                        connection.check()
                for future in done:
                    part, connection = running.pop(future)
                    try:
                        results[part] = future.result()
                    except grpc.RpcError as error:
                        raise ComputationError(describe(error)) from error
                    except _LostError as error:
                        workers.reconnect(connection)
                        deaths[part] += 1
                        if deaths[part] == _MAX_ATTEMPTS:
                            raise WorkerError(
                                f"{_MAX_ATTEMPTS} times a worker died of the same part "
                                "of a computation (out of memory?), the last time "
                                f"{connection.address}: {error}"
                            ) from error
                        logging.warning(
                            "Lost worker %s (%s). Doing its part again.",
                            connection.address,
                            error,
                        )
                        waiting.appendleft(part)
        except (KeyboardInterrupt, SystemExit):
            # Nobody waits for these any more: free the threads that are blocked.
            for _, connection in running.values():
                workers.reconnect(connection)
            raise
        return results


def _mergeable_form(comp: tff.framework.ConcreteComputation) -> Any:
    """Returns the mergeable form of a computation with clients, None if it has none."""
    if type_analysis.contains(
        comp.type_signature.result,
        lambda t: isinstance(t, tff.FederatedType) and t.placement is tff.CLIENTS,
    ):
        reason = "its result stays at the clients"
    else:
        try:
            return tff.backends.native.compile_to_mergeable_comp_form(comp)
        except ValueError as error:
            reason = error
    logging.warning("One worker does all of a computation's clients: %s.", reason)
    return None


def _with_clients(value: Any, type_spec: tff.Type, clients: slice) -> Any:
    """Returns an argument with some of its clients only."""
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is tff.CLIENTS and not type_spec.all_equal:
            return list(value[clients])
        return value
    if isinstance(type_spec, tff.StructType):
        return tff.structure.Struct(
            (name, _with_clients(element, element_type, clients))
            for element, (name, element_type) in zip(
                values.elements(value, type_spec),
                tff.structure.iter_elements(type_spec),
                strict=True,
            )
        )
    return value


def set_remote_context(workers: Sequence[str]) -> RemoteContext:
    """Makes a `RemoteContext` the default context of the calling thread.

    Args:
        workers: See `RemoteContext`.

    Returns:
        The context.
    """
    context = RemoteContext(workers)
    tff.framework.set_default_context(context)
    return context
