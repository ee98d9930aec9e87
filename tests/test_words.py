"""The banned words of banned_words.txt are in no comment, text or page."""

import io
import pathlib
import re
import subprocess
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# A phrase a line, and behind a tab what to write instead.
BANNED = dict(
    line.split("\t")
    for line in (ROOT / "tests" / "banned_words.txt").read_text().splitlines()
)
# Words may be on two lines, but not in two paragraphs.
_PATTERN = re.compile(
    r"(?<![\w-])(?:"
    + "|".join(
        r"[^\S\n]*(?:\n[^\S\n]*|(?<=\s))".join(map(re.escape, phrase.split()))
        for phrase in sorted(BANNED, key=len, reverse=True)
    )
    + r")(?![\w-])",
    re.IGNORECASE,
)
# Its examples are banned.
EXEMPT = ("tests/test_words.py",)
# In pages of published runs, and so in the programs that write these pages.
PUBLISHED = ("nobody else's",)


def tracked() -> list[str]:
    """The files that are checked."""
    patterns = ["*.py", "*.md", "*.sh", "*.flags"]
    found = subprocess.run(
        ["git", "ls-files", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if found.returncode:
        pytest.skip("no git checkout")
    return [name for name in found.stdout.split() if not name.startswith(EXEMPT)]


def prose(name: str, text: str) -> str:
    """The text without code, its words in their lines; quoted words do not count."""
    if name.endswith(".py"):
        lines = [""] * (text.count("\n") + 2)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                for i, part in enumerate(token.string.split("\n")):
                    lines[token.start[0] - 1 + i] += " " + re.sub(
                        r'^f?"|[#"]', " ", part
                    )
        text = "\n".join(lines)
    # Code between back quotes, also over a line's end.
    return re.sub(
        r"`[^`\n]*(?:\n[^`\n]+)?`", lambda code: re.sub(r"[^\n]", " ", code[0]), text
    )


def may_have(text: str) -> bool:
    """Whether a text, code included, can have banned words: quick to tell."""
    words = re.findall(r"[\w'-]+", text.lower())
    line = f" {' '.join(word for word in words if word != 'f')} "
    return any(f" {phrase} " in line for phrase in BANNED)


def found(name: str, text: str) -> list[str]:
    """The banned words of a text, with file, line and replacement."""
    if not may_have(text):
        return []
    text = prose(name, text)
    for phrase in PUBLISHED:
        text = text.replace(phrase, " " * len(phrase))
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {' '.join(words)!r}: "
        f"write {BANNED[' '.join(words).lower()]}"
        for match in _PATTERN.finditer(text)
        if (words := match[0].split())
    ]


def test_no_text_has_a_banned_word():
    names = tracked()
    assert len(names) > 100
    hits = [
        hit for name in names for hit in found(name, (ROOT / name).read_text("utf-8"))
    ]
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("x.py", '"""Runs.\n\nThe run goes\non.\n"""\n', 3),
        ("x.py", 'x = 1\ny = f(\n    "it goes "\n    f"on, {x}"\n)\n', 3),
        ("x.py", "goes_on = 1\n# It\n# goes on.\n", 3),
        ("x.md", "It\n\nGoes on.\n", 3),
        ("x.sh", "# goes on\n", 1),
    ],
)
def test_a_banned_word_is_found_in_its_line(name, text, line):
    (hit,) = found(name, text)
    assert hit.startswith(f"{name}:{line}: ") and "resumes" in hit
