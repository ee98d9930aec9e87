"""Trains FedSS and FullSoftmax side by side, in a few minutes, and compares them.

    ./run.sh demo

draws its own data, downloads nothing, and writes results/demo/. The flags are those of
`./run.sh train`, with other defaults.
"""

from absl import flags

from experiments import program, run_flags
from tff_fedss import algorithms

_METHODS = flags.DEFINE_list(
    "methods",
    ["fedss", "full_softmax"],
    f"What to train with, side by side: of {', '.join(algorithms.METHODS)}.",
)
flags.register_validator(
    "methods",
    lambda methods: methods and set(methods) <= set(algorithms.METHODS),
    f"value should be a list of <{'|'.join(algorithms.METHODS)}>",
)
flags.set_default(run_flags.ROUNDS, 60)
flags.set_default(run_flags.ROUNDS_PER_EVALUATION, 5)
flags.set_default(run_flags.RESULTS_DIR, "results/demo")
flags.adopt_module_key_flags(run_flags)  # --help shows them.


def main() -> None:
    """Trains and prints the table."""
    folder = run_flags.open_results_folder(_METHODS)
    table = run_flags.train_methods(_METHODS.value, folder)
    print(table)
    print(f"Written to {folder.path}/: curves.png, metrics.csv, table.csv, flags.txt")


if __name__ == "__main__":
    program.run(main)
