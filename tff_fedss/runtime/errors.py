"""Errors of a context that failed to run a computation.

    ExecutionError              raised by `invoke` for a valid computation and argument
    |-- ComputationError        the computation itself failed
    |   |-- ClientError         ... at a client
    |   `-- ServerError         ... at the server
    `-- WorkerError             its worker did not start, or died

An argument that does not fit the computation raises a TypeError or a ValueError, as in
TFF's own contexts; a computation that a runtime does not support raises a
NotImplementedError.
"""

import re

import grpc
import tensorflow as tf


class ExecutionError(RuntimeError):
    """A computation failed to run; the base of all such errors."""


class ComputationError(ExecutionError):
    """A computation failed. Its own error is the `__cause__`."""


class ClientError(ComputationError):
    """A client's computation failed.

    Attributes:
        client: The client's index in the round, from 0.
    """

    def __init__(self, client: int, num_clients: int, cause: BaseException):
        super().__init__(f"Client {client} of {num_clients} failed: {describe(cause)}")
        self.client = client

    def of(self, client_id: str) -> "ClientError":
        """Returns the error with the client's id instead of its index."""
        self.args = (f"Client {client_id!r} failed: {describe(self.__cause__)}",)
        return self


class ServerError(ComputationError):
    """The server's computation failed."""

    def __init__(self, cause: BaseException):
        super().__init__(f"The server failed: {describe(cause)}")


class WorkerError(ExecutionError):
    """A worker or an actor could not be started or reached, or died."""


# TensorFlow's additions to the message of an error in a graph.
_NO_NEWS = (
    "Graph execution error:",
    "Detected at node",
    'File "',
    "<stack traces unavailable>",
)
_PLACES = re.compile(r"assertion failed: | \[\[\{\{node .*?\}\}\]\]| \[Op:\w+\]")


def describe(error: BaseException) -> str:
    """Returns an error's message and type in one line, without additions."""
    if isinstance(error, tf.errors.OpError):
        text = error.message
    elif isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        text = f"{error.details()}"
    else:
        text = str(error)
    lines = [line.strip() for line in text.splitlines()]
    news = " ".join(line for line in lines if line and not line.startswith(_NO_NEWS))
    return f"{_PLACES.sub('', news)} [{type(error).__name__}]"
