"""The contents of the pages of FedSS's tables: metrics, pairs of methods, notes."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.common.cells import Cell, Metric, Table
from experiments.common.page import Runs
from experiments.fedss import figures
from experiments.fedss.methods import METHODS, best_of_seeds
from experiments.fedss.table_results import KIND, of_runs, row_of
from tff_fedss import metrics, models, tasks

_SECOND = Metric(tasks.UNSEEN_METRIC, "MAP@10 of unseen classes", difference_scale=0)
_TRAIN_TOP1 = Metric("train_top1", "top-1 (train)", best_by="map_at_10")


def _pairs(cells: Sequence[Cell]) -> tuple:
    """Returns the pairs of rows to compare."""
    fedss, neg_only, pos_only, fedaws, full, central = map(
        row_of,
        ("fedss", "neg_only", "pos_only", "fedaws", "full_softmax", "centralized"),
    )
    others = [METHODS[m].title for m in METHODS if METHODS[m].title != fedss]
    order = [full, central, neg_only, pos_only, fedaws]
    columns = [cell.column for cell in cells if cell.row == fedss]
    return (
        *((fedss, other) for other in sorted(others, key=_place(order))),
        (fedss, row_of("fedss", False)),
        (row_of("fedss", False), row_of("neg_only", False)),
        (neg_only, row_of("neg_only", False)),
        (neg_only, full),
        (neg_only, pos_only),
        (neg_only, fedaws),
        (fedaws, pos_only),
        (central, full),
        *([(fedss, (fedss, columns[0]))] if columns else ()),
    )


def _place(order: Sequence[str]):
    return lambda title: order.index(title) if title in order else len(order)


def of_search(cells: Sequence[Cell]) -> dict[str, Any]:
    """Returns the contents of a page that is not of the paper, for `cells.table`."""
    names = [cell.settings.get("task", "classification") for cell in cells]
    kinds = [tasks.KINDS[name] for name in dict.fromkeys(names)]
    pairs = _pairs(cells) if any(cell.row for cell in cells) else ()
    return dict(
        kind=KIND,
        metrics=tuple(Metric(kind.metric, kind.metric_title) for kind in kinds),
        pairs=pairs,
        has_late=True,
        no_column="no negatives",
    )


def of_paper(
    cells: Sequence[Cell], figure_numbers: Sequence[int] = (), with_train: bool = False
) -> dict[str, Any]:
    """Returns the contents of the page of a table of the paper, for `cells.table`.

    Args:
        cells: The cells, with rows and columns.
        figure_numbers: The paper's figures that are drawn from its runs.
        with_train: Whether it shows the top-1 of the training images.
    """
    page = of_search(cells)
    second = (_TRAIN_TOP1,) if with_train else (_SECOND,)
    return dict(
        page,
        metrics=(*page["metrics"], *second),
        is_pivot=True,
        best_of=tuple(METHODS[method].title for method in best_of_seeds()),
        notes=(_class_sets, _saving),
        draw=lambda *args: figures.draw_all(figure_numbers, *args),
    )


# --- Notes ------------------------------------------------------------------------


def _num_classes(runs: Runs) -> int | None:
    """Returns n; None without a finished run."""
    done = [run for own in runs.values() for run in own if run.is_done]
    return done[0].result["num_classes"] if done else None


def _mean_positives(runs: Runs) -> float | None:
    return of_runs(run for own in runs.values() for run in own).mean_positives


def _percent(percent: float) -> str:
    return f"{percent:.{1 if percent >= 1 else 2}f} %"


def _class_sets(table: Table, runs: Runs, paper: pd.DataFrame) -> list[str]:
    """Returns a note on how many classes a client has, and gets with m negatives."""
    n, positives = _num_classes(runs), _mean_positives(runs)
    if n is None or positives is None:
        return []
    sizes = {
        cell.column: round(positives) + cell.settings["num_negatives"]
        for cell in table.cells.values()
        if cell.column
    }
    own = [
        f"{size:,} ({_percent(100 * size / n)} of n) {column}"
        for column, size in {
            "without negatives": round(positives),
            **{f"at {column}": size for column, size in sizes.items()},
        }.items()
    ]
    notes = [
        f"n = {n:,} classes, |P_k| = {positives:.1f} on average. |S_k| is |P_k|, "
        f"rounded, and m: {', '.join(own)}; FullSoftmax has all."
    ]
    printed = {
        metric: paper[paper["metric"] == metric].set_index("cell")["value"]
        for metric in ("class_set_size", "percent_of_n")
    }
    theirs = [
        f"{size} ({printed['percent_of_n'][column]} %) at {column}"
        for column, size in printed["class_set_size"].items()
        if column in sizes
    ]
    return notes + ([f"|S_k| in the paper: {', '.join(theirs)}."] if theirs else [])


def _saving(table: Table, runs: Runs, paper: pd.DataFrame) -> list[str]:
    """Returns a note on a client's savings at the largest |S_k| (4.3)."""
    n, positives = _num_classes(runs), _mean_positives(runs)
    drawing = [
        cell
        for cell in table.cells.values()
        if cell.settings["method"] == "fedss" and runs[cell.name]
    ]
    if n is None or positives is None or not drawing:
        return []
    m = max(cell.settings["num_negatives"] for cell in drawing)
    run = next(
        runs[cell.name][0] for cell in drawing if cell.settings["num_negatives"] == m
    )
    bytes_down, classes = run.mean("bytes_down"), run.mean("classes_per_client")
    if bytes_down is None or classes is None:
        return []
    dim = int(run.flags["embedding_dim"])
    num_phi = round(bytes_down / metrics.BYTES_PER_PARAMETER - classes * dim)
    size = round(positives) + m
    saving = models.communication_saving(num_phi, n, dim, size)
    return [
        f"At |S_k| = {size:,} a client is spared {100 * saving:.1f} % of the model's "
        f"{num_phi + n * dim:,} parameters, in each direction."
    ]
