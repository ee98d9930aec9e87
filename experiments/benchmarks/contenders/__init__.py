"""The contenders of the benchmark: programs that do rounds on command.

Each is a separate process, in its own virtual environment, and answers the driver
(`experiments.benchmarks.contest`) through `experiments.benchmarks.protocol`.
"""
