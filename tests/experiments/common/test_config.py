"""Flags from a dataclass: what is defined, read, written and shown."""

import dataclasses
import re

import pytest
from absl import flags

from experiments.common import cells, config, option_words, program
from experiments.fedss import compare, methods
from experiments.fedss import train as fedss
from experiments.leap import train as leap
from experiments.moco import train as moco
from experiments.partial_fc import train as partial_fc
from experiments.rf_softmax import train as rf_softmax
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class Base(config.Config):
    where: str | None = config.flag(None, "Where.", group="Places", decides=False)
    seed: int = config.flag(0, "Draws.", low=0)


@dataclasses.dataclass(frozen=True)
class Config(Base):
    name: str | None = config.flag(None, "Who.")
    rounds: int | None = config.flag(None, "How long.", group="Time", low=1)
    rate: float = config.flag(0.5, "How fast.", low=0.0, high=1.0)
    is_quick: bool = config.flag(False, "Whether.")
    kind: str = config.flag("a", "Which.", group="Kinds", choices=("a", "b"))
    kinds: tuple[str, ...] = config.flag(("a",), "Some.", choices=("a", "b"))
    words: tuple[str, ...] | None = config.flag(None, "Any.")
    sizes: tuple[int, ...] = config.flag((5, 10), "How large.", low=1, decides=False)


def test_defaults_are_those_of_the_instance():
    assert config.parse(Config()) == Config()
    assert config.parse(Config(rounds=3, kinds=("b", "a"))).kinds == ("b", "a")


def test_every_kind_is_read():
    asked = config.parse(
        Config(),
        *("--name=x", "--rounds=7", "--rate=1", "--is_quick", "--kind=b"),
        *("--kinds=a,b", "--words=", "--sizes=3, 4", "--seed=4", "--where=here"),
    )
    assert asked == Config(
        where="here",
        seed=4,
        name="x",
        rounds=7,
        rate=1.0,
        is_quick=True,
        kind="b",
        kinds=("a", "b"),
        words=(),
        sizes=(3, 4),
    )
    assert isinstance(asked.rate, float)


def test_a_list_of_words_with_options():
    asked = config.parse(
        compare.Config(results_dir="x"),
        "--methods=fedss,fedaws:margin=0.5,weight=2,centralized",
    )
    assert asked.methods == ("fedss", "fedaws:weight=2.0,margin=0.5", "centralized")
    own = methods.settings_of(asked.method_words, "fedaws")
    assert own == methods.FedAwS(weight=2.0, margin=0.5)
    assert methods.settings_of(asked.method_words, "fedss") is None
    assert methods.settings_of((), "centralized") == methods.Centralized()
    assert config.parse(compare.Config(results_dir="x")).methods == (
        *("fedss", "neg_only", "pos_only", "fedaws", "full_softmax", "centralized"),
    )


@pytest.mark.parametrize(
    "value, message",
    [
        ("fedss,fedss", "expected distinct ones of fedss, neg_only"),
        ("fedss,margin=1", "--methods=fedss,margin=1: expected one of fedss, neg_"),
        ("fedaws:weight=1,m=2", "'fedaws' has no option m; it has weight, margin"),
    ],
)
def test_what_is_no_list_of_words(value, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        config.parse(compare.Config(), f"--methods={value}")


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--rounds=0", "--rounds=0: expected a whole number of at least 1, at most 21"),
        (f"--rounds={2**31}", f"of at least 1, at most {2**31 - 1}"),
        ("--rate=nan", "--rate=nan: expected a number of at least 0"),
        ("--kind=c", "--kind=c: expected a or b"),
        ("--kinds=", "--kinds=: expected a or b, or several with commas"),
        ("--sizes=3,0", "--sizes=3,0: expected a whole number of at least 1, at most"),
        ("--sizes=", "--sizes=: expected a whole number of at least 1"),
        ("--sizes=1\n2", "expected a whole number of at least 1"),
        ("--speed=1", "Unknown command line flag 'speed'"),
    ],
)
def test_what_does_not_parse(argument, message):
    with pytest.raises(flags.Error, match=message):
        config.parse(Config(), argument)


def test_what_cannot_be_left_open():
    @dataclasses.dataclass(frozen=True)
    class Needy(config.Config):
        folder: str = config.flag(None, "Where.", needed="DIR is needed, for files.")

    for arguments in ((), ("--folder=",)):
        with pytest.raises(InvalidInputError, match="^--folder=DIR is needed, for fil"):
            config.parse(Needy(), *arguments)
    assert config.parse(Needy(), "--folder=x").folder == "x"


def test_what_decides_results_in_the_order_of_the_class():
    assert list(Config(rounds=2, where="x", words=("u", "v")).deciding().items()) == [
        ("rounds", "2"),
        ("rate", "0.5"),
        ("is_quick", "false"),
        ("kind", "a"),
        ("kinds", "a"),
        ("words", "u,v"),
        ("seed", "0"),
    ]
    assert Config(rate=1).deciding()["rate"] == "1.0"


def test_what_is_open_is_filled():
    settings = {"rounds": 9, "rate": 0.9, "unknown": 1}
    assert Config().filled(settings) == Config(rounds=9)
    assert Config(rounds=1).filled(settings).rounds == 1


def test_help_has_topics_and_defaults():
    text = config.help_of("Works.\n", Config(rounds=5).flags())
    assert text == (
        "Works.\n\n"
        "Flags:\n"
        "  --name=STRING\n      Who.\n\n"
        "Time:\n"
        "  --rounds=INT\n      How long. Default: 5.\n"
        "  --rate=FLOAT\n      How fast. Default: 0.5.\n"
        "  --[no]is_quick\n      Whether.\n\n"
        "Kinds:\n"
        "  --kind=a|b\n      Which. Default: a.\n"
        "  --kinds=STRINGS\n      Some. Default: a.\n"
        "  --words=STRINGS\n      Any.\n"
        "  --sizes=INTS\n      How large. Default: 5,10.\n\n"
        "Places:\n"
        "  --where=STRING\n      Where.\n"
        "  --seed=INT\n      Draws. Default: 0."
    )


def test_programs_of_two_papers_in_one_process(capsys):
    """Flags of one name are no matter to a program that comes after another."""
    for module in (rf_softmax, leap, rf_softmax):
        seen = []
        with pytest.raises(SystemExit) as end:
            program.run(
                seen.append,
                module.Config(),
                ["train", "--results_dir=x", "--alpha=2", "--embedding_dim=3"],
            )
        assert not end.value.code, capsys.readouterr().err
        (asked,) = seen
        assert isinstance(asked, module.Config)
        assert (asked.alpha, asked.embedding_dim) == (2.0, 3)
        assert "embedding_dim" not in flags.FLAGS


@pytest.mark.parametrize("module", [fedss, leap, moco, partial_fc, rf_softmax])
def test_every_published_cell_is_one_of_its_program(module):
    """A flag of a cell is one that the program knows, and decides its results."""
    paper = module.__name__.split(".")[1]
    for table in cells.tables_of(paper).values():
        for cell in table.cells.values():
            asked = config.parse(
                module.Config(results_dir="x"), *cells.as_arguments(cell.settings)
            )
            kept = asked.deciding()
            for name, text in option_words.as_texts(cell.settings).items():
                own = asked.flags()[name]
                expected = str(float(text)) if own.kind is float else text
                assert not own.decides or kept[name] == expected, (cell.name, name)
