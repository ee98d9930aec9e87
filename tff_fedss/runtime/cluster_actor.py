"""The actor of a cluster: an in-process context on one of its machines.

Ray starts it in its own process, with the GPUs that it may use.
"""

import contextlib
import os
import pickle
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2 as pb

from tff_fedss.runtime import cluster_machines, frozen, gpus
from tff_fedss.runtime.errors import ClientError, ComputationError, describe
from tff_fedss.runtime.in_process import InProcessContext, use_one_thread_per_operation

_MAX_PROGRAMS = 16


class Shared(NamedTuple):
    """A way for an actor to read the clients' data.

    Attributes:
        load: Reads the data set; returns a function that makes a client's argument,
            such as `Task.client`, and the fingerprint of the data. Pickled.
        fingerprint: The expected fingerprint, to detect other data on this machine.
    """

    load: Callable[[], tuple[Callable[..., Any], Mapping[str, Any]]]
    fingerprint: Mapping[str, Any]


class Started(NamedTuple):
    """An actor's description of itself."""

    pid: int
    reads_clients: bool
    why_not: str  # The reason if it does not, in one line.
    versions: dict[str, str]  # See `cluster_machines.versions`.


class Failure(NamedTuple):
    """Work that failed."""

    client: int | None  # The part's client that failed; None for another reason.
    cause: Exception
    is_of_computation: bool  # Or of what was around it, such as reading the data.


class Pieces(NamedTuple):
    """The serialized computations of parts; see `cluster_cut.Cut`."""

    prepare: bytes | None
    work: bytes
    work_reads_arguments: bool


class Part(NamedTuple):
    """A few clients of a round.

    Attributes:
        round_key: Key of the round or other computation; nothing is kept for the next.
        index: The part's index in the round.
        clients: The clients' arguments, `arguments.of_clients`, frozen; a `ClientRef`
            may replace a client's value.
    """

    round_key: str
    index: int
    clients: Any


class Actor:
    """Computes parts of a round, one at a time."""

    def __init__(
        self, on_gpu: bool, clients_at_once: int, precision: Mapping[str, bool]
    ):
        """Configures TensorFlow before its process uses it, on GPUs if Ray gave any.

        `clients_at_once` train on each GPU or in all. `precision` are
        deterministic and tf32 of `configure_gpus`.
        """
        with contextlib.suppress(PermissionError):
            # Without `./run.sh`, Ray gives it the lowest priority.
            raylet = os.getpriority(os.PRIO_PROCESS, os.getppid())
            os.setpriority(os.PRIO_PROCESS, 0, raylet)
        gpus.configure_gpus(
            clients_per_gpu=clients_at_once if on_gpu else 1, **precision
        )
        if on_gpu:
            if not tf.config.list_physical_devices("GPU"):
                raise RuntimeError(
                    f"Ray gave GPU {os.environ.get('CUDA_VISIBLE_DEVICES')} of "
                    f"{socket.gethostname()} to an actor whose TensorFlow sees none."
                )
        else:
            use_one_thread_per_operation()
        self._on_gpu = on_gpu
        self._context = InProcessContext(
            None if on_gpu else ["CPU:0"],
            clients_per_device=gpus.clients_per_device(clients_at_once)
            if on_gpu
            else clients_at_once,
        )
        self._client_fn: Callable[..., Any] | None = None
        self._pieces: dict[str, tuple[Any, Any, bool]] = {}
        self._round_key = ""
        self._kept: dict[int, Any] = {}
        self._broadcasts: Any = None

    def start(self, shared: bytes | None) -> Started:
        """Reads clients' data by a pickled `Shared`; None: parts contain them."""
        why_not = ""
        if shared is not None:
            try:
                asked: Shared = pickle.loads(shared)
                client_fn, found = asked.load()
                other = [k for k, v in asked.fingerprint.items() if found.get(k) != v]
                if other:
                    why_not = f"the data there differ in {', '.join(other)}"
                else:
                    self._client_fn = client_fn
            except Exception as error:  # Any error: the data can be sent instead.
                why_not = describe(error)
        reads_clients = self._client_fn is not None
        versions = cluster_machines.versions()
        return Started(os.getpid(), reads_clients, why_not, versions)

    def ping(self) -> None:
        """Answers, in its own thread, to show that the process is not stopped."""

    def prepare(self, key: str, pieces: Pieces, part: Part) -> Any:
        """Does clients' work before the server's answer: keys, or a `Failure`.

        Keys are, for each selection, a list with an array for each client.
        """
        return _guarded(lambda: self._prepare(self._load(key, pieces), part))

    def work(
        self, key: str, pieces: Pieces, part: Part, broadcasts: Any, rows: Any
    ) -> Any:
        """Does clients' work on the server's answer: the part's sum, or a `Failure`.

        `broadcasts` are sent to all clients, `rows` are the result of each
        selection for each client; both are frozen. The part is prepared now if
        this actor has not done so.
        """
        return _guarded(
            lambda: self._work(self._load(key, pieces), part, broadcasts, rows)
        )

    def _load(self, key: str, pieces: Pieces) -> tuple[Any, Any, bool]:
        if key not in self._pieces:
            if len(self._pieces) == _MAX_PROGRAMS:
                del self._pieces[next(iter(self._pieces))]
            self._pieces[key] = (
                _deserialize(pieces.prepare),
                _deserialize(pieces.work),
                pieces.work_reads_arguments,
            )
        return self._pieces[key]

    def _prepare(self, pieces: tuple[Any, Any, bool], part: Part) -> Any:
        self._begin(part)
        prepare, _, _ = pieces
        arguments = self._thawed(part, prepare.type_signature.parameter)
        keys, self._kept[part.index] = self._context.invoke(prepare, arguments)
        return keys

    def _work(
        self, pieces: tuple[Any, Any, bool], part: Part, broadcasts: Any, rows: Any
    ) -> Any:
        self._begin(part)
        prepare, work, reads_arguments = pieces
        if prepare is not None and part.index not in self._kept:
            self._prepare(pieces, part)
        types = work.type_signature.parameter
        if self._broadcasts is None:
            # Converted to tensors once: the context would copy the arrays for each
            # part.
            self._broadcasts = tf.nest.map_structure(
                _to_tensor, frozen.thaw(broadcasts, types[2])
            )
        argument = tff.structure.Struct.unnamed(
            self._thawed(part, types[0]) if reads_arguments else (),
            self._kept.pop(part.index, ()),
            self._broadcasts,
            frozen.thaw(rows, types[3]),
        )
        result = self._context.invoke(work, argument)
        devices = self._context.client_devices  # None, if there are no floats.
        if self._on_gpu and (
            self._context.trained_on_host
            or devices
            and not any("GPU" in d for d in devices)
        ):
            raise RuntimeError(
                f"Clients should have trained on a GPU of {socket.gethostname()}, but "
                f"their results come from {', '.join(devices)}."
            )
        return frozen.freeze(result, work.type_signature.result)

    def _begin(self, part: Part) -> None:
        if part.round_key != self._round_key:
            self._round_key = part.round_key
            self._kept, self._broadcasts = {}, None

    def _thawed(self, part: Part, type_spec: tff.Type) -> Any:
        return frozen.thaw(part.clients, type_spec, self._client_fn)


def _guarded(work: Callable[[], Any]) -> Any:
    """Returns a computation's result, or its failure in a form that can be sent."""
    try:
        return work()
    except ComputationError as error:
        client = error.client if isinstance(error, ClientError) else None
        return Failure(client, _sendable(error.__cause__), True)
    except Exception as error:
        return Failure(None, _sendable(error), False)


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # Many errors cannot be unpickled.
        return RuntimeError(describe(error))
    return error


def _to_tensor(value: Any) -> Any:
    is_array = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    return tf.constant(value) if is_array else value


def serialize(comp: tff.framework.ConcreteComputation | None) -> bytes | None:
    """Serializes a computation; None stays None."""
    if comp is None:
        return None
    # The same bytes for the same computation, which actors cache by them.
    return tff.framework.serialize_computation(comp).SerializeToString(
        deterministic=True
    )


def _deserialize(serialized: bytes | None) -> Any:
    if serialized is None:
        return None
    return tff.framework.deserialize_computation(pb.Computation.FromString(serialized))
