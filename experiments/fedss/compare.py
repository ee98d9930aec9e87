"""Trains several methods side by side, for equal rounds, and compares them.

    ./run.sh compare --data_dir=DIR --results_dir=DIR

compares all six methods of the paper on Omniglot. The flags are those of
`./run.sh train`, and so are the files in the results folder.
"""

from absl import flags

from experiments.common import program
from experiments.fedss import run_flags

METHODS = flags.DEFINE_list(
    "methods",
    list(run_flags.METHODS),
    f"What to train with, side by side: of {', '.join(run_flags.METHODS)}.",
)
flags.register_validator(
    "methods",
    lambda methods: methods and set(methods) <= set(run_flags.METHODS),
    f"value should be a list of <{'|'.join(run_flags.METHODS)}>",
)
flags.adopt_module_key_flags(run_flags)  # --help shows them.


def main() -> None:
    """Trains and prints the table."""
    folder = run_flags.open_results_folder(METHODS)
    print(run_flags.train_methods(list(dict.fromkeys(METHODS.value)), folder))
    names = "curves.png and .pdf, metrics.csv, table.csv, flags.txt"
    print(f"Written to {folder.path}/: {names}")


if __name__ == "__main__":
    flags.set_default(run_flags.DATASET, "omniglot")
    program.run(main, groups=run_flags.GROUPS)
