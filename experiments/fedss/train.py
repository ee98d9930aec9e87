"""Trains one method on one data set.

    ./run.sh train --dataset=omniglot --data_dir=DIR --method=fedss --results_dir=DIR
    ./run.sh train --cell=1/mini/omniglot_fedss_m5 --data_dir=DIR --results_dir=DIR

writes into the results folder: metrics.csv (a row per round), curves.png and .pdf,
table.csv, the weights METHOD.npz, flags.txt and run.json. To repeat the run elsewhere,
give --flagfile=flags.txt and another --results_dir; to resume one that was stopped or
killed, give the same flags again.

Expected, for Omniglot with --rounds=60: top-1 49.5 % (chance: 0.15 %), after 2 minutes
on 2 cores.
"""

import dataclasses
import pathlib

from experiments.common import config, program
from experiments.fedss import methods, run_config, run_methods


@dataclasses.dataclass(frozen=True)
class Config(run_config.RunConfig):
    """The flags of the program."""

    method: str = config.flag(
        "fedss", "The method to train.", group="The run", words=methods.WORDS
    )

    @property
    def method_words(self) -> tuple[str, ...]:
        """The one method."""
        return (self.method,)


def main(config: Config) -> None:
    """Trains and prints the table."""
    print(run_methods.train_methods(config))
    print(f"Written to {pathlib.Path(config.results_dir)}/")


if __name__ == "__main__":
    program.run(main, Config(), paper="fedss")
