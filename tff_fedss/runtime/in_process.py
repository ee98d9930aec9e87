"""An execution context that runs TFF computations with TensorFlow in this process.

TFF's wheels start a worker program without GPU support. This context compiles with
TFF's own compiler and evaluates the result here, so that TFF can do all that TensorFlow
can do in this process, above all use GPUs. Nothing is serialized or sent by gRPC, and
there is no second process to start, find or kill.

Clients are distributed over the devices by a queue. Results are combined in the order
of the clients, and each call of each client begins as in a new session: without
variables and tables, with seeded random operations at the start of their streams. So
results do not depend on the number and speed of devices, except for draws of
`tf.random` without a seed.

Memory is nearly constant over the rounds, see `tensors` and
experiments/benchmarks/memory.py.
"""

import asyncio
import concurrent.futures
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import cancellation
from tensorflow.python.eager import context as eager_context

from tff_fedss.errors import check_range
from tff_fedss.runtime import arguments, compiler, gpus, program, threads, values
from tff_fedss.runtime.errors import ClientError, ServerError

# Time for a stopped computation to end.
_STOP_SECONDS = 5.0


class _Device:
    """A device of one invocation, on which a computation runs."""

    def __init__(self, invocation: "_Invocation", name: str):
        self._invocation = invocation
        self._takes_everything = "CPU" in name
        self.name = name
        self.num_clients = invocation.num_clients

    def put(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the tensors, or copies of them, on this device."""
        return [t if t.device == self.name else self._copy(t) for t in tensors]

    def _copy(self, tensor: tf.Tensor) -> tf.Tensor:
        # TensorFlow keeps data sets, strings and small integers in the host's memory.
        if tensor.dtype in (tf.variant, tf.resource, tf.string) or (
            tensor.dtype == tf.int32 and not self._takes_everything
        ):
            return tensor
        if tensor.device != self._invocation.server:
            return _copy_to(tensor, self.name)
        # A value that the server sends to all clients is copied once to each device.
        copies, key = self._invocation.copies, (id(tensor), self.name)
        if key not in copies:
            copies[key] = tensor, _copy_to(tensor, self.name)
        return copies[key][1]

    def note_training_on_host(self) -> None:
        """Records that a computation on this device computes gradients on the CPU."""
        self._invocation.trained_on_host = True

    def for_each_client(
        self,
        function: Callable[[int, "_Device"], Any],
        read: Callable[[int], None] | None = None,
    ) -> list[Any]:
        """Calls a function for each client of the round, and returns its results."""
        return self._invocation.for_each_client(function, read)


def _copy_to(tensor: tf.Tensor, device: str) -> tf.Tensor:
    with tf.device(device):
        return tf.identity(tensor)


class _Invocation:
    """One run of one computation.

    Args:
        slots: A device per client that may run at the same time; the first is also
            that of the server's work.
        reads_ahead: Whether the data of the next clients are read ahead.
    """

    def __init__(
        self,
        num_clients: int,
        slots: Sequence[str],
        workers: threads.Threads,
        reads_ahead: bool,
    ):
        self.num_clients = num_clients
        # (id of a tensor at the server, device) -> the tensor and its copy there.
        self.copies: dict[tuple[int, str], tuple[tf.Tensor, tf.Tensor]] = {}
        # A name, not a `_Device`, which refers to this invocation: in a reference cycle
        # the copies would be freed only by Python's next full collection.
        self.server = slots[0]
        self._slots = slots
        self._threads = workers
        self._reads_ahead = reads_ahead
        self.client_devices: set[str] = set()
        self.trained_on_host = False
        self.waits: list[float] = []  # Seconds of a device's wait for a client's data.
        self._stopped = threading.Event()
        self._canceller = cancellation.CancellationManager()

    def run(self, node: program.Node, argument: Any) -> Any:
        """Evaluates a program on an argument, in a separate thread.

        The caller's thread only waits, so that it can receive signals.

        Raises:
            ClientError: If a client's computation failed.
            ServerError: If TensorFlow failed at the server.
        """
        server = _Device(self, self.server)
        with cancellation.CancellationManagerContext(self._canceller):
            evaluation = self._threads.start(lambda: node({}, server)(argument, server))
            try:
                return evaluation.result()
            except tf.errors.OpError as error:
                raise ServerError(error) from error
            except BaseException:
                if not evaluation.done():
                    # Ctrl-C: the result is no longer needed.
                    self.stop()
                    concurrent.futures.wait([evaluation], _STOP_SECONDS)
                raise

    def stop(self) -> None:
        """Stops all running work."""
        self._stopped.set()
        self._canceller.start_cancel()

    def for_each_client(
        self,
        function: Callable[[int, _Device], Any],
        read: Callable[[int], None] | None = None,
    ) -> list[Any]:
        """Calls a function for each client, on all devices.

        Args:
            function: Maps (client index, device) to the client's result.
            read: Called with a client's index before `function`, by a thread that reads
                ahead, if this invocation does.

        Returns:
            The results in the order of the clients.

        Raises:
            ClientError: If a client failed; the others are stopped.
        """
        results: list[Any] = [None] * self.num_clients
        failures: list[tuple[int, BaseException]] = []
        waiting = iter(range(self.num_clients))  # Each next() of it is atomic.
        here, *elsewhere = self._slots[: max(1, self.num_clients)]
        num_slots = 1 + len(elsewhere)
        # In memory are the computing clients, and as many that come next.
        room = threading.Semaphore(2 * num_slots)
        is_ahead = read is not None and self._reads_ahead
        reads = [concurrent.futures.Future() for _ in results] if is_ahead else []

        def read_all() -> None:
            for k, future in enumerate(reads):
                room.acquire()
                try:
                    if not self._stopped.is_set():
                        read(k)
                    future.set_result(None)
                except BaseException as error:  # Raised by the waiting thread.
                    future.set_exception(error)

        def work(name: str) -> None:
            device = _Device(self, name)
            for k in waiting:
                try:
                    if reads:
                        start = time.monotonic()
                        reads[k].result()
                        self.waits.append((time.monotonic() - start) / num_slots)
                    if not self._stopped.is_set():
                        results[k] = function(k, device)
                        self.client_devices.update(_devices_of(results[k]))
                except BaseException as error:  # Raised by the first thread.
                    failures.append((k, error))
                    self.stop()
                finally:
                    room.release()

        others = [self._threads.start(read_all)] if reads else []
        others += [
            self._threads.start(functools.partial(work, name)) for name in elsewhere
        ]
        work(here)
        concurrent.futures.wait(others)
        if failures:
            # The others may be clients stopped because of the first error.
            client, error = next(
                (f for f in failures if not isinstance(f[1], tf.errors.CancelledError)),
                failures[0],
            )
            raise ClientError(client, self.num_clients, error) from error
        return results


def _devices_of(value: Any) -> set[str]:
    """Returns the devices that hold, and thus computed, the floats of a value.

    Other tensors may be in the host's memory, whichever device computed them.
    """
    return {
        part.backing_device
        for part in values.flatten(value)
        if isinstance(part, tf.Tensor) and part.dtype.is_floating
    }


class InProcessContext(tff.framework.SyncContext):
    """A synchronous TFF context that computes with TensorFlow in this process.

    Only one context of a process may compute at a time, since TensorFlow knows only one
    manager of cancellations: a failure would stop the others' clients, too.

    A failure of a running computation raises a `ComputationError`: a `ClientError` with
    the client, or a `ServerError`, with TensorFlow's own error as the `__cause__`. An
    argument that does not fit raises a TypeError or a ValueError, and an unsupported
    computation a NotImplementedError, before the run (except for keys of
    `federated_select` that are out of range, a ValueError during the run).

    Attributes:
        client_devices: The names of the devices that actually computed floats for
            clients.
        trained_on_host: Whether a computation has computed gradients inside tf.data, as
            `tff.learning` does by default: TensorFlow runs that on the CPU, though the
            results may come from a GPU. On GPUs use the argument
            loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR.
        waiting_seconds: How long devices have waited for data that are read ahead; the
            mean of the devices.
        close: Ends the threads of the context; a no-argument function. Runs
            automatically when the context is dropped.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        clients_per_device: int | None = None,
        default_num_clients: int = 0,
        reads_ahead: bool | None = None,
    ):
        """Sets the devices; the defaults are found when the first computation runs.

        Until then TensorFlow's devices can be configured.

        Args:
            devices: Names of logical TensorFlow devices, such as "GPU:0", for the
                clients, and the first for the server; by default all GPUs or, where
                there are none, all CPU devices.
            clients_per_device: Number of clients that may run on a device at once. More
                use a device better and need more memory. By default 1 on a GPU; CPU
                devices share the cores that this process may use.
            default_num_clients: Number of clients of a computation whose argument has
                no list of client values, such as one that only broadcasts.
            reads_ahead: Whether the next client's data set is read into memory while
                others compute, once: a client that iterates over it twice sees the same
                order. By default only with GPUs, since a CPU is busy then.

        Raises:
            ValueError: If there is no such device, clients_per_device is not positive,
                or default_num_clients is negative.
        """
        if clients_per_device is not None:
            check_range("clients_per_device", clients_per_device, 1, whole=True)
        check_range("default_num_clients", default_num_clients, 0, whole=True)
        gpus.let_memory_grow(tf.config.list_physical_devices("GPU"))
        # On a GPU it would transpose each image before a convolution and back before
        # the following normalization. It does nothing on CPUs.
        tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
        if devices is not None:
            check_range("the number of devices", len(devices), 1)
            devices = tuple(map(_full_name, devices))
        self._named_devices = devices
        self._clients_per_device = clients_per_device
        self._default_num_clients = default_num_clients
        self._named_reads_ahead = reads_ahead
        self.client_devices: set[str] = set()
        self.trained_on_host = False
        self.waiting_seconds = 0.0
        builder = program.Builder()
        self._compile = compiler.Cache(
            lambda comp: builder.build(
                compiler.compile_to_calls(compiler.without_secure_sums(comp))
            )
        )
        self._converter = values.Converter()
        self._threads = threads.Threads()
        self.close = weakref.finalize(self, self._threads.close)

    @functools.cached_property
    def devices(self) -> tuple[str, ...]:
        """The full names of the devices of the clients."""
        if self._named_devices is not None:
            return self._named_devices
        found = tf.config.list_logical_devices("GPU")
        found = found or tf.config.list_logical_devices("CPU")
        return tuple(_full_name(device.name) for device in found)

    @property
    def _reads_ahead(self) -> bool:
        if self._named_reads_ahead is not None:
            return self._named_reads_ahead
        return any("GPU" in device for device in self.devices)

    @functools.cached_property
    def _slots(self) -> tuple[str, ...]:
        """A device for each client that may run at the same time."""
        number = self._clients_per_device
        if number is None:
            cores = len(os.sched_getaffinity(0))
            on_cpu = all("CPU" in device for device in self.devices)
            number = max(1, cores // len(self.devices)) if on_cpu else 1
        # All first slots before all second ones, so that few clients spread over all
        # devices.
        return self.devices * number

    def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
        """Runs a computation; called by TFF.

        Returns:
            Its result: NumPy arrays (read-only) and data sets in the containers of the
            computation's result type.

        Raises:
            ClientError: If a client's computation failed; a `ComputationError`.
            NotImplementedError: If this runtime lacks a part of the computation; the
                message names it.
            ServerError: If TensorFlow failed at the server; a `ComputationError`.
            TypeError: If the argument does not fit the computation's type.
            ValueError: If lists of client values have several lengths, a value of all
                clients is requested without clients, or a client selects by a key that
                is out of range.
        """
        with eager_context.eager_mode():
            result = self.compute(comp, arg)
            return self._converter.to_python(result, comp.type_signature.result)

    def compute(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
        """Runs a computation; returns the runtime's own value, see `values`."""
        parameter_type = comp.type_signature.parameter
        with eager_context.eager_mode():
            node = self._compile(comp)
            num_clients = arguments.count_clients(arg, parameter_type)
            if num_clients is None:
                num_clients = self._default_num_clients
            argument = (
                None
                if parameter_type is None
                else self._converter.from_python(arg, parameter_type, num_clients)
            )
            invocation = _Invocation(
                num_clients, self._slots, self._threads, self._reads_ahead
            )
            result = invocation.run(node, argument)
            self.client_devices |= invocation.client_devices
            self.trained_on_host |= invocation.trained_on_host
            self.waiting_seconds += sum(invocation.waits)
            return result


class AsyncInProcessContext(tff.framework.AsyncContext):
    """An asynchronous TFF context around an `InProcessContext`.

    It is for `tff.program.NativeFederatedContext`. The computations run one after
    another, in the order of their invocation.

    Args:
        context: Where computations run; by default a new `InProcessContext`.
    """

    def __init__(self, context: InProcessContext | None = None):
        self._context = context or InProcessContext()
        self._threads = threads.Threads()
        self._newest = threading.Event()  # Set when the newest computation has ended.
        self._newest.set()

    async def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
        """Runs a computation; called by TFF. See `InProcessContext.invoke`."""
        if asyncio.iscoroutine(arg):
            arg = await arg  # TFF makes a coroutine if an argument contains others.
        before, own = self._newest, threading.Event()
        self._newest = own

        def in_turn() -> Any:
            before.wait()
            try:
                return self._context.invoke(comp, arg)
            finally:
                own.set()

        # Shielded: the thread sets the result also after Ctrl-C has cancelled the wait.
        return await asyncio.shield(asyncio.wrap_future(self._threads.start(in_turn)))


def _full_name(device: str) -> str:
    """Returns the full name of a logical device: "/job:localhost/.../device:CPU:0"."""
    spec = tf.DeviceSpec.from_string(
        device if device.startswith("/") else f"/device:{device}"
    )
    known = [d.name for d in tf.config.list_logical_devices()]
    for name in known:
        other = tf.DeviceSpec.from_string(name)
        if (other.device_type, other.device_index) == (
            spec.device_type,
            spec.device_index or 0,
        ):
            with tf.device(name):
                return tf.zeros([]).device
    raise ValueError(f"There is no device '{device}'. TensorFlow sees {known}.")


def use_one_thread_per_operation() -> None:
    """Gives each operation on the CPU one thread, before TensorFlow computes.

    Clients train side by side, one on each core, so more threads would wait for each
    other: with one, a round of MobileNetV3-Small with 8 clients takes 20 % less
    processor time (docs/results/benchmarks/tried.md). With more, the rounding of a
    matrix product depends on the number of cores, and so do results. Work without
    clients is slower with one. Raises RuntimeError if it is too late.
    """
    tf.config.threading.set_intra_op_parallelism_threads(1)


def set_in_process_context(*args: Any, **kwargs: Any) -> InProcessContext:
    """Sets a new `InProcessContext` as the thread's default context."""
    context = InProcessContext(*args, **kwargs)
    tff.framework.set_default_context(context)
    return context
