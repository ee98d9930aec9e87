"""A cell of a table of each paper, through the command that a reviewer gives."""

import pytest

from tests.experiments import program_server


@pytest.mark.slow
@pytest.mark.parametrize(
    "table, cells, data, rounds, heading",
    [
        ("1", "omniglot_fedss_m5", "omniglot28", 2, "# Table 1 at a size for 2 cores"),
        ("leap/1", "mnist_mini/leap", "mnist-t10k", 2, "# LEAP, Table 1"),
        ("moco/4", "d_gamma1", "cifar10-jpg", 1, "# Focal contrastive learning, Tab"),
        ("partial_fc/omniglot", "pprn_0.1", "omniglot28", 1, "# All 1,623 characters"),
        ("rf_softmax/ptb", "uniform", "ptb", 1, "# Penn Treebank for 2 cores"),
    ],
)
def test_a_cell_of_each_paper(test_data, tmp_path, table, cells, data, rounds, heading):
    command = (
        *("experiments.common.sweep", table, f"--cells={cells}", "--seeds=0"),
        *(f"--rounds={rounds}", "--workers=1", f"--data_dir={test_data / data}"),
        f"--results_dir={tmp_path}",
    )
    output, _ = program_server.run_alone(*command).ok()
    assert heading in output
    assert f"--rounds={rounds}" in output  # The table says that it is short.
    done = tmp_path / cells / "seed0" / "done.json"
    assert done.exists()
    before = done.stat().st_mtime_ns
    # What is done is done.
    assert f"{cells} seed 0: done" in output
    page, _ = program_server.run_alone(*command, "--report").ok()
    assert heading in page
    assert done.stat().st_mtime_ns == before
