"""What `./run.sh` answers before TensorFlow is loaded, and what bash completes."""

import os
import pathlib
import pickle
import subprocess
import sys

import pytest

from experiments.common import answers, config, sweep
from experiments.fedss import run_config
from tff_fedss.errors import InvalidInputError

ROOT = pathlib.Path(__file__).parents[3]
PROGRAMS = {
    "train": "experiments.fedss.train",
    "compare": "experiments.fedss.compare",
    "moco": "experiments.moco.train",
    "table": "experiments.common.sweep",
}
LINES = "\n".join(f"{name} {module} does it" for name, module in PROGRAMS.items())
HEAVY = ("tensorflow", "tensorflow_federated", "keras", "pandas", "matplotlib", "PIL")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The folder of the answers, and the first of them, which has made it."""
    folder = tmp_path_factory.mktemp("answers")
    return folder, ask(folder, "train", "--help")


@pytest.fixture
def folder(first):
    return first[0]


def ask(folder, *arguments):
    command = [sys.executable, "-P", "-m", "experiments.common.answers", folder, LINES]
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_nothing_heavy_is_imported():
    program = (
        "import sys, experiments.common.answers\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    command = [sys.executable, "-P", "-c", program]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert found.stdout == "[]\n"


def test_help_is_the_programs(folder):
    found = ask(folder, "train", "--rounds=3", "--help")
    assert found.returncode == 0 and not found.stderr
    assert found.stdout.startswith("Trains one method on one data set.\n")
    topics = config.help_of("", run_config.RunConfig().flags())
    for text in topics.strip().split("\n\n"):
        heading, *_ = text.splitlines()
        assert heading in found.stdout
    assert "--cell=STRING" in found.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--rounds=0"], "flag --rounds=0: expected a whole number of at least 1"),
        (["--round=1"], "Unknown command line flag 'round'. Did you mean: rounds,"),
        (["--rounds=1", "x"], "unexpected argument 'x'"),
        ([], "--results_dir=DIR is needed, for the run's results."),
        (["--cell=1/mini/omniglot_fedss_m5"], "--results_dir=DIR is needed"),
        (["--cell=1/mini/x", "--results_dir=x"], "expected a CELL of omniglot_fedss"),
        (["table", "9"], "say which table of fedss, one of 1, 2, 3,"),
        (["table", "1", "--scale=huge"], "expected paper or mini or"),
        (["table", "leap/1", "--cells=*,x"], "--cells=x matches none of mnist_mini"),
    ],
)
def test_flags_that_are_wrong_are_told(folder, arguments, message):
    program = [] if arguments[:1] == ["table"] else ["train"]
    found = ask(folder, *program, *arguments)
    assert found.returncode == config.EXIT_BAD_INPUT and not found.stdout
    assert found.stderr.startswith("error: ") and message in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--results_dir=x", "--dp=gaussian:noise=1", "--noxla", "--seed=3"],
        ["train", "--cell=1/mini/omniglot_fedss_m5", "--results_dir=x"],
        ["compare", "--results_dir=x", "--methods=fedss,fedaws:weight=1,margin=1"],
        ["table", "1", "--report"],
    ],
)
def test_the_rest_is_for_the_program(folder, arguments):
    found = ask(folder, *arguments)
    assert (found.returncode, found.stdout) == (answers.GO_ON, ""), found.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["1", "--seeds=1,0", "--cells=*fedss*"],
        ["2", "--scale=paper", "--data_dir=data", "--rounds=7", "--pretrained=a.h5"],
        ["fedss/rates", "--cluster=auto"],
        ["moco/4", "--rounds=2"],
        ["nothing/1"],
    ],
)
def test_the_runs_of_a_table_are_those_of_the_program(folder, arguments, capsys):
    found = ask(folder, "table", *arguments, "--list")
    flags = config.parse(sweep.Config(), *arguments[1:])
    try:
        sweep.print_commands(sweep.find(flags, arguments[:1]).jobs)
    except InvalidInputError as error:
        assert found.returncode == config.EXIT_BAD_INPUT and not found.stdout
        assert found.stderr == f"error: {error}\n"
    else:
        assert found.returncode == 0, found.stderr
        expected = capsys.readouterr()
        assert (found.stdout, found.stderr) == (expected.out, expected.err)
        assert found.stdout


def test_a_source_that_has_changed_is_asked_again(folder, tmp_path):
    (path,) = folder.iterdir()
    assert answers.is_fresh(path)
    old = tmp_path / path.name
    old.touch()
    os.utime(old, (0, 0))
    assert not answers.is_fresh(old) and not answers.is_fresh(tmp_path / "none")
    # A program that is to run is not kept waiting.
    assert ask(tmp_path, "train").returncode == answers.GO_ON
    assert old.stat().st_mtime == 0
    assert pickle.loads(path.read_bytes()) == answers.fetch(tmp_path, LINES)
    assert answers.is_fresh(old)


def test_a_link_to_nothing_is_no_source(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "_ROOT", tmp_path)
    (tmp_path / "run.sh").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".#x.py").symlink_to("me@host.1:2")
    (tmp_path / "answers").touch()
    assert answers.is_fresh(tmp_path / "answers")


def test_the_first_answer_has_no_error(first):
    assert (first[1].returncode, first[1].stderr) == (0, "")


# --- What bash completes after `eval "$(./run.sh completion)"` ----------------------


@pytest.fixture(scope="module")
def complete(first, tmp_path_factory):
    """Returns the words that bash offers for the last of some words."""
    path = tmp_path_factory.mktemp("completion") / "completion.bash"
    path.write_text(answers.script(answers.fetch(first[0], LINES)) + "\n")
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
        (["compare", "--methods", "=", "full"], ["full_softmax"]),
        (["train", "--method", "=", "fedaws"], ["fedaws"]),
        (
            ["train", "--cell", "=", "1/mini/omniglot_fedss_m5_"],
            ["1/mini/omniglot_fedss_m5_uncorrected"],
        ),
        (["moco", "--cell", "=", "4/mini/d_gamma1"], ["4/mini/d_gamma1"]),
        (
            ["table", "--scale", "="],
            ["paper", "mini", "tiny_imagenet", "turned", "chunks", "long"],
        ),
    ],
)
def test_words_come_from_the_tables(complete, typed, expected):
    assert complete(*typed) == expected


def test_all_values_are_offered_after_the_equals_sign(complete):
    assert {"fedss", "centralized"} <= {*complete("train", "--method", "=")}
