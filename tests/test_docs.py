"""What README, docs and run.sh say: examples run, links lead on, commands have help."""

import ast
import os
import pathlib
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest

from examples import next_word

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_examples_of_the_library_run():
    text = (DOCS / "library.md").read_text()
    names = {}
    for example in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        # At its own lines: AutoGraph knows functions by where they stand in a file.
        lines_before = "\n" * text[: example.start(1)].count("\n")
        exec(compile(lines_before + example[1], "docs/library.md", "exec"), names)
    # All images are on a client, and all of them are the test: both count the same.
    by_tff = names["evaluation"].next(names["state"], names["clients"]).metrics
    by_tff = by_tff["client_work"]["eval"]["current_round_metrics"]
    ours = names["task"].evaluate(names["run"].weights)
    assert by_tff["top1"] == pytest.approx(ours["top1"])
    assert by_tff["num_examples"] == names["dataset"].test.num_examples
    check_aggregations(names)


def check_aggregations(names):
    """What each of the aggregations has to do to the first round of the plain one."""

    def delta(name):
        state = names[f"{name}_state"]
        return np.concatenate(
            [np.ravel(p) for p in (*state.feature_extractor, state.classifier)]
        ).astype(np.float64) - np.concatenate([np.ravel(p) for p in initial])

    process = names["algorithms"].build_fedss(
        names["tiny_phi"], 6, names["algorithms"].ClassSets(6), method="pos_only"
    )
    state = process.initialize()
    initial = [*state.feature_extractor, state.classifier]
    plain = delta("plain")
    size = np.linalg.norm(plain)
    assert size > 0.1
    off = {
        name: np.linalg.norm(delta(name) - plain) / size
        for name in (
            *("secure", "compressed", "median", "private", "proximal"),
            *("clipped", "robust", "rows", "union", "quantized", "noised", "tree"),
            *("arcface", "smoothed", "popular", "scheduled", "adam"),
        )
    }
    # Rounded to integers; to 256 steps; another middle; noise on a clipped update.
    assert 0 < off["secure"] < 1e-4, off
    assert 1e-4 < off["compressed"] < 0.5, off
    assert 0.01 < off["median"] < 2, off
    assert off["private"] > 0.5, off
    assert 0 < off["proximal"] < 2, off
    assert names["secure_metrics"]["num_clients"] == 4
    # As a vector the update is longer than the clip.
    assert 0 < off["union"] < 1e-4 and 0 < off["quantized"] < 0.5, off
    assert np.linalg.norm(delta("clipped")) <= 0.5 * (1 + 1e-5) < size, off
    assert off["noised"] > 0.5 and off["tree"] > 0.5, off
    assert off["scheduled"] == pytest.approx(0.5, abs=0.2), off
    others = ("robust", "rows", "arcface", "smoothed", "popular", "adam")
    assert all(0 < off[name] < 20 for name in others), off
    assert names["by_id_metrics"]["num_examples"] == 60


RENDER = runpy.run_path(str(DOCS / "site/tutorial.py"))["render"]


def run_tutorial(name, folder):
    """Runs a tutorial; returns its names and its page."""
    names = RENDER(DOCS / "tutorials" / f"{name}.py", folder)
    return names, (folder / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_fedss_in_ten_minutes(tmp_path):
    names, page = run_tutorial("fedss_in_ten_minutes", tmp_path)
    # The round by hand is that of the library, and what the page says of it is so.
    assert names["difference"] < 1e-5 and names["num_changed"] == len(names["keys"])
    own = names["is_positive"]
    assert (names["towards"][own] > 0).all() and (names["towards"][~own] < 0).all()
    estimate, _ = names["sums"].mean(0)
    exact = np.exp(names["logits"]).sum()
    assert abs(estimate - exact) < 4 * names["standard_errors"][0]
    last = {method: curve[-1] for method, curve in names["curves"].items()}
    assert min(last.values()) > 10 * names["task"].chance
    assert last["neg_only"] < last["fedss"] < last["full_softmax"]
    assert page.startswith("# FedSS") and page.count("](fedss_in_ten_minutes_") == 5


@pytest.mark.slow
def test_own_images_to_neighbours(tmp_path):
    names, page = run_tutorial("own_images_to_neighbours", tmp_path)
    assert names["same"] > 0.5
    assert (tmp_path / "neighbours/index.html").stat().st_size > 10_000
    assert page.count("\n$ ./run.sh ") == 6 and str(names["work"]) not in page


README = ROOT / "README.md"


def test_the_library_example_learns(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    (top1,) = re.findall(r"'top1': ([\d.]+)", capsys.readouterr().out)
    assert float(top1) > 10 / 500  # ten times chance


def test_words_are_learned_from_their_contexts(capsys):
    before, after = next_word.main(rounds=10)
    # The most popular of 10,000 words is a tenth of the text that is made up.
    assert before < 0.02 and after > 0.1
    assert "round 10  top-1" in capsys.readouterr().out


def num_words(*patterns):
    pages = [page for pattern in patterns for page in sorted(ROOT.glob(pattern))]
    assert pages
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def test_pages_are_short():
    """One fact stands in one place; a page that grows has another page's facts."""
    assert num_words("README.md") <= 900
    assert num_words("CHANGELOG.md") <= 250
    assert num_words("docs/*.md") <= 8000
    for page in (ROOT / "experiments").glob("*/README.md"):
        assert num_words(str(page.relative_to(ROOT))) <= 350, page


TABLE = re.search(r"<<'END'\n(.*?)\nEND", (ROOT / "run.sh").read_text(), re.DOTALL)[1]
PROGRAMS = [line.split(maxsplit=2) for line in TABLE.splitlines()]


@pytest.mark.parametrize("name, module", [program[:2] for program in PROGRAMS])
def test_every_command_has_an_example(name, module):
    source = ROOT / f"{module.replace('.', '/')}.py"
    text = ast.get_docstring(ast.parse(source.read_text()))
    assert re.search(rf"^ +./run.sh {name}\b", text, re.MULTILINE)


def test_faults_are_shown_by_tests_that_exist():
    text = (ROOT / "tests" / "faults" / "README.md").read_text()
    shown = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(shown) == len(rows) - 1 > 30  # Without the header.
    for path, name in shown:
        tree = ast.parse((ROOT / path).read_text())
        assert name in [getattr(node, "name", "") for node in tree.body], (path, name)


# --- The site ---------------------------------------------------------------------


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


@pytest.mark.slow
def test_the_reference_has_signatures_and_links_to_sources(site):
    text = (site / "docs/api/algorithms.html").read_text(encoding="utf-8")
    start = text.index('id="tff_fedss.algorithms.build_fedss"')
    entry = text[start : text.index('<h3 id="tff_fedss', start + 1)]
    assert "feature_extractor_fn" in entry and "[n, d]" not in entry[:1000]
    assert 'href="../../tff_fedss/algorithms/fedss.py"' in entry
    assert (site / "tff_fedss/algorithms/fedss.py").is_file()
