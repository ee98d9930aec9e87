"""The numbers that the FedSS paper prints, as far as its text can be read.

The tables of the text that we have lost cells in conversion. A lost cell is None here
and blank in every table of ours; nothing is guessed. Sources are sections and tables of
the paper.
"""

import dataclasses
from collections.abc import Mapping

# A cell of a table: a method, by its name on the command line, and m, the number of
# negatives that its clients draw; None where they draw none.
Key = tuple[str, int | None]


@dataclasses.dataclass(frozen=True)
class Value:
    """A printed number.

    Attributes:
        mean: In percent, over three runs; for FullSoftmax and Centralized the best of
            three (4.1).
        std: The standard deviation over the three; None where none is printed.
        source: Where it stands.
    """

    mean: float
    std: float | None
    source: str

    def __str__(self) -> str:
        """Writes it as the paper does."""
        return f"{self.mean:.1f}" + (f" ± {self.std:g}" if self.std else "")


@dataclasses.dataclass(frozen=True)
class Table:
    """One of the paper's tables.

    Attributes:
        number: 1 to 4.
        dataset: The data set, by its name on the command line.
        short_title: What to call the data set beside the numbers.
        metrics: The names of the metrics; methods are compared by the last one.
        rounds: How many rounds were trained.
        class_set_sizes: |S_k| for each m, in the order of the columns.
        percents: |S_k| in percent of n for each m, as printed.
        values: For each metric and cell the printed number; None where it is lost.
        either: The two methods of which one has `either_value`, and the text does not
            say which; empty if there is no such number.
        either_value: That number.
        outperformed: Methods of which the text says that FedSS is better.
        claim_source: Where it says so.
    """

    number: int
    dataset: str
    short_title: str
    metrics: tuple[str, ...]
    rounds: int
    class_set_sizes: Mapping[int, int]
    percents: Mapping[int, float]
    values: Mapping[str, Mapping[Key, Value | None]]
    either: tuple[str, ...] = ()
    either_value: Value | None = None
    outperformed: tuple[str, ...] = ()
    claim_source: str = ""

    def title_beside(self, dataset: str) -> str:
        """Returns what to call its numbers beside those of runs on a data set."""
        return "paper" if dataset == self.dataset else f"paper ({self.short_title})"


def _cells(source, num_negatives, fedss, neg_only, full_softmax, centralized):
    """Pairs the numbers of Tables 1 to 3 with their cells."""
    cells: dict[Key, Value | None] = {}
    for method, row in (("fedss", fedss), ("neg_only", neg_only)):
        for m, printed in zip(num_negatives, row, strict=True):
            cells[method, m] = Value(*printed, source) if printed else None
    # One of the two has a number, see `either_value`.
    cells["pos_only", None] = cells["fedaws", None] = None
    cells["full_softmax", None] = Value(full_softmax, None, source)
    cells["centralized", None] = Value(centralized, None, source)
    return cells


_SMALL_M = (5, 10, 20, 40, 80)
_LARGE_M = (50, 100, 200, 400, 800)

_TABLE1 = Table(
    number=1,
    dataset="landmarks",
    short_title="Landmarks",
    metrics=("top1",),
    rounds=5000,
    class_set_sizes=dict(zip(_SMALL_M, (95, 100, 110, 130, 170), strict=True)),
    percents=dict(zip(_SMALL_M, (4.7, 4.9, 5.4, 6.4, 8.4), strict=True)),
    values={
        "top1": _cells(
            "Table 1",
            _SMALL_M,
            fedss=[(51.7, 0.4), None, None, (55.3, 0.6), (56.0, 0.06)],
            neg_only=[(7.1, 3.7), (18.7, 0.4), None, (25.0, 0.4), (26.5, 1.4)],
            full_softmax=56.8,
            centralized=59.5,
        )
    },
    either=("pos_only", "fedaws"),
    either_value=Value(43.1, None, "Table 1"),
    outperformed=("neg_only", "pos_only", "fedaws"),
    claim_source="section 4.2",
)

_TABLE2 = Table(
    number=2,
    dataset="sop",
    short_title="SOP",
    metrics=("map_at_10",),
    rounds=2000,
    class_set_sizes=dict(zip(_SMALL_M, (25, 30, 40, 60, 100), strict=True)),
    percents=dict(zip(_SMALL_M, (0.22, 0.27, 0.35, 0.53, 0.88), strict=True)),
    values={
        "map_at_10": {
            **_cells(
                "Table 2",
                _SMALL_M,
                fedss=[None, None, None, (26.4, 0.12), None],
                neg_only=[None, (16.2, 0.1), None, (16.5, 0.04), None],
                full_softmax=25.7,
                centralized=25.4,
            ),
            # Lost in Table 2, but the same run stands in Table 4.
            ("fedss", 80): Value(26.5, 0.03, "Table 4"),
        }
    },
    either=("pos_only", "fedaws"),
    either_value=Value(19.7, None, "Table 2"),
    outperformed=("neg_only", "pos_only", "fedaws"),
    claim_source="section 4.3",
)

_TABLE3 = Table(
    number=3,
    dataset="imagenet21k",
    short_title="ImageNet-21k",
    metrics=("top1",),
    rounds=25_000,
    class_set_sizes=dict(zip(_LARGE_M, (70, 120, 220, 420, 820), strict=True)),
    percents=dict(zip(_LARGE_M, (0.3, 0.5, 1.0, 1.9, 3.7), strict=True)),
    values={
        "top1": _cells(
            "Table 3",
            _LARGE_M,
            fedss=[(9.1, 0.4), None, None, (10.0, 0.5), (9.8, 0.5)],
            neg_only=[(3.9, 0.1), (4.2, 0.1), None, (4.4, 0.1), (4.7, 0.2)],
            full_softmax=11.3,
            centralized=15.4,
        )
    },
    either=("pos_only", "fedaws"),
    either_value=Value(5.1, None, "Table 3"),
)

_TABLE4 = Table(
    number=4,
    dataset="sop",
    short_title="SOP",
    metrics=("train_top1", "map_at_10"),
    rounds=2000,
    class_set_sizes={80: 100},
    percents={80: 0.88},
    values={
        "train_top1": {
            ("fedss", 80): Value(97.6, 0.2, "Table 4"),
            ("full_softmax", None): Value(99.9, None, "Table 4"),
            ("centralized", None): Value(99.9, None, "Table 4"),
        },
        "map_at_10": {
            ("fedss", 80): Value(26.5, 0.03, "Table 4"),
            ("full_softmax", None): Value(25.7, None, "Table 4"),
            ("centralized", None): Value(25.4, None, "Table 4"),
        },
    },
)

TABLES = {table.number: table for table in (_TABLE1, _TABLE2, _TABLE3, _TABLE4)}


@dataclasses.dataclass(frozen=True)
class Share:
    """A share of the parameters that section 4.3 prints.

    Attributes:
        short_title: The data set.
        num_classes: n.
        embedding_dim: d.
        percent: Of all parameters of the model.
    """

    short_title: str
    num_classes: int
    embedding_dim: int
    percent: float


# "the classification layer contributes to" so much, at d = 64.
LAST_LAYER_SHARES = (
    Share("SOP", 11_318, 64, 16.0),
    Share("Landmarks", 2028, 64, 3.4),
)

# The text says that FedSS at |S_k| = 170 saves 3.38 % of Landmarks' traffic. That is
# nearly the share of the whole last layer: a slip.
PRINTED_LANDMARKS_SAVING = 3.38
