import dataclasses
import os
import pathlib
import re
from typing import Annotated, Literal

import pytest

from experiments.common import config, option_words
from experiments.common.option_words import Range, Word, parse, word
from experiments.fedss import train
from experiments.leap import train as leap
from experiments.moco import train as moco
from experiments.partial_fc import train as partial_fc
from experiments.rf_softmax import train as rf_softmax
from tests.refusals import refused


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Noise that is new
    in each round.

    Attributes:
        noise: z, the standard
            deviation.
        clip: C.
    """

    noise: Annotated[float, Range(low=0.0)]
    clip: Annotated[float, Range(low=1e-9, high=10)] = 1.0
    sampling: Literal["fixed", "poisson"] | None = None
    adaptive: bool = False
    restart: int | None = None
    file: str | os.PathLike | None = None
    lists: tuple[int, ...] = ()


WORDS = {"none": Word(), "gaussian": word(Gaussian)}


@pytest.mark.parametrize(
    "text, options, canonical",
    [
        ("none", {}, "none"),
        ("gaussian:noise=1", {"noise": 1.0}, "gaussian:noise=1.0"),
        # Defaults are left out, and the order is that of the declaration.
        ("gaussian:clip=1,noise=.5", {"noise": 0.5}, "gaussian:noise=0.5"),
        (
            "gaussian:restart=3,sampling=poisson,adaptive=true,noise=0,file=a/b.csv",
            dict(
                noise=0.0,
                sampling="poisson",
                adaptive=True,
                restart=3,
                file=pathlib.Path("a/b.csv"),
            ),
            "gaussian:noise=0.0,sampling=poisson,adaptive=true,restart=3,file=a/b.csv",
        ),
    ],
)
def test_a_word_and_its_options(text, options, canonical):
    chosen = parse("dp", text, WORDS)
    assert chosen == (text.partition(":")[0], options)
    assert str(chosen) == canonical and parse("dp", canonical, WORDS) == chosen


EXAMPLE = "; for example --dp=gaussian:noise=1."


@pytest.mark.parametrize(
    "text, message",
    [
        ("gausian:noise=1", "--dp=gausian:noise=1: expected one of none, gaussian."),
        (
            "gaussian:nois=1",
            "--dp=gaussian:nois=1: 'gaussian' has no option nois; it has noise, clip, "
            "sampling, adaptive, restart, file" + EXAMPLE,
        ),
        ("none:noise=1", "'none' has no option noise; it has none; for example"),
        ("gaussian", "--dp=gaussian: 'gaussian' needs noise" + EXAMPLE),
        ("gaussian:noise=-1", "noise is a number of at least 0, found '-1'" + EXAMPLE),
        ("gaussian:noise=1,clip=11", "clip is a number of at least 1e-09, at most 10,"),
        ("gaussian:noise=1,noise=2", "noise is given twice"),
        (
            "gaussian:noise=1,sampling=some",
            "sampling is fixed or poisson, found 'some'",
        ),
        ("gaussian:noise=1,lists=1", "has no option lists"),
    ],
)
def test_a_mistake_is_named_with_an_example(text, message):
    with refused(re.escape(message)):
        parse("dp", text, WORDS)


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    dp: str | None = config.flag(None, "Noise.", words=WORDS)


def test_flags_with_words():
    assert config.parse(Config(), "--dp=gaussian:clip=1,noise=2").dp == (
        "gaussian:noise=2.0"
    )
    with refused("--dp=gaussian: 'gaussian' needs"):
        config.parse(Config(), "--dp=gaussian")
    text = config.help_of(None, Config().flags())
    assert "--dp=none|gaussian:OPTION=VALUE,..." in text
    assert "--dp=gaussian:noise=1: Noise that is new in each round." in text
    assert (
        "noise: z, the standard deviation." in text and "clip: C. Default: 1.0" in text
    )


def test_options_of_several_functions():
    def load(name, *, folders: Literal["a", "b"] = "a", **options):
        """Loads.

        Args:
            folders: Which.
            **options: More.
        """

    def more(images, *, size: int = 3):
        """More.

        Args:
            size: How large.
        """

    found = word(load, more)
    assert list(found.options) == ["folders", "size"] and found.help == "Loads."
    assert found.options["folders"] == option_words.Option(
        default="a", choices=("a", "b"), help="Which."
    )
    assert list(word(load, more, names=["size"]).options) == ["size"]


@pytest.mark.parametrize("program", [train, leap, moco, partial_fc, rf_softmax])
def test_every_option_takes_its_choices(program):
    for flag in program.Config().flags().values():
        for name, its in (flag.words or {}).items():
            needed = {
                key: f"{key}={option.example}"
                for key, option in its.options.items()
                if option.default is option_words.NEEDED
            }
            for key, option in its.options.items():
                for text in option.choices:
                    given = ",".join({**needed, key: f"{key}={text}"}.values())
                    chosen = parse(flag.name, f"{name}:{given}", flag.words)
                    assert chosen.name == name
