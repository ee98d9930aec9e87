"""Trains several methods side by side, for equal rounds, and compares them.

    ./run.sh compare --data_dir=DIR --results_dir=DIR

compares all six methods of the paper on Omniglot. The flags are those of
`./run.sh train`, with --methods for --method and without --cell; the files in the
results folder are the same.
"""

import dataclasses

from experiments.common import config, program
from experiments.fedss import run_config
from experiments.fedss.methods import METHODS, WORDS
from experiments.fedss.train import main


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """The flags of the program."""

    methods: tuple[str, ...] = config.flag(
        tuple(name for name, method in METHODS.items() if method.is_of_paper),
        "Methods to train side by side, such as fedss,fedaws:margin=1.2,weight=0.1.",
        group="The run",
        words=WORDS,
    )

    @property
    def method_words(self) -> tuple[str, ...]:
        """The words of --methods."""
        return self.methods


if __name__ == "__main__":
    program.run(main, Config(dataset="omniglot"))
