"""The site: it builds, and a browser reads it from the disk, wide and narrow."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FEDSS = "tff_fedss.algorithms.build_fedss"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site():
    """The folder of the site, built here; the tutorials run if they have changed."""
    python = pathlib.Path(sys.executable).parent
    done = subprocess.run(
        [ROOT / ".ci/docs"],
        env={**os.environ, "PATH": f"{python}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode == 3:
        pytest.skip(f"no environment for the site: {done.stdout[-500:]}")
    assert done.returncode == 0, done.stdout[-5000:]
    return ROOT / "site"


def test_the_reference_has_signatures_and_links_to_sources(site):
    text = (site / "docs/api/algorithms.html").read_text(encoding="utf-8")
    start = text.index(f'id="{FEDSS}"')
    entry = text[start : text.index('<h3 id="tff_fedss', start + 1)]
    assert "feature_extractor_fn" in entry and "[n, d]" not in entry[:1000]
    assert 'href="../../tff_fedss/algorithms/fedss.py"' in entry
    assert (site / "tff_fedss/algorithms/fedss.py").is_file()
