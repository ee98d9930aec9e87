"""How a program ends, and what it says then."""

import dataclasses

import pytest
import tensorflow as tf

from experiments.common import config, program
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


def test_a_program_takes_what_follows_its_flags(capsys):
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


def test_a_published_cell_is_deterministic_where_there_are_gpus(monkeypatch):
    arguments = ["train", "--cell=1/mini/omniglot_fedss_m5", "--seed=3"]
    on_cpu = program._with_cell(arguments, "fedss")
    assert "--deterministic" not in on_cpu
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    on_gpu = program._with_cell(arguments, "fedss")
    assert on_gpu == [*on_cpu[:-1], "--deterministic", "--seed=3"]
