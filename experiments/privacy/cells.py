"""The cells of the defences: attacks on each, and its cost.

    ./run.sh table privacy/defences --data_dir=OMNIGLOT

Trains FedSS on Omniglot with each way of asking for classes, with a threshold and with
user-level differential privacy (DP), m = 20 and 80, three seeds: 48 trainings of 2 to 5
minutes on a core. docs/results/privacy has their table; docs/privacy.md the
conclusions.
"""

from experiments.common.cells import Cell, Metric, table
from experiments.common.results import RunKind
from experiments.privacy import views

_OMNIGLOT = {
    "dataset": "omniglot",
    "client_learning_rate": 0.03,
    "rounds": 200,
    "rounds_per_evaluation": 20,
}


def _private(mechanism: str, noise_multiplier: float) -> dict:
    return {
        "aggregation": "secure",
        "dp": f"{mechanism}:noise={noise_multiplier}",
    }


def trainings(m: int) -> dict[str, dict]:
    """Returns the flags of each training with m negatives, by its name."""
    return {
        "fresh": {},
        "memoised": {"negatives": "memoised"},
        "randomized_response": {
            "negatives": f"randomized_response:epsilon={views.RESPONSE_EPSILON}",
        },
        "pool": {"negatives": f"pool:size={views.POOL_FACTOR * m}"},
        "threshold": {
            "requests": "union",
            "aggregation": f"secure:threshold={views.THRESHOLD}",
        },
        "clipped": _private("gaussian", 0.0),
        "dp_gaussian": _private("gaussian", views.GAUSSIAN_NOISE),
        "dp_ftrl": _private("ftrl", views.FTRL_NOISE),
    }


TABLES = {
    ("defences", "mini"): table(
        "Defences: what they leave to attack, and what they cost",
        "experiments.privacy.train",
        [
            Cell(
                f"m{m}_{name}",
                {**_OMNIGLOT, "num_negatives": m, **settings},
                f"{name}, m = {m}",
                row=name,
                column=f"m = {m}",
            )
            for m in views.SIZES
            for name, settings in trainings(m).items()
        ],
        "privacy_defences",
        kind=RunKind(
            "privacy/train",
            run_name=lambda flags: "fedss",
            cell_flags=frozenset(
                ("num_negatives", "negatives", "requests", "aggregation", "dp")
            ),
        ),
        metrics=(Metric("top1", "top-1 %"),),
        is_pivot=True,
        pairs=tuple((name, "fresh") for name in list(trainings(20))[1:]),
        draw=views.draw,
    )
}
