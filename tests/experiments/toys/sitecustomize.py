"""Python reads this at its start where PYTHONPATH has this folder: papers of tests."""

import os

import experiments

experiments.__path__.append(os.path.dirname(__file__))
