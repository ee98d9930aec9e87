"""The cells of RF-softmax: the poster's curves and its third table.

    ./run.sh table rf_softmax/ptb --scale=mini --data_dir=PTB
    ./run.sh table rf_softmax/delicious --scale=mini --data_dir=DELICIOUS
    ./run.sh table rf_softmax/ptb --scale=paper --data_dir=PTB
    ./run.sh table rf_softmax/nu --scale=mini --data_dir=PTB   # figure (a)
    ./run.sh table rf_softmax/frequencies --scale=mini --data_dir=PTB   # figure (b)
    ./run.sh table rf_softmax/delicious_masked --scale=mini --data_dir=DELICIOUS

What to expect, and how long it takes: docs/results/rf_softmax; perplexity 214.6 (full),
217.0 (exp), 240.2 (rff), 356.1 (quadratic), 655.7 (uniform) after 4,000 steps. At
--scale=paper all settings except m of ptb are our choice, since the poster does not
state them. Those cells have not been run.
"""

from typing import Any

from experiments.common import results as results_lib
from experiments.common.cells import Cell, Metric, Table, table

_KIND = results_lib.RunKind(
    paper="rf_softmax",
    run_name=lambda run_flags: run_flags["sampler"],
    cell_flags=frozenset({"sampler", "nu", "num_frequencies"}),
)
_LOSS = Metric("loss", "training loss (each sampler's own)", scale=1)
# Metrics of the negatives that a sampler draws.
_DRAWN = (
    Metric("clipped_share", "clipped", ".1%", 1, False, 0),
    Metric("effective_samples", "effective m", ".3g", 1, False, 0),
    Metric("clipped_mass", "clipped mass", ".1%", 1, False, 0),
)
_STEPS = Metric("steps", "steps", ",.0f", 1, False, 0)
_PERPLEXITY = Metric("perplexity", "validation perplexity", scale=1, difference_scale=1)
_PRECISION = tuple(Metric(f"precision_at_{k}", f"P@{k}", ".3f", 1) for k in (1, 3, 5))
# The poster's order of samplers, with ours: neighbours are compared, ends last.
_PAIRS = (
    ("full", "exp"),
    ("exp", "rff"),
    ("rff", "quadratic"),
    ("quadratic", "uniform"),
    ("rff", "uniform"),
    ("exp", "uniform"),
)
_PTB = ("uniform", "log_uniform", "quadratic", "rff", "exp", "full")
_EXTREME = ("uniform", "quadratic", "rff", "exp")
# Figures (a) to (c), m = 100; 10 epochs.
_PTB_PAPER = dict(
    task="ptb",
    num_negatives=100,
    embedding_dim=200,
    num_units=200,
    num_steps=20,
    num_frequencies=1024,  # Of rff alone.
    rounds=230,
    rounds_per_evaluation=10,
)
_EXTREME_PAPER = dict(
    task="extreme",
    num_negatives=100,
    embedding_dim=128,
    num_frequencies=1000,
    rounds=1000,
    steps_per_round=100,
    batch_size=128,
    rounds_per_evaluation=50,
)


def _samplers(
    name: str,
    title: str,
    common: dict[str, Any],
    samplers: tuple[str, ...],
    seeds: tuple[int, ...] = (0,),
) -> Table:
    """A cell for each sampler."""
    cells = [Cell(s, {**common, "sampler": s}, s) for s in samplers]
    page = _page(common["task"])
    return table(title, cells, f"rf_softmax/{name}", seeds=seeds, **page)


def _page(task: str) -> dict[str, Any]:
    """Returns the contents of a task's page."""
    metrics = (_PERPLEXITY,) if task == "ptb" else _PRECISION
    return dict(
        kind=_KIND,
        metrics=(*metrics, _STEPS, *_DRAWN),
        pairs=_PAIRS,
        x="steps",
        curves=(metrics[0], _LOSS),
    )


def _design(
    name: str, title: str, common: dict[str, Any], points: list[tuple[float, int]]
) -> Table:
    cells = [
        Cell(
            f"rff_nu{nu:g}_num_frequencies{num_frequencies}",
            dict(common, sampler="rff", nu=nu, num_frequencies=num_frequencies),
            f"nu = {nu:g}, D = {num_frequencies}",
        )
        for nu, num_frequencies in points
    ]
    return table(title, cells, f"rf_softmax/{name}", **_page("ptb"))


_PTB_MINI = dict(
    task="ptb",
    num_negatives=100,
    rounds=40,
    rounds_per_evaluation=4,
    validation_words=20000,
)
_PTB_DESIGN = dict(_PTB_MINI, rounds=16)

TABLES = {
    ("ptb", "mini"): _samplers(
        "ptb_mini",
        "Penn Treebank for 2 cores: 0.9 epochs, m = 100",
        _PTB_MINI,
        _PTB,
        seeds=(0, 1, 2),
    ),
    ("delicious", "mini"): _samplers(
        "delicious_mini",
        "Delicious (v = 500, n = 983), m = 10",
        dict(task="extreme", num_negatives=10, rounds=40),
        (*_EXTREME, "full"),
        seeds=(0, 1, 2),
    ),
    ("delicious_masked", "mini"): _samplers(
        "delicious_masked_mini",
        "Delicious (v = 500, n = 983), m = 10, a row's other labels masked",
        dict(task="extreme", num_negatives=10, rounds=20, mask_positives=True),
        (*_EXTREME, "full"),
        seeds=(0, 1, 2),
    ),
    ("nu", "mini"): _design(
        "ptb_design_nu_mini",
        "Penn Treebank for 2 cores, D = 256, varying T = 1 / sqrt(nu), figure (a)",
        _PTB_DESIGN,
        [(nu, 256) for nu in (0.5, 1, 2, 4, 8, 12)],
    ),
    ("frequencies", "mini"): _design(
        "ptb_design_D_mini",
        "Penn Treebank for 2 cores, T = 0.5, varying D, figure (b)",
        _PTB_DESIGN,
        [(4, frequencies) for frequencies in (64, 128, 256, 512, 1024)],
    ),
    ("ptb", "paper"): _samplers("ptb", "Penn Treebank, figure (c)", _PTB_PAPER, _PTB),
    ("nu", "paper"): _design(
        "ptb_design_nu",
        "Penn Treebank, fixed D, varying T = 1 / sqrt(nu), figure (a)",
        _PTB_PAPER,
        [(nu, 1024) for nu in (1, 2, 4, 8, 11.1)],
    ),
    ("frequencies", "paper"): _design(
        "ptb_design_D",
        "Penn Treebank, fixed T = 0.5, varying D, figure (b)",
        _PTB_PAPER,
        [(4, frequencies) for frequencies in (128, 256, 512, 1024, 2048)],
    ),
    **{
        (name, "paper"): _samplers(
            name, f"{title}, the third table", _EXTREME_PAPER, _EXTREME
        )
        for name, title in {
            "amazoncat13k": "AmazonCat-13k, n = 13,330",
            "delicious200k": "Delicious-200k, n = 205,443",
            "wikilshtc": "WikiLSHTC, n = 325,056",
        }.items()
    },
}
