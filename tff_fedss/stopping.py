"""Deferred shutdown: Ctrl-C and SIGTERM wait for the end of a round."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_checks: list[Callable[[], None]] = []


def stop_if_asked() -> None:
    """Handles a deferred signal, as a rule by raising an exception.

    Call it between rounds, and in a round that makes no progress, such as one that
    waits for machines.
    """
    if _checks and threading.current_thread() is threading.main_thread():
        _checks[-1]()


@contextlib.contextmanager
def deferred(unit: str) -> Iterator[None]:
    """Defers the first request to stop; the second one stops at once.

    A run that is trained in place has no copy of its last whole round: stopped within a
    round, it would lose all rounds since the last checkpoint.

    Args:
        unit: The word for a round.

    Raises:
        BaseException: At its end, if a signal came in the last round: as a rule
            KeyboardInterrupt or SystemExit.
    """
    # Only the main thread receives signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    # Signals that are ignored, or end the program without Python, stay as they are.
    handlers = {number: h for number, h in handlers.items() if callable(h)}
    waiting: list[int] = []

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def defer(number: int, frame: object) -> None:
        if waiting:
            restore()
            handlers[number](number, frame)
            return
        waiting.append(number)
        print(
            f"\nStopping after this {unit}; once more stops at once, and the same "
            "command resumes from the last checkpoint.",
            file=sys.stderr,
            flush=True,
        )

    def check() -> None:
        if waiting:
            restore()
            handlers[waiting[0]](waiting[0], None)

    for number in handlers:
        signal.signal(number, defer)
    _checks.append(check)
    try:
        yield
        check()  # The signal came in the last round.
    finally:
        _checks.pop()
        restore()
