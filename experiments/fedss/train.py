"""Trains one method on one data set.

    ./run.sh train --dataset=omniglot --data_dir=DIR --method=fedss --results_dir=DIR

writes into the results folder: metrics.csv (a row per round), curves.png and .pdf,
table.csv, the weights METHOD.npz, flags.txt and run.json. To repeat the run elsewhere,
give --flagfile=flags.txt and another --results_dir; to go on with one that was stopped
or killed, give the same flags again.

Expected, for Omniglot with --rounds=60: top-1 49.5 %, where chance is 0.15 %, after 2
minutes on 2 cores.
"""

from absl import flags

from experiments.common import program
from experiments.fedss import run_flags

_METHOD = flags.DEFINE_enum(
    "method", "fedss", list(run_flags.METHODS), "What to train with."
)
flags.adopt_module_key_flags(run_flags)  # --help shows them.


def main() -> None:
    """Trains and prints the table."""
    folder = run_flags.open_results_folder(_METHOD)
    table = run_flags.train_methods([_METHOD.value], folder)
    print(table)
    print(f"Written to {folder.path}/")


if __name__ == "__main__":
    program.run(main, groups=run_flags.GROUPS, paper="fedss")
