"""Trains several methods side by side, for equal rounds, and compares them.

    ./run.sh compare --data_dir=DIR --results_dir=DIR

compares all six methods of the paper on Omniglot. The flags are those of
`./run.sh train`, and so are the files in the results folder.
"""

import dataclasses
import pathlib

from experiments.common import config, program
from experiments.fedss import run_config, run_methods
from experiments.fedss.methods import METHODS


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """The flags of the program."""

    methods: tuple[str, ...] = config.flag(
        tuple(name for name, method in METHODS.items() if method.is_of_paper),
        "Methods to train side by side, such as fedss,fedaws:margin=1.2,weight=0.1.",
        group="The run",
        words=METHODS,
    )

    @property
    def method_words(self) -> tuple[str, ...]:
        """The words of --methods."""
        return self.methods


def main(config: Config) -> None:
    """Trains and prints the table."""
    print(run_methods.train_methods(config))
    names = "curves.png and .pdf, metrics.csv, table.csv, flags.txt"
    print(f"Written to {pathlib.Path(config.results_dir)}/: {names}")


if __name__ == "__main__":
    program.run(main, Config(dataset="omniglot"))
