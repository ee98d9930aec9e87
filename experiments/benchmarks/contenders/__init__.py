"""The contenders of the benchmark: programs that do rounds on command.

Each is a process of its own, in a virtual environment of its own, and answers the
driver (`experiments.benchmarks.contest`) through `experiments.benchmarks.protocol`.
"""
