"""What each defence leaves to attack, and what it costs, as cells.

    ./run.sh table privacy/defences --data_dir=OMNIGLOT

Trains FedSS on Omniglot with each way of asking for classes, with a threshold and with
user-level differential privacy (DP), m = 20 and 80, three seeds: 48 trainings of 2 to 5
minutes on a core. docs/results/privacy has their table; docs/privacy.md what follows.
"""

from experiments.common.cells import Cell, table

_OMNIGLOT = {
    "dataset": "omniglot",
    "client_learning_rate": 0.03,
    "rounds": 200,
    "rounds_per_evaluation": 20,
}
SIZES = (20, 80)
RESPONSE_EPSILON = 4.0
POOL_FACTOR = 3
THRESHOLD = 3
GAUSSIAN_NOISE = 0.03
FTRL_NOISE = 0.1


def _private(mechanism: str, noise_multiplier: float) -> dict:
    return {
        "aggregation": "secure",
        "dp": mechanism,
        "dp_noise_multiplier": noise_multiplier,
    }


def trainings(m: int) -> dict[str, dict]:
    """Returns the flags of each training with m negatives, by its name."""
    return {
        "fresh": {},
        "memoised": {"negatives": "memoised"},
        "randomized_response": {
            "negatives": "randomized_response",
            "epsilon": RESPONSE_EPSILON,
        },
        "pool": {"negatives": "pool", "pool_size": POOL_FACTOR * m},
        "threshold": {
            "requests": "union",
            "aggregation": "secure",
            "secure_threshold": THRESHOLD,
        },
        "clipped": _private("gaussian", 0.0),
        "dp_gaussian": _private("gaussian", GAUSSIAN_NOISE),
        "dp_ftrl": _private("ftrl", FTRL_NOISE),
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
            )
            for m in SIZES
            for name, settings in trainings(m).items()
        ],
        "privacy_defences",
    )
}
