"""TFF's own C++ runtime, without its leaks.

TFF starts its `worker_binary` as a child process and, in release 0.87, forgets it: the
worker outlives Python, keeps 1-2 GB of memory and holds the inherited standard output,
so that a pipe behind the program never closes. The context in this module runs the same
worker and the same compiler, and owns the process: it ends with the program, whether
that ends normally, by an exception, by Ctrl-C, SIGTERM or SIGKILL.
"""

import subprocess
import tempfile
import threading
import time
import weakref
from typing import Any

import grpc
import portpicker
import tensorflow_federated as tff
from absl import logging

from tff_fedss.runtime import values, worker_service
from tff_fedss.runtime.errors import ComputationError, WorkerError, describe

_START_TIMEOUT_SECONDS = 120.0
_MAX_ATTEMPTS = 3


class _Worker:
    """One worker process, started when first needed and again after `stop`."""

    def __init__(self, max_concurrent_computation_calls: int, default_num_clients: int):
        self._default_num_clients = default_num_clients
        self._max_concurrent_computation_calls = max_concurrent_computation_calls
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._channel: worker_service.Channel | None = None
        self._log: Any = None

    def executor(self, cardinalities) -> tff.framework.RemoteExecutor:
        """Returns an executor for a round of these cardinalities."""
        with self._lock:
            if self._process is None:
                self._start()
            elif self._process.poll() is not None:
                message = self._describe_death()
                self._process = None  # The next call may try anew.
                raise WorkerError(message)
            channel = self._channel
        return worker_service.create_executor(
            channel, cardinalities, self._default_num_clients
        )

    def stop(self) -> None:
        """Ends the process, if there is one. The worker has no state worth saving."""
        # No lock: this runs in exit handlers, where its holder may be frozen.
        process, self._process, self._channel = self._process, None, None
        if process is not None:
            process.kill()
            process.wait()

    def _start(self) -> None:
        # The worker's own messages go to a file without a name, not to our output: a
        # pipe behind the program must close when the program ends.
        self._log = tempfile.TemporaryFile()
        port = portpicker.pick_unused_port()
        self._process = worker_service.start_process(
            port, self._max_concurrent_computation_calls, self._log
        )
        channel = worker_service.Channel(f"localhost:{port}")
        answered = threading.Event()
        channel.ask(lambda is_there: is_there and answered.set())
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while not answered.wait(0.05):
            if self._process.poll() is not None:
                channel.close()
                message = self._describe_death()
                self._process = None
                raise WorkerError(message)
            if time.monotonic() > deadline:
                channel.close()
                self.stop()
                raise WorkerError(
                    "TFF's worker did not answer within "
                    f"{_START_TIMEOUT_SECONDS:.0f} s of its start."
                )
        self._channel = channel

    def _describe_death(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return "\n".join([worker_service.describe_death(self._process), *lines[-5:]])


def _shut_down(worker: _Worker, invoker: worker_service.Invoker) -> None:
    worker.stop()
    invoker.stop()


class NativeContext(tff.framework.SyncContext):
    """A synchronous TFF context over a worker process that it owns.

    Attributes:
        close: Ends the worker for good; a no-argument function. Runs by itself when the
            context is dropped and, at the latest, when the program exits.
    """

    def __init__(
        self, max_concurrent_computation_calls: int = -1, default_num_clients: int = 0
    ):
        """Creates the context; the worker starts with the first computation.

        Args:
            max_concurrent_computation_calls: How many clients may run at once in the
                worker; not positive: no limit. Fewer need less memory.
            default_num_clients: How many clients a computation has whose argument has
                no list of client values.

        Raises:
            ValueError: If default_num_clients is negative.
        """
        values.check_default_num_clients(default_num_clients)
        self._worker = _Worker(max_concurrent_computation_calls, default_num_clients)
        self._invoker = worker_service.Invoker(self._worker.executor)
        self.close = weakref.finalize(self, _shut_down, self._worker, self._invoker)

    def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
        """Runs a computation; called by TFF.

        If the worker dies (TFF's has a rare crash of its own), the computation is done
        again in a new one: it is a function of its argument, so nothing is lost or
        counted twice.

        Args:
            comp: The computation.
            arg: Its argument.

        Returns:
            Its result.

        Raises:
            ComputationError: If the computation failed.
            WorkerError: If the worker died at each attempt, with the last lines that it
                wrote.
            TypeError, ValueError: If the argument does not fit the computation.
        """
        for attempts_left in reversed(range(_MAX_ATTEMPTS)):
            future = self._invoker.submit(comp, arg)
            try:
                return future.result()
            except grpc.RpcError as error:
                raise ComputationError(describe(error)) from error
            except WorkerError as error:
                if not attempts_left:
                    raise
                logging.warning("%s Doing this computation again.", error)
            except (KeyboardInterrupt, SystemExit):
                # Nobody waits for this call any more. Ending the worker frees the
                # thread that is blocked on it, so that the program can end at once.
                future.cancel()
                self._worker.stop()
                raise


def set_native_context(
    max_concurrent_computation_calls: int = -1, default_num_clients: int = 0
) -> NativeContext:
    """Makes a `NativeContext` the default context of the calling thread.

    Args:
        max_concurrent_computation_calls: See `NativeContext`.
        default_num_clients: See `NativeContext`.

    Returns:
        The context.
    """
    context = NativeContext(max_concurrent_computation_calls, default_num_clients)
    tff.framework.set_default_context(context)
    return context
