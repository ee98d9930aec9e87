"""Ctrl-C and SIGTERM, put off to the end of a round."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def put_off(unit: str) -> Iterator[Callable[[], None]]:
    """Puts off the first request to stop; the second one is heeded at once.

    A run that is trained in place has no copy of its last whole round, so a round that
    was stopped in its middle would be lost together with those since the last
    checkpoint.

    Args:
        unit: What a round is called.

    Yields:
        A function to call between rounds. It does what a signal that has come in the
        meantime asks for, which is as a rule to raise KeyboardInterrupt or SystemExit.
    """
    # Only the main thread is told about signals.
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    # Signals that are ignored, or end the program without Python, stay as they are.
    handlers = {number: h for number, h in handlers.items() if callable(h)}
    waiting: list[int] = []

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        if waiting:
            restore()
            handlers[number](number, frame)
            return
        waiting.append(number)
        print(
            f"\nStopping after this {unit}; once more stops at once, and goes on from "
            "the last checkpoint.",
            file=sys.stderr,
            flush=True,
        )

    def heed() -> None:
        if waiting:
            restore()
            handlers[waiting[0]](waiting[0], None)

    for number in handlers:
        signal.signal(number, note)
    try:
        yield heed
        heed()  # It came in the last round.
    finally:
        restore()
