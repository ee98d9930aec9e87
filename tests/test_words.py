"""The banned words of banned_words.txt are in no text, comment or name."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# A phrase a line, and behind a tab what to write instead.
BANNED = dict(
    line.split("\t")
    for line in (ROOT / "tests" / "banned_words.txt").read_text().splitlines()
)
# Words may be on two lines, also of comments.
_PATTERN = re.compile(
    r"(?<![\w-])(?:"
    + "|".join(
        r"\s+(?:#\s*)?".join(map(re.escape, phrase.split()))
        for phrase in sorted(BANNED, key=len, reverse=True)
    )
    + r")(?![\w-])",
    re.IGNORECASE,
)
# In pages of published runs, and so in the programs that write these pages.
PUBLISHED = "nobody else's"


def test_no_text_has_a_banned_word():
    assert _PATTERN.search("\n# ".join(["Goes", "on"]))
    assert not _PATTERN.search("goes-on")
    patterns = ["*.py", "*.md", "*.sh", "*.flags"]
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("no git checkout")
    hits = []
    for name in listed.stdout.split():
        text = (ROOT / name).read_text("utf-8").replace(PUBLISHED, "")
        # Code between back quotes does not count; its lines do.
        text = re.sub(
            r"`[^`\n]*(?:\n[^`\n]+)?`", lambda code: "\n" * code[0].count("\n"), text
        )
        for match in _PATTERN.finditer(text):
            phrase = " ".join(match[0].replace("#", " ").lower().split())
            line = text.count("\n", 0, match.start()) + 1
            hits.append(f"{name}:{line}: {phrase!r}: write {BANNED[phrase]}")
    assert not hits, "\n".join(hits)
