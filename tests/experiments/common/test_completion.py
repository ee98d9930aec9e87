"""What bash completes after `eval "$(./run.sh completion)"`."""

import subprocess

import pytest

from experiments.common import answers, completion

PROGRAMS = {
    "train": "experiments.fedss.train",
    "compare": "experiments.fedss.compare",
    "moco": "experiments.moco.train",
    "table": "experiments.common.sweep",
}


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """Returns the words that bash offers for the last of some words."""
    path = tmp_path_factory.mktemp("completion") / "completion.bash"
    path.write_text(completion.script(answers.collect(PROGRAMS)) + "\n")
    program = """
        source "$1"; shift
        COMP_WORDS=(./run.sh "$@"); COMP_CWORD=$#
        _tff_fedss; printf '%s\\n' "${COMPREPLY[@]}"
    """

    def run(*typed):
        command = ["bash", "-uc", program, "bash", str(path), *typed]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        assert not found.stderr
        return found.stdout.split()

    return run


@pytest.mark.parametrize(
    "typed, expected",
    [
        (["tr"], ["train"]),
        (["compare", "--metho"], ["--methods="]),
        (["compare", "--methods", "=", "full"], ["full_softmax"]),
        (["train", "--method", "=", "fedaws"], ["fedaws"]),
        (["train", "--dataset", "=", "omni"], ["omniglot"]),
        (["train", "--cell", "=", "1/mini/omniglot_fedss_m5_"], None),
        (["moco", "--cell", "=", "4/mini/d_gamma1"], ["4/mini/d_gamma1"]),
        (["table", "fedss/figure"], ["fedss/figure6"]),
        (["table", "1", "--sc"], ["--scale="]),
        (
            ["table", "--scale", "="],
            ["mini", "chunks", "turned", "tiny_imagenet", "paper"],
        ),
        (["train", "--nothing", "=", "x"], []),
    ],
)
def test_words_come_from_the_tables(complete, typed, expected):
    if expected is None:
        expected = ["1/mini/omniglot_fedss_m5_uncorrected"]
    assert complete(*typed) == expected


def test_all_values_are_offered_after_the_equals_sign(complete):
    assert {"fedss", "centralized"} <= {*complete("train", "--method", "=")}
