"""Rows of FedSS's tables: the cells of methods with their m and rates."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.common.cells import Cell
from experiments.fedss.methods import METHODS

SIZES = (5, 10, 20, 40, 80)
# The values of m of the paper's methods that draw no negatives, see `of_methods`.
OTHERS = dict.fromkeys(("pos_only", "fedaws", "full_softmax", "centralized"), ())
SIX_AT_20 = {"fedss": [20], "neg_only": [20], **OTHERS}


def row_of(method: str, is_corrected: bool = True) -> str:
    """Returns the row of a method, with Eq. 3's correction of the logits or without."""
    title = METHODS[method].title
    return title if is_corrected else f"{title}, no correction"


def of_methods(
    prefix: str,
    common: Mapping[str, Any],
    sizes: Mapping[str, Sequence[int]],
    corrections: Sequence[bool] = (True,),
) -> list[Cell]:
    """The cells of methods: one for each m, or one of a method that draws none.

    Args:
        prefix: Of the cells' names.
        common: The settings that they share.
        sizes: The values of m of each method; () if it draws no negatives.
        corrections: Whether Eq. 3 corrects the logits.
    """
    cells = []
    for method, ms in sizes.items():
        of_method, title = {**common, "method": method}, METHODS[method].title
        if not ms:
            cells.append(Cell(f"{prefix}_{method}", of_method, title, row=title))
        for is_corrected, m in itertools.product(corrections, ms):
            settings = {**of_method, "num_negatives": m}
            name, text = f"{prefix}_{method}_m{m}", f"{title}, m = {m}"
            if not is_corrected:
                settings["logit_correction"] = "none"
                name, text = f"{name}_uncorrected", f"{text}, no logit correction"
            row = row_of(method, is_corrected)
            cells.append(Cell(name, settings, text, row=row, column=f"m = {m}"))
    return cells


def six_methods(
    prefix: str, common: Mapping[str, Any], sizes: Sequence[int] = SIZES
) -> list[Cell]:
    """The rows of Tables 1 to 3; FedSS and NegOnly with and without Eq. 3's correction.

    See `of_methods`.
    """
    of_each = {"fedss": sizes, "neg_only": sizes, **OTHERS}
    return of_methods(prefix, common, of_each, (True, False))


def table_4(prefix: str, common: Mapping[str, Any]) -> list[Cell]:
    """Cells of Table 2 that measure the training images, too."""
    sizes = {"fedss": [80], "full_softmax": (), "centralized": ()}
    return of_methods(prefix, {**common, "train_top1": True}, sizes)


def table_2(prefix: str, common: Mapping[str, Any]) -> list[Cell]:
    """The six methods, with the cells of Table 4 in their places."""
    of_table_4 = {cell.name: cell for cell in table_4(prefix, common)}
    return [of_table_4.get(cell.name, cell) for cell in six_methods(prefix, common)]


def figure_6(prefix: str, common: Mapping[str, Any], positives: int) -> list[Cell]:
    """FedSS with m, and NegOnly with as many pushing classes: m + |P_k| - 1.

    Both are in the column of m. `positives` is the mean |P_k|: every client draws as
    many, also one with more or fewer classes (Landmarks).
    """
    more = positives - 1
    sizes = {"neg_only": [m + more for m in SIZES]}
    neg_only = of_methods(prefix, common, sizes, (True, False))
    columns = [f"m = {m}" for m in SIZES] * 2
    return [
        *of_methods(prefix, common, {"fedss": SIZES}, (True, False)),
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
        *of_methods(prefix, common, {"fedss": (5, 20, 80), "neg_only": (20, 80)}),
        *of_methods(prefix, common, {"fedss": [20], "neg_only": [20]}, [False]),
        *of_methods(prefix, common, OTHERS),
    ]
    for i, cell in enumerate(cells):
        if rate := rates.get(cell.settings["method"]):
            settings = {**cell.settings, "client_learning_rate": rate}
            cells[i] = dataclasses.replace(cell, settings=settings)
    return cells
