"""Threads that are kept for the next work."""

import queue
import threading
from collections.abc import Callable


class Threads:
    """Threads that wait for work and are used again.

    TensorFlow keeps some memory for good for every thread that has ever called it.
    """

    def __init__(self):
        self._idle: list[queue.SimpleQueue] = []
        self._closed = threading.Event()

    def start(self, work: Callable[[], None]) -> threading.Event:
        """Does some work in a thread.

        Args:
            work: What to do; must not raise.

        Returns:
            An event that is set when it is done.
        """
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = queue.SimpleQueue()
            threading.Thread(
                target=_serve,
                args=(inbox, self._idle, self._closed),
                name="tff_fedss in_process",
                daemon=True,
            ).start()
        done = threading.Event()
        inbox.put((work, done))
        return done

    def close(self) -> None:
        """Ends the threads; those that are busy, after their work."""
        self._closed.set()
        while self._idle:
            self._idle.pop().put(None)


def _serve(
    inbox: queue.SimpleQueue,
    idle: list[queue.SimpleQueue],
    closed: threading.Event,
) -> None:
    while (order := inbox.get()) is not None:
        work, done = order
        work()
        del order, work  # They hold the values of a round.
        if not closed.is_set():
            idle.append(inbox)
        done.set()
        if closed.is_set():
            return
