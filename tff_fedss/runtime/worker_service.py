"""TFF's worker, seen from outside: its process, a channel to it, a context over it.

A worker is TFF's C++ `worker_binary`: a gRPC service that computes on the CPUs of its
machine. `native` keeps one for itself.
"""

import asyncio
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

import grpc
import tensorflow_federated as tff

_LAUNCHER = pathlib.Path(__file__).with_name("worker_launcher.py")
_WORKER_BINARY = pathlib.Path(tff.__file__).parent / "data" / "worker_binary"
_UNLIMITED_MESSAGES = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
# No such method exists. That gRPC says so is the sign of life: it comes at once, from
# the service itself, however busy the worker is.
_NO_METHOD = "/tff_fedss.Worker/IsThere"


def start_process(
    port: int, max_concurrent_computation_calls: int, output: IO
) -> subprocess.Popen:
    """Starts a worker on this machine that ends, at the latest, with this program.

    Call it from a thread that lasts: the kernel ends the worker with that thread.

    Args:
        port: Where it listens, on all addresses of this machine.
        max_concurrent_computation_calls: How many clients may run at once in the
            worker; not positive: no limit.
        output: Where its messages go.

    Returns:
        The process.
    """
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            str(_LAUNCHER),
            str(os.getpid()),
            str(_WORKER_BINARY),
            f"--port={port}",
            f"--max_concurrent_computation_calls={max_concurrent_computation_calls}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        # Ctrl-C in a terminal goes to the whole process group. The worker must not
        # die of it under a program that wants to finish its work first.
        start_new_session=True,
    )


def describe_death(process: subprocess.Popen) -> str:
    """Says in a sentence how a worker process that is no more has ended."""
    code = process.returncode
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    hint = " (out of memory?)" if code == -9 else ""
    return f"TFF's worker process {how}{hint}."


class Channel:
    """A channel to a worker that tells nobody when its connection changes.

    TFF's stub subscribes to that for good. The thread that would call back could still
    be doing so while the interpreter shuts down, which crashes it.
    """

    def __init__(self, address: str):
        """Creates the channel; it connects when it is first used.

        Args:
            address: "host:port".
        """
        self._channel = grpc.insecure_channel(address, _UNLIMITED_MESSAGES)
        self._no_method = self._channel.unary_unary(_NO_METHOD)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Does nothing."""
        del callback, try_to_connect

    def ask(self, callback: Callable[[bool], None]) -> None:
        """Asks the worker whether it is there, and does not wait for the answer.

        It goes on trying to connect until the channel is closed.

        Args:
            callback: Called with the answer, in another thread; with False, too, when
                the channel is closed.
        """
        call = self._no_method.future(b"", wait_for_ready=True)
        call.add_done_callback(
            lambda call: callback(call.code() is grpc.StatusCode.UNIMPLEMENTED)
        )


class Invoker:
    """A TFF context over a remote executor, in a thread of its own.

    TFF's remote executors are coroutines that block. So the caller's thread stays free
    to receive signals.
    """

    def __init__(
        self,
        create_executor: Callable[[Any], tff.framework.RemoteExecutor],
    ):
        """Starts the thread.

        Args:
            create_executor: Makes an executor for a computation's cardinalities.
        """
        self._context = tff.framework.AsyncExecutionContext(
            executor_fn=tff.framework.ResourceManagingExecutorFactory(create_executor),
            compiler_fn=tff.backends.native.desugar_and_transform_to_native,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def submit(
        self, comp: tff.framework.ConcreteComputation, arg: Any
    ) -> concurrent.futures.Future:
        """Starts a computation, after those that were started before.

        Args:
            comp: The computation.
            arg: Its argument.

        Returns:
            A future of its result.
        """
        return asyncio.run_coroutine_threadsafe(
            self._context.invoke(comp, arg), self._loop
        )

    def stop(self) -> None:
        """Ends the thread, after what it is blocked in."""
        self._loop.call_soon_threadsafe(self._loop.stop)


def create_executor(
    channel: Channel, cardinalities: Any, default_num_clients: int = 0
) -> tff.framework.RemoteExecutor:
    """Creates an executor over a worker.

    Args:
        channel: To the worker.
        cardinalities: How many clients the computation has, as TFF puts it.
        default_num_clients: How many it has if its argument does not say.

    Returns:
        The executor.
    """
    cardinalities.setdefault(tff.CLIENTS, default_num_clients)
    executor = tff.framework.RemoteExecutor(
        tff.framework.RemoteExecutorGrpcStub(channel)
    )
    executor.set_cardinalities(cardinalities)
    return executor
