"""TFF's own C++ runtime, without its leaked processes.

TFF starts its `worker_binary` as a child process and, in release 0.87, does not end it:
the worker outlives Python, keeps 1-2 GB of memory and the inherited standard output, so
that a pipe behind the program never closes. The context in this module runs the same
worker and compiler, and owns the process, which ends with the program, whether
normally, by an exception, Ctrl-C, SIGTERM or SIGKILL.
"""

import asyncio
import pathlib
import socket
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

from tff_fedss.runtime.errors import ComputationError, WorkerError, describe

_WORKER_BINARY = pathlib.Path(tff.__file__).parent / "data" / "worker_binary"
_UNLIMITED_MESSAGES = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
_START_TIMEOUT_SECONDS = 120.0
_MAX_ATTEMPTS = 3


class _Channel:
    """A channel to a worker that does not report changes of its connection.

    TFF's stub subscribes to changes permanently. The thread that calls back could do so
    while the interpreter shuts down, which crashes it.
    """

    def __init__(self, port: int):
        self._channel = grpc.insecure_channel(f"localhost:{port}", _UNLIMITED_MESSAGES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Does nothing."""


class _Worker:
    """One worker process, started when first needed and again after `stop`."""

    def __init__(self):
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._channel: _Channel | None = None
        self._log: Any = None

    def executor(self, cardinalities: Any) -> tff.framework.RemoteExecutor:
        """Returns an executor for a round of these cardinalities."""
        with self._lock:
            if self._process is None:
                self._start()
            self._check_alive()
            channel = self._channel
        cardinalities.setdefault(tff.CLIENTS, 0)
        executor = tff.framework.RemoteExecutor(
            tff.framework.RemoteExecutorGrpcStub(channel)
        )
        executor.set_cardinalities(cardinalities)
        return executor

    def stop(self) -> None:
        """Ends the process, if there is one; it has no state to save."""
        # No lock: this runs in exit handlers, where the lock's holder may be frozen.
        process, self._process, self._channel = self._process, None, None
        if process is not None:
            process.kill()
            process.wait()

    def _start(self) -> None:
        # The worker's messages go to an unnamed file, not to our output: a pipe behind
        # the program must close when the program ends.
        self._log = tempfile.TemporaryFile()
        port = portpicker.pick_unused_port()
        # `setpriv` asks the kernel to kill the worker when the thread that starts it
        # ends (so this thread must stay): after SIGKILL no code of ours can run.
        self._process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", str(_WORKER_BINARY)),
                *(f"--port={port}", "--max_concurrent_computation_calls=-1"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            # Ctrl-C in a terminal goes to the whole process group. The worker must
            # survive it, since the program may finish its work first.
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while True:
            try:
                socket.create_connection(("localhost", port), 1.0).close()
                break
            except OSError as error:
                self._check_alive()
                if time.monotonic() > deadline:
                    self.stop()
                    raise WorkerError(
                        "TFF's worker did not answer within "
                        f"{_START_TIMEOUT_SECONDS:.0f} s of its start."
                    ) from error
                time.sleep(0.05)
        self._channel = _Channel(port)

    def _check_alive(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        self._process = None  # The next call can try again.
        how = f"exited with code {code}"
        if code < 0:
            hint = " (out of memory?)" if code == -9 else ""
            how = f"was killed by signal {-code}{hint}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        raise WorkerError("\n".join([f"TFF's worker process {how}.", *lines[-5:]]))


def _shut_down(worker: _Worker, loop: asyncio.AbstractEventLoop) -> None:
    worker.stop()
    loop.call_soon_threadsafe(loop.stop)


class NativeContext(tff.framework.SyncContext):
    """A synchronous TFF context over a worker process that it owns.

    Attributes:
        close: Ends the worker; a no-argument function. Runs automatically when the
            context is dropped or, at the latest, when the program exits.
    """

    def __init__(self):
        """Does not start the worker, which starts with the first computation."""
        self._worker = _Worker()
        self._context = tff.framework.AsyncExecutionContext(
            executor_fn=tff.framework.ResourceManagingExecutorFactory(
                self._worker.executor
            ),
            compiler_fn=tff.backends.native.desugar_and_transform_to_native,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )
        # TFF's remote executors are coroutines that block. In a separate thread they
        # leave the caller's free to receive signals.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.close = weakref.finalize(self, _shut_down, self._worker, self._loop)

    def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
        """Runs a computation; called by TFF.

        If the worker dies (TFF's has a rare crash), the computation is repeated in a
        new one. It is a function of its argument, so nothing is lost or counted twice.

        Raises:
            ComputationError: If the computation failed.
            WorkerError: If the worker died at each attempt, with the last lines that it
                wrote.
            TypeError, ValueError: If the argument does not fit the computation.
        """
        if not self.close.alive:
            raise WorkerError("The context is closed.")
        for attempts_left in reversed(range(_MAX_ATTEMPTS)):
            future = asyncio.run_coroutine_threadsafe(
                self._context.invoke(comp, arg), self._loop
            )
            try:
                return future.result()
            except grpc.RpcError as error:
                raise ComputationError(describe(error)) from error
            except WorkerError as error:
                if not attempts_left:
                    raise
                logging.warning("%s Repeating this computation.", error)
            except (KeyboardInterrupt, SystemExit):
                # The result is no longer needed. Ending the worker frees the thread
                # that waits for it, so that the program can end at once.
                future.cancel()
                self._worker.stop()
                raise


def set_native_context() -> NativeContext:
    """Sets a new `NativeContext` as the thread's default context."""
    context = NativeContext()
    tff.framework.set_default_context(context)
    return context
