"""Flags that no machine has the memory for: one line, at once, nothing written.

Here those of train; tests/faults has the other programs.
"""

import pytest

from experiments.common import memory_needs
from tests.experiments.central_runs import GLYPHS, assert_refused
from tff_fedss import models

# 100 TiB and more: beyond any machine that runs these tests.
ABSURD = [
    (
        ["--dataset=glyphs:num_classes=2000000000", "--embedding_dim=100000"],
        "W (2,000,000,000 x 100,000 numbers)",
    ),
    (["--image_size=100000"], "the layers of phi for 32 examples"),
    (["--image_size=2000000000"], "images (1 of 2,000,000,000 x 2,000,000,000)"),
    (["--embedding_dim=2000000000"], "W (40 x 2,000,000,000 numbers)"),
]


@pytest.mark.parametrize("flags, message", ABSURD)
def test_are_refused_in_a_line(run_train, tmp_path, flags, message):
    flags = (*GLYPHS, "--clients_per_round=2", *flags)
    line = assert_refused(run_train, flags, message, tmp_path / "run")
    assert "not enough memory: at least " in line and "GiB" in line


@pytest.mark.slow
def test_a_batch_may_be_larger_than_any_client(run_train, tmp_path):
    run_train(
        *GLYPHS,
        "--clients_per_round=2",
        "--rounds=1",
        "--runtime=in_process",
        "--batch_size=2147483647",
        f"--results_dir={tmp_path / 'run'}",
    ).ok()


def test_numbers_are_counted_in_bytes():
    assert list(memory_needs.matrix("W", 3, 5, copies=2).values()) == [2 * 3 * 5 * 4]
    assert list(memory_needs.images(2, 10, 3).values()) == [2 * 10 * 10 * 3]


def test_a_network_is_its_weights_and_its_layers():
    size = models.model_size(lambda: models.small_cnn((8, 8, 1), 4))
    needs = memory_needs.network(
        "phi", lambda: models.small_cnn((8, 8, 1), 4), 32, copies=3
    )
    assert list(needs.values()) == [3 * size.parameters, 32 * size.activations]
