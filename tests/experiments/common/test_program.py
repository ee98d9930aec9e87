"""How a program ends, and what it says then."""

import dataclasses

import pytest
import tensorflow as tf

from experiments.common import cells, config, program, runtime_config
from experiments.fedss import train
from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError, RunStoppedError


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    data_dir: str | None = config.flag(None, "Where.")
    rounds: int = config.flag(1, "How long.")


@pytest.mark.parametrize(
    "message, line",
    [
        ("data_dir=/x has no file.", "--data_dir=/x has no file."),
        (
            "It needs `data_dir`, not (rounds=3).",
            "It needs --data_dir, not (--rounds=3).",
        ),
        ("--rounds=3 is said already", "--rounds=3 is said already"),
        ("/a/rounds=3 is a path, 'rounds=4' a text", None),
        ("my_rounds=3 and `seed` are no flags, seed=3 neither", None),
    ],
)
@pytest.mark.parametrize("error, code", [(InvalidInputError, 2), (RunStoppedError, 1)])
def test_arguments_of_the_library_are_flags_to_a_user(
    capsys, message, line, error, code
):
    def main(asked):
        raise error(message)

    with pytest.raises(SystemExit) as end:
        program.run(main, Config(), ["program"])
    assert end.value.code == code
    assert capsys.readouterr().err == f"error: {line or message}\n"


def test_an_error_of_tensorflow_keeps_its_reason_and_no_stack(capsys):
    def main(asked):
        stack = "\n".join(f'  File "module_{k}.py", line {k}, in f' for k in range(20))
        raise tf.errors.InternalError(
            None,
            None,
            "Graph execution error:\n\nDetected at node phi/MatMul defined at (most "
            f"recent call last):\n{stack}\n\nthe function failed to launch on the GPU\n"
            "\t [[{{node phi/MatMul}}]] [Op:__inference_f_1]",
        )

    with pytest.raises(SystemExit) as end:
        program.run(main, Config(), ["program"])
    assert end.value.code == 1
    reason = "the function failed to launch on the GPU"
    assert f"error: TensorFlow: {reason}" in capsys.readouterr().err


def test_a_program_takes_what_follows_its_flags():
    seen = []
    with pytest.raises(SystemExit):
        program.run(
            lambda *asked: seen.append(asked),
            Config(),
            ["program", "--rounds=2", "--", "--rounds=3", "x"],
            takes_arguments=True,
        )
    assert seen == [(Config(rounds=2), ["--rounds=3", "x"])]


def test_a_stray_word_is_named(capsys):
    with pytest.raises(SystemExit) as end:
        program.run(print, Config(), ["program", "x"])
    assert end.value.code == 2
    assert "unexpected argument 'x'" in capsys.readouterr().err


@pytest.mark.parametrize("gpus", [[], ["a GPU"]])
def test_a_cell_sets_the_flags_that_are_not_given(monkeypatch, gpus):
    seen = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(runtime_config, "configure_gpus", lambda asked: None)
    monkeypatch.setattr(runtime, "set_in_process_context", lambda: None)
    arguments = ["--cell=1/mini/omniglot_fedss_m5", "--rounds=3", "--results_dir=x"]
    with pytest.raises(SystemExit):
        program.run(seen.append, train.Config(), ["train", *arguments], paper="fedss")
    settings = cells.find("fedss", "1/mini/omniglot_fedss_m5").settings
    given = {**settings, "rounds": 3, "results_dir": "x"}
    # To repeat published numbers; on CPUs they repeat anyway.
    given |= {"deterministic": True} if gpus else {}
    assert seen == [train.Config(**given)]
