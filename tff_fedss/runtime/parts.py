"""Sums over clients, in parts of a fixed size, equal on one machine and on many.

Sums of floats depend on their order, so the order depends on the clients alone: parts
of eight are added client by client, and the parts' sums pair by pair. A list that grows
by the rows of each of K clients is thus copied log K times, not K times.
"""

from collections.abc import Callable
from typing import Any

# It decides the order of sums, and thus their last digits.
CLIENTS_PER_PART = 8


def parts_of(num_clients: int) -> list[slice]:
    """Cuts clients into parts; the last may be smaller."""
    return [
        slice(start, min(start + CLIENTS_PER_PART, num_clients))
        for start in range(0, num_clients, CLIENTS_PER_PART)
    ]


class Sum:
    """Adds the sums of parts, neighbours first, always in the same order."""

    def __init__(self, num_parts: int, merge: Callable[[Any, Any], Any]):
        self._counts = [num_parts]
        while self._counts[-1] > 1:
            self._counts.append(-(-self._counts[-1] // 2))
        self._merge = merge
        self._held: dict[tuple[int, int], Any] = {}

    def add(self, index: int, value: Any) -> None:
        """Adds the sum of a part."""
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
        """The sum of all parts, after all were added."""
        return self._held[len(self._counts) - 1, 0]
