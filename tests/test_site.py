"""The site: it builds, and a browser reads it from the disk, wide and narrow."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests import browser

ROOT = pathlib.Path(__file__).parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FEDSS = "tff_fedss.algorithms.build_fedss"
PAGES = {
    "start": "index.html",
    "reference": f"docs/api/algorithms.html#{FEDSS}",
    "claims": "docs/results/index.html",
    "tutorial": "docs/tutorials/fedss_in_ten_minutes.html",
}

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


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of a headless browser."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser here: none of {', '.join(BROWSERS)}")
    with browser.opened(program, tmp_path_factory.mktemp("profile")) as page:
        yield page


def is_wider_than_the_screen(page):
    whole, seen = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    return whole > seen


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_has_no_errors(site, page, name, width):
    path, _, anchor = PAGES[name].partition("#")
    page.open((site / path).as_uri() + f"#{anchor}", width)
    assert page.evaluate("innerWidth") == width
    assert not is_wider_than_the_screen(page)
    assert page.errors == []
    assert page.evaluate("document.querySelectorAll('article h1').length") == 1
    broken = "[...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
    assert page.evaluate(broken) == []
    if anchor:
        assert page.evaluate(f"!!document.getElementById('{anchor}')")


def test_what_a_page_does_wrong_is_seen(page, tmp_path):
    wrong = tmp_path / "wrong.html"
    wrong.write_text(
        "<meta name=viewport content='width=device-width'>"
        "<p style='width: 2000px'>wide</p><script>nothing()</script>"
    )
    page.open(wrong.as_uri(), 390)
    assert is_wider_than_the_screen(page)
    assert "nothing is not defined" in str(page.errors)
    wrong.write_text("<script src='http://localhost:9/x.js'></script>")
    page.open(wrong.as_uri(), 390)
    assert "localhost:9" in str(page.errors)


def test_the_search_finds_without_a_server(site, page):
    page.open((site / "index.html").as_uri(), 1280)
    page.evaluate(
        "document.querySelector('.md-search__input').focus();"
        "document.execCommand('insertText', false, 'logit correction');"
    )
    found = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    page.wait_for(f"{found}.length > 0")
    links = page.evaluate(found)
    assert any("docs/" in link for link in links), links
    for link in links:
        path = link.removeprefix(f"{site.as_uri()}/").partition("#")[0]
        assert (site / path.partition("?")[0]).is_file(), link
    assert page.errors == []


def test_the_reference_has_signatures_and_links_to_sources(site):
    text = (site / "docs/api/algorithms.html").read_text(encoding="utf-8")
    start = text.index(f'id="{FEDSS}"')
    entry = text[start : text.index('<h3 id="tff_fedss', start + 1)]
    assert "feature_extractor_fn" in entry and "[n, d]" not in entry[:1000]
    assert 'href="../../tff_fedss/algorithms/fedss.py"' in entry
    assert (site / "tff_fedss/algorithms/fedss.py").is_file()
