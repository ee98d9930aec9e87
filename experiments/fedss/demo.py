"""Trains FedSS and FullSoftmax side by side, in a few minutes, and compares them.

    ./run.sh demo

generates its data, downloads nothing, and writes results/demo/. It is `./run.sh
compare` with other defaults.
"""

from experiments.common import program
from experiments.fedss import compare, train

DEFAULTS = compare.Config(
    methods=("fedss", "full_softmax"),
    rounds=60,
    rounds_per_evaluation=5,
    results_dir="results/demo",
)

if __name__ == "__main__":
    program.run(train.main, DEFAULTS)
