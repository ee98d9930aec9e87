"""Figures 3 to 10 of the FedSS paper, drawn from our own runs."""

import pathlib

from experiments.fedss import model_figures, result_figures
from experiments.fedss.model_figures import LoadTask
from experiments.fedss.result_figures import NothingToDraw
from experiments.fedss.table_results import Results

# What each figure shows, for captions.
CAPTIONS = {
    3: "learning curves by method, at the middle |S_k|",
    4: "convergence of FedSS by |S_k|",
    5: "metric against transmitted classifier parameters",
    6: "FedSS and NegOnly with equally many classes that push",
    7: "confusion matrices of one client's P_k",
    8: "share of the last layer in all parameters",
    9: "gradient noise against |N_k|",
    10: "metric against transmitted classifier parameters",
}
_OF_RESULTS = {
    3: result_figures.figure3,
    4: result_figures.figure4,
    5: result_figures.figure5,
    6: result_figures.figure6,
    10: result_figures.figure5,
}


def draw(
    number: int,
    path: pathlib.Path,
    results: Results | None = None,
    load_task: LoadTask | None = None,
) -> None:
    """Draws a figure from whatever cells there are.

    Args:
        number: As the paper counts them, a key of `CAPTIONS`.
        path: The PNG; a PDF lies beside it.
        results: The runs; only figure 8 needs none.
        load_task: Figures 7 and 9 look at the data with this. By default the data set
            of the runs is loaded from where they had it.

    Raises:
        NothingToDraw: If the runs do not serve for this figure; it says why.
        InvalidInputError: If a run's weights are damaged.
    """
    if number == 8:
        model_figures.figure8(path)
        return
    if results is None:
        raise NothingToDraw("it needs the results of runs")
    if number in _OF_RESULTS:
        _OF_RESULTS[number](results, path)
        return
    of_model = {7: model_figures.figure7, 9: model_figures.figure9_of_results}
    of_model[number](results, path, load_task or model_figures.load_task_of_flags)
