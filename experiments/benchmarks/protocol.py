"""The contender's side of the protocol between contenders and driver.

It needs NumPy only, since every peer's virtual environment imports it. Both talk
through a connection of `multiprocessing`, which a framework's output does not disturb.
The driver sends the workload and the contender's options, and then commands:

| command         | reply                                                              |
|-----------------|--------------------------------------------------------------------|
| "build"         | {"seconds": of making the learning process, "settings": words}     |
| "round"         | {"seconds": of one round}                                          |
| "weights", PATH | {"loss": of the global model over all clients' data}; writes them  |
| "quit"          | none; the process ends                                             |

An exception is answered with {"error": its traceback}, and ends the process.
"""

import abc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection

import numpy as np


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
        """Takes the framework's loop, which `start` runs."""
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
    driver = connection.Connection(int(sys.argv[1]))
    os.set_inheritable(driver.fileno(), False)  # Not for its workers.
    contender = None
    try:
        workload, options = driver.recv()
        contender = make(workload, **options)
        driver.send({})
        while (command := driver.recv()) != "quit":
            if command == "build":
                seconds = _seconds(contender.build)
                driver.send({"seconds": seconds, "settings": contender.settings})
            elif command == "round":
                driver.send({"seconds": _seconds(contender.one_round)})
            else:
                _, path = command
                np.savez(path, **contender.weights())
                driver.send({"loss": float(contender.loss())})
    except EOFError:
        pass  # The driver has ended.
    except Exception:
        traceback.print_exc()
        driver.send({"error": traceback.format_exc()})
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
