import pytest

from tff_fedss import tasks


class OfChance(tasks.Classification):
    """A task of n classes, without data."""

    def __init__(self, num_classes):
        self._num_classes = num_classes

    @property
    def chance(self):
        return 1 / self._num_classes


@pytest.mark.parametrize(
    "num_classes, top1, mean_cosine, expected",
    [
        (1000, 0.004, 0.99, True),
        (1000, 0.006, 0.99, False),  # More than five times chance.
        (1000, 0.001, 0.90, False),  # Images do not look alike.
        (7, 0.15, 0.99, True),
        (7, 0.22, 0.99, True),
        (7, 0.25, 0.99, False),  # Five times chance would be 0.71.
        (2, 0.50, 0.99, True),
        (2, 0.60, 0.99, False),
    ],
)
def test_collapse(num_classes, top1, mean_cosine, expected):
    measured = {"top1": top1, "mean_cosine": mean_cosine}
    assert OfChance(num_classes).has_collapsed(measured) == expected
