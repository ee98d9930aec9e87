"""Trains FedSS and FullSoftmax side by side, in a few minutes, and compares them.

    ./run.sh demo

draws its own data, downloads nothing, and writes results/demo/. This is
`./run.sh compare` with other defaults.
"""

from absl import flags

from experiments.common import program
from experiments.fedss import compare, run_flags

flags.adopt_module_key_flags(compare)  # --help shows them.

if __name__ == "__main__":
    flags.set_default(compare.METHODS, ["fedss", "full_softmax"])
    flags.set_default(run_flags.ROUNDS, 60)
    flags.set_default(run_flags.ROUNDS_PER_EVALUATION, 5)
    flags.set_default(run_flags.RESULTS_DIR, "results/demo")
    program.run(compare.main, groups=run_flags.GROUPS)
