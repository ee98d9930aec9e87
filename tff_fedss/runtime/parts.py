"""Sums over clients, in parts of a fixed size: the same on one machine and on many.

Sums of floats depend on their order. So the order follows from the clients alone: parts
of eight are added one client after another, and the parts' sums pair by pair. So a
list that grows by the rows of each of K clients is copied log K times, and not K times.
"""

from collections.abc import Callable
from typing import Any

# It decides the order of sums, and so their last digits.
CLIENTS_PER_PART = 8


def parts_of(num_clients: int) -> list[slice]:
    """Cuts clients into parts; the last one may be short."""
    return [
        slice(start, min(start + CLIENTS_PER_PART, num_clients))
        for start in range(0, num_clients, CLIENTS_PER_PART)
    ]


class Sum:
    """Adds the sums of parts, neighbours first, in an order that is always the same."""

    def __init__(self, num_parts: int, merge: Callable[[Any, Any], Any]):
        self._counts = [num_parts]
        while self._counts[-1] > 1:
            self._counts.append(-(-self._counts[-1] // 2))
        self._merge = merge
        self._held: dict[tuple[int, int], Any] = {}

    def add(self, index: int, value: Any) -> None:
        """Takes the sum of a part."""
        for level, count in enumerate(self._counts):
            neighbour = (level, index ^ 1)
            if count == 1 or (index ^ 1 < count and neighbour not in self._held):
                self._held[level, index] = value
                return
            if index ^ 1 < count:
                other = self._held.pop(neighbour)
                pair = (other, value) if index % 2 else (value, other)
                value = self._merge(*pair)
            index //= 2

    def result(self) -> Any:
        """The sum of all parts, once they are there."""
        return self._held[len(self._counts) - 1, 0]
