"""Daemon threads that are kept for later work.

TensorFlow never frees some memory of every thread that has called it, so threads are
reused. At exit Python would wait for those of a `ThreadPoolExecutor`, which may be
compiling for minutes.
"""

import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import Any


class Threads:
    """Threads that wait for work."""

    def __init__(self):
        self._idle: list[queue.SimpleQueue] = []
        self._closed = threading.Event()

    def start(self, work: Callable[[], Any]) -> concurrent.futures.Future:
        """Runs some work in a thread; returns a future of its result."""
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
        future = concurrent.futures.Future()
        inbox.put((work, future))
        return future

    def close(self) -> None:
        """Ends the threads; busy ones after their work."""
        self._closed.set()
        while self._idle:
            self._idle.pop().put(None)


def _serve(
    inbox: queue.SimpleQueue, idle: list[queue.SimpleQueue], closed: threading.Event
) -> None:
    while (order := inbox.get()) is not None:
        work, future = order
        try:
            result, error = work(), None
        except BaseException as raised:  # Raised where the result is awaited.
            result, error = None, raised
        # Idle before the result is set; otherwise the next work would get another
        # thread.
        if not closed.is_set():
            idle.append(inbox)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        del order, work, future, result, error  # These hold the values of a round.
        if closed.is_set():
            return
