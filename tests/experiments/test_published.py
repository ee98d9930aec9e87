"""The published pages, made again of the runs that are published beside them."""

import math
import pathlib
import re
import shlex
import shutil
import statistics

import pandas as pd
import pytest

from experiments.common import cells as cells_lib
from experiments.common import report, sources

pytestmark = pytest.mark.usefixtures("undrawn")
ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


def _pages():
    """Paper, table, scale; folder of docs/results; name of a page of a packed table."""
    for archive in sorted(RESULTS.rglob(sources.ARCHIVE)):
        folder = archive.parent
        for path in sorted(folder.glob("*.md")):
            command = r"- Command: `\./run\.sh table (\S+)(.*)`"
            if found := re.search(command, path.read_text()):
                paper, _, name = found[1].rpartition("/")
                scale = re.search(r"--scale=(\w+)", found[2])
                scale = scale[1] if scale else "mini"
                beside = folder.relative_to(RESULTS).as_posix()
                yield paper or "fedss", name, scale, beside, path.stem


PAGES = tuple(_pages())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "/".join(page[3:]))
def test_a_page_has_the_numbers_of_its_runs(tmp_path, page):
    paper, name, scale, folder, file = page
    published = RESULTS / folder
    shutil.copy(published / sources.ARCHIVE, tmp_path)
    text = (published / f"{file}.md").read_text()
    command = shlex.split(re.search("- Command: `(.*)`", text)[1])
    of_cells = cells_lib.tables_of(paper)[name, scale]
    seeds = [x.count(",") + 1 for x in command if x.startswith("--seeds=")]
    report.write_table(
        (name, scale), of_cells, tmp_path, *(seeds or [len(of_cells.seeds)]), command
    )
    assert (tmp_path / f"{file}.md").read_text() == text
    figures = re.findall(r"\]\((.*?\.png)\)", text)
    assert all((published / figure).exists() for figure in figures)


def test_every_packed_table_has_its_page_here():
    packed = {
        path.parent.relative_to(RESULTS).as_posix()
        for path in RESULTS.rglob(sources.ARCHIVE)
    }
    assert packed == {page[3] for page in PAGES} and len(PAGES) >= 32


def test_the_readme_has_the_numbers_of_table_1_mini():
    table_1 = cells_lib.tables_of("fedss")["1", "mini"]
    found = report.read(table_1, RESULTS / "table1_mini")

    def values(cell):
        return [run.final("top1") for run in found[cell]]

    def mean_std(method, m="", correction=""):
        own = values(f"omniglot_{method}{m}{correction}")
        return f"{statistics.fmean(own):.1f} ± {statistics.stdev(own):.1f}"

    sizes = [f"_m{m}" for m in (5, 10, 20, 40, 80)]
    expected = [
        ["FedSS", *(mean_std("fedss", m) for m in sizes)],
        [
            "FedSS, no logit correction",
            *(mean_std("fedss", m, "_uncorrected") for m in sizes),
        ],
        ["NegOnly (still rising)", *(mean_std("neg_only", m) for m in sizes)],
        ["PosOnly, FedAwS", f"{mean_std('pos_only')}, {mean_std('fedaws')}"],
        [
            "FullSoftmax, Centralized (best of three seeds)",
            ", ".join(
                f"{max(values(f'omniglot_{x}')):.1f}"
                for x in ("full_softmax", "centralized")
            ),
        ],
    ]
    lines = (ROOT / "README.md").read_text().splitlines()
    rows = [
        [cell for x in line.strip("|").split("|") if (cell := x.strip())]
        for line in lines
        if line.startswith("| ")
    ]
    for row in expected:
        assert row in rows


def _finished(paper, name, scale, folder):
    """A published table, and the frame of its finished runs."""
    of_cells = cells_lib.tables_of(paper)[name, scale]
    runs = report.frame(of_cells, report.read(of_cells, RESULTS / folder))
    return of_cells, runs[runs["is_done"]]


def test_the_readme_has_the_hours_of_table_1_mini():
    of_cells, runs = _finished("fedss", "1", "mini", "table1_mini")
    hours = runs[runs["seed"].isin(of_cells.seeds)]["hours"]
    assert len(hours) == len(of_cells.cells) * len(of_cells.seeds)
    # A run on each of two cores.
    assert (
        f"# {hours.sum() / 2:.1f} hours on 2 cores" in (ROOT / "README.md").read_text()
    )


def test_the_readme_has_the_numbers_of_the_rates_and_of_compare():
    text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    of_cells = cells_lib.tables_of("fedss")["rates", "mini"]
    found = report.read(of_cells, RESULTS / "searches")
    top1 = {name: own[0].final("top1") for name, own in found.items()}

    def by_rate(method):
        own = {name: x for name, x in top1.items() if f"_{method}" in name}
        (at_03,) = (x for name, x in own.items() if name.endswith("_0.03"))
        return at_03, max(own.values())

    common, own = (a - b for a, b in zip(by_rate("fedss"), by_rate("neg_only")))
    assert f"leads by {common:.1f} points at 0.03, by {own:.1f} at each" in text
    (minutes,) = re.findall(
        r"About (\d+) minutes", (RESULTS / "searches" / "README.md").read_text()
    )
    assert f"--rounds=100 --results_dir=DIR # {minutes} minutes" in text


def test_the_readme_has_the_numbers_of_the_demo():
    text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    rows = pd.read_csv(ROOT / "docs" / "demo" / "table.csv").set_index("method")
    percents = rows["top1_percent"].map("{:.1f}".format)
    share = rows["classes_percent"]["FedSS"]
    assert f"FedSS reaches {percents['FedSS']} % top-1 with {share:.1f} %" in text
    assert f"FullSoftmax reaches {percents['FullSoftmax']} % with all" in text


def test_the_readme_of_fedss_has_the_hours_of_the_published_runs():
    text = (ROOT / "experiments" / "fedss" / "README.md").read_text()
    rows = [
        line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `")
    ]
    assert len(rows) == 7
    for tables, hours, links in rows:
        folders = [
            (ROOT / "experiments" / "fedss" / link).resolve().parent
            for link in re.findall(r"\]\(([^)]+)\)", links)
        ]
        pages = [x for folder in folders for x in folder.rglob("*.md")]
        published = "\n".join(page.read_text() for page in pages)
        known = [f"{float(x):.1f}" for x in re.findall(r"- Hours: ([\d.]+)", published)]
        known += re.findall(r"(?<![\d.])(\d+\.\d) hours", published)
        for number in re.findall(r"\d+\.\d", hours):
            assert number in known, (tables, number)


@pytest.mark.parametrize("paper", ["leap", "moco", "rf_softmax"])
def test_a_run_takes_the_minutes_that_the_readme_says(paper):
    text = (ROOT / "experiments" / paper / "README.md").read_text()
    (most,) = re.findall(r"run took at most (\d+) minutes on a core", text)
    own = [page[:4] for page in PAGES if page[0] == paper]
    longest = max(_finished(*page)[1]["hours"].max() for page in own)
    assert int(most) == math.ceil(60 * longest)
