"""Rows of FedSS's tables: the cells of methods with their m, rates and margins."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.common import option_words
from experiments.common.cells import Cell
from experiments.fedss.methods import METHODS, WORDS

# A tenth of the clients is held out and measured on: nothing looks at the test.
VALIDATION = dict(validation_share=0.1, on_validation=True)

SIZES = (5, 10, 20, 40, 80)


def row_of(method: str, is_corrected: bool = True) -> str:
    """Returns the row of a method, with Eq. 3's correction of the logits or without."""
    title = METHODS[method].title
    return title if is_corrected else f"{title}, no correction"


def drawing(
    prefix: str,
    common: Mapping[str, Any],
    methods: Sequence[str],
    sizes: Sequence[int],
    corrections: Sequence[bool] = (True,),
) -> list[Cell]:
    """Methods that draw m negatives, with Eq. 3's correction of the logits or without.

    Args:
        prefix: Of the cells' names.
        common: The settings that they share.
        methods: Their names.
        sizes: The values of m.
        corrections: Whether the logits are corrected.
    """
    cells = []
    for method, is_corrected, m in itertools.product(methods, corrections, sizes):
        settings = {**common, "method": method, "num_negatives": m}
        name, title = f"{prefix}_{method}_m{m}", f"{METHODS[method].title}, m = {m}"
        row = row_of(method, is_corrected)
        if not is_corrected:
            settings["logit_correction"] = "none"
            name, title = f"{name}_uncorrected", f"{title}, no logit correction"
        cells.append(Cell(name, settings, title, row=row, column=f"m = {m}"))
    return cells


def others(
    prefix: str,
    common: Mapping[str, Any],
    methods: Sequence[str] = ("pos_only", "fedaws", "full_softmax", "centralized"),
) -> list[Cell]:
    """Methods that draw no negatives."""
    return [
        Cell(
            f"{prefix}_{method}",
            {**common, "method": method},
            METHODS[method].title,
            row=row_of(method),
        )
        for method in methods
    ]


def six_methods(
    prefix: str, common: Mapping[str, Any], sizes: Sequence[int] = SIZES
) -> list[Cell]:
    """The rows of Tables 1 to 3; FedSS and NegOnly with and without Eq. 3's correction.

    See `drawing`.
    """
    return [
        *drawing(prefix, common, ["fedss", "neg_only"], sizes, (True, False)),
        *others(prefix, common),
    ]


def table_4(prefix: str, common: Mapping[str, Any]) -> list[Cell]:
    """Cells of Table 2 that measure the training images, too."""
    return [
        *drawing(prefix, {**common, "train_top1": True}, ["fedss"], [80]),
        *others(
            prefix, {**common, "train_top1": True}, ["full_softmax", "centralized"]
        ),
    ]


def table_2(prefix: str, common: Mapping[str, Any]) -> list[Cell]:
    """The six methods, with the cells of Table 4 in their places."""
    of_table_4 = {cell.name: cell for cell in table_4(prefix, common)}
    return [of_table_4.get(cell.name, cell) for cell in six_methods(prefix, common)]


def figure_6(prefix: str, common: Mapping[str, Any], positives: int) -> list[Cell]:
    """FedSS with m, and NegOnly with as many pushing classes: m + |P_k| - 1.

    Both are in the column of m.
    """
    more = positives - 1
    sizes = [m + more for m in SIZES]
    neg_only = drawing(prefix, common, ["neg_only"], sizes, (True, False))
    columns = [f"m = {m}" for m in SIZES] * 2
    return [
        *drawing(prefix, common, ["fedss"], SIZES, (True, False)),
        *(
            dataclasses.replace(
                cell, row=cell.row.replace("NegOnly", f"NegOnly, m + {more}"), column=m
            )
            for cell, m in zip(neg_only, columns, strict=True)
        ),
    ]


def turned(
    prefix: str, common: Mapping[str, Any], rates: Mapping[str, float]
) -> list[Cell]:
    """The six methods, each with its learning rate, if it has one of its own.

    Eq. 3's correction is left out at m = 20 only.
    """
    cells = [
        *drawing(prefix, common, ["fedss"], (5, 20, 80)),
        *drawing(prefix, common, ["neg_only"], (20, 80)),
        *drawing(prefix, common, ["fedss", "neg_only"], [20], [False]),
        *others(prefix, common),
    ]
    for i, cell in enumerate(cells):
        if rate := rates.get(cell.settings["method"]):
            settings = {**cell.settings, "client_learning_rate": rate}
            cells[i] = dataclasses.replace(cell, settings=settings)
    return cells


def one_of_each(prefix: str, common: Mapping[str, Any]) -> list[Cell]:
    """The six methods, those that draw negatives with m = 20."""
    return [
        *drawing(prefix, common, ["fedss", "neg_only"], [20]),
        *others(prefix, common),
    ]


def on_validation(
    cells: Sequence[Cell], name: str, values: Sequence[float]
) -> list[Cell]:
    """Each cell with each value of a flag, measured on validation clients."""
    return [
        Cell(
            f"{cell.name}_{value:g}",
            {**cell.settings, **VALIDATION, name: value},
            f"{cell.title}, {name} {value:g}",
        )
        for cell in cells
        for value in values
    ]


def spreadout(
    common: Mapping[str, Any], margin: float, weights: Sequence[float]
) -> list[Cell]:
    """FedAwS with each weight of its regularizer, measured on validation clients."""
    cells = []
    for weight in weights:
        word = f"fedaws:weight={weight},margin={margin}"
        method = option_words.parse("method", word, WORDS)
        cells.append(
            Cell(
                f"omniglot_margin{margin:g}_{weight:g}",
                dict(common, **VALIDATION, method=str(method)),
                f"FedAwS, margin {margin:g}, spreadout_weight {weight:g}",
            )
        )
    return cells
