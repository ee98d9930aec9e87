"""The contender's side of the protocol between contenders and driver.

It needs NumPy only, since every peer's virtual environment imports it. Commands come
through stdin, one word a line. Replies go through a separate pipe, a line of JSON each,
so that a framework's output does not disturb them.

| command      | reply                                                                 |
|--------------|-----------------------------------------------------------------------|
| build        | {"seconds": of making the learning process, "settings": words}        |
| round        | {"seconds": of one round}                                             |
| weights PATH | {"loss": of the global model over all clients' data}; writes the file |
| quit         | none; the process ends                                                |

An exception is answered with {"error": its traceback}, and ends the process.
"""

import abc
import argparse
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

import numpy as np

from experiments.benchmarks.workload import Workload


class Contender(abc.ABC):
    """The base class of contenders.

    Attributes:
        settings: The configuration in a few words, for the reader.
    """

    settings = ""

    @abc.abstractmethod
    def build(self) -> None:
        """Builds all that the first round needs, except data."""

    @abc.abstractmethod
    def one_round(self) -> None:
        """Does one round over all clients, to the end."""

    @abc.abstractmethod
    def weights(self) -> dict[str, np.ndarray]:
        """Returns the global model, in the layout of `Workload.initial_weights`."""

    @abc.abstractmethod
    def loss(self) -> float:
        """Returns the global model's mean loss over all clients' data."""

    def close(self) -> None:  # noqa: B027
        """Ends processes and threads that would outlive this process."""


class Turns:
    """Lets a framework with its own loop do one round at a time.

    The framework runs in a thread and calls `pause` between two rounds.
    """

    def __init__(self, run: Callable[[], None]):
        """Starts `run` and waits until it pauses or ends."""
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, args=(run,), daemon=True)

    def start(self) -> None:
        """Runs the framework up to the first pause."""
        self._thread.start()
        self._wait()

    def one_round(self) -> None:
        """Lets the framework run up to its next pause."""
        self._go.release()
        self._wait()

    def pause(self) -> None:
        """Called by the framework between two rounds."""
        self._paused.release()
        self._go.acquire()

    def _wait(self) -> None:
        self._paused.acquire()
        if self._error is not None:
            raise self._error

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
            raise RuntimeError("The framework ended early.")
        except BaseException as error:
            self._error = error
            self._paused.release()


def serve(make: Callable[..., Contender]) -> None:
    """Runs a contender's process.

    Args:
        make: (workload, **options) -> the contender. Options are strings; an unknown
            one must be an error.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--reply_fd", type=int, required=True)
    args = parser.parse_args()
    os.set_inheritable(args.reply_fd, False)  # Not for its workers.
    with os.fdopen(args.reply_fd, "w") as replies:

        def reply(**values):
            replies.write(json.dumps(values) + "\n")
            replies.flush()

        contender = None
        try:
            contender = make(args.workload, **args.options)
            reply()
            for line in sys.stdin:
                command, _, argument = line.strip().partition(" ")
                if command == "quit":
                    break
                if command == "build":
                    reply(
                        seconds=_seconds(contender.build), settings=contender.settings
                    )
                elif command == "round":
                    reply(seconds=_seconds(contender.one_round))
                elif command == "weights":
                    np.savez(argument, **contender.weights())
                    reply(loss=float(contender.loss()))
                else:
                    raise ValueError(f"Unknown command {command!r}.")
        except Exception:
            traceback.print_exc()
            reply(error=traceback.format_exc())
        finally:
            if contender is not None:
                contender.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Frameworks' threads that wait for another round would never end.
    os._exit(0)


def _seconds(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
