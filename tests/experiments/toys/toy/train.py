"""Trains a cell of the toy paper."""

from experiments.common import program
from experiments.fedss import train

if __name__ == "__main__":
    program.run(train.main, train.Config(), paper="toy")


Config = train.Config
