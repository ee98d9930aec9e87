"""The sum of a round's parts: the same whichever comes first."""

import itertools

import pytest

from tff_fedss.runtime import parts


@pytest.mark.parametrize("num_parts", [1, 2, 3, 5, 6])
def test_parts_are_added_in_one_order(num_parts):
    found = set()
    for order in itertools.permutations(range(num_parts)):
        total = parts.Sum(num_parts, lambda a, b: (a, b))
        for index in order:
            total.add(index, index)
        found.add(total.result())
    assert len(found) == 1
    (result,) = found
    assert str(result).translate(str.maketrans("", "", "(), ")) == "".join(
        map(str, range(num_parts))
    )


def test_neighbours_are_added_as_soon_as_they_are_there():
    added = []
    total = parts.Sum(4, lambda a, b: added.append((a, b)) or a + b)
    for index in (2, 3, 1):
        total.add(index, 10**index)
    assert added == [(100, 1000)]
    total.add(0, 1)
    assert added[1:] == [(1, 10), (11, 1100)] and total.result() == 1111
