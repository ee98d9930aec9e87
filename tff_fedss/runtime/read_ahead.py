"""Reads the data of the clients that come next, while others compute on a GPU."""

import threading
from collections.abc import Callable


class ReadAhead:
    """Clients in their order, each of which is read before it is its turn.

    A thread reads; at most two clients for each place at work are in memory, the one
    that computes and the one that comes next.
    """

    def __init__(
        self,
        read: Callable[[int], None],
        num_clients: int,
        num_places: int,
        stopped: threading.Event,
    ):
        """Reads nothing yet.

        Args:
            read: Reads a client.
            num_clients: How many there are.
            num_places: How many compute at once.
            stopped: Set when nothing more is wanted.
        """
        self._read = read
        self._stopped = stopped
        self._room = threading.Semaphore(2 * num_places)
        self._ready = [threading.Event() for _ in range(num_clients)]
        self._errors: dict[int, BaseException] = {}

    def run(self) -> None:
        """Reads all of them; for a thread of its own. Does not raise."""
        try:
            for k, ready in enumerate(self._ready):
                self._room.acquire()
                if self._stopped.is_set():
                    return
                try:
                    self._read(k)
                except BaseException as error:  # To be raised where it is waited for.
                    self._errors[k] = error
                ready.set()
        finally:
            for ready in self._ready:
                ready.set()

    def wait(self, k: int) -> None:
        """Waits until a client is read.

        Raises:
            BaseException: What reading it has raised.
        """
        self._ready[k].wait()
        if k in self._errors:
            raise self._errors[k]

    def done(self) -> None:
        """Says that a client needs what was read no more, or that none is wanted."""
        self._room.release()
