"""The claims: their numbers are those of the published runs, the pages those of both.

`./run.sh python -m experiments.common.claims` writes what the first test compares.
"""

import io
import pathlib
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.common import claims as claims_lib
from experiments.common import sources
from tff_fedss import models

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
CLAIMS = claims_lib.read("claims.csv")
TABLES = claims_lib.read("tables.csv")
BY_HAND = [RESULTS / "README.md", *sorted((RESULTS / "claims").glob("*.md"))]
NEEDS_A_TABLE = ("reproduced", "partly", "not reproduced")
NUMBER = re.compile(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)?(?:e-\d+)?(?!\w)")


def _where(table):
    """The folder or file that a `table` names."""
    return (ROOT if table.startswith("tests/") else RESULTS) / table


def _text(path):
    """The text of a page, or of all pages of a folder."""
    pages = sorted(path.glob("*.md")) if path.is_dir() else [path]
    return "\n".join(page.read_text() for page in pages)


def _by_hand(page):
    """What of a page is not made."""
    return re.sub(r"<!-- made.*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)


def test_the_files_are_what_the_published_runs_give():
    for path, text in claims_lib.made().items():
        assert text == path.read_text(), path


def test_an_interval_is_that_of_a_paired_t_test():
    archive = sources.read_archive(RESULTS / "headline_long" / sources.ARCHIVE)

    def top1(cell):
        runs = [f"omniglot_{cell}/seed{k}" for k in range(5)]
        files = [archive[f"{run}/metrics.csv"] for run in runs]
        return [100 * pd.read_csv(io.BytesIO(x))["top1"].iloc[-1] for x in files]

    behind = np.subtract(top1("fedss_m40"), top1("full_softmax"))
    low, high = stats.t.interval(0.95, 4, behind.mean(), stats.sem(behind))
    (row,) = CLAIMS.query("paper == 'fedss' and id == '2'").to_dict("records")
    found = [claims_lib.parts(row[end])[0] for end in ("low", "high")]
    assert found == [f"{low:+.1f}", f"{high:+.1f}"]


def test_a_mean_after_a_round_is_that_of_its_row():
    found = [claims_lib.published("leap/table1.md", "table leap/1 --scale=mini")]
    archive = sources.read_archive(RESULTS / "leap" / sources.ARCHIVE)
    files = [archive[f"leap/mnist_mini/leap/seed{k}/metrics.csv"] for k in range(3)]
    tables = [pd.read_csv(io.BytesIO(x)).set_index("round") for x in files]
    mean = sum(100 * table["top1"][10] for table in tables) / 3
    assert claims_lib.measure("top1@10 mnist_mini/leap", found)[0] == f"{mean:.2f}"
    with pytest.raises(KeyError, match="no run of mnist_mini/no_such"):
        claims_lib.measure("top1 mnist_mini/no_such", found)


def _significant_rounds(table, command, metric, cells):
    """The rounds after the start at which cells differ significantly; the others."""
    found = [claims_lib.published(table, command)]
    run = found[0][1][cells.partition(" ")[0]][0]
    rounds = [row["round"] for row in run.rows[1:] if metric in row]
    ends = {k: claims_lib.measure(f"{metric}@{k} {cells}", found)[1:] for k in rounds}
    differ = [k for k, (low, high) in ends.items() if float(low) * float(high) > 0]
    return differ, [k for k in rounds if k not in differ]


def _behind(differ, others):
    return f"behind at {len(differ)} of {len(differ) + len(others)} measured rounds"


def test_the_rounds_that_paragraphs_call_significant():
    fedss, leap = (
        re.sub(r"\s+", " ", (RESULTS / "claims" / f"{x}.md").read_text())
        for x in ("fedss", "leap")
    )

    def of_table_1(command, m):
        cells = f"omniglot_fedss_m{m} - omniglot_full_softmax"
        return _significant_rounds("table1_mini", command, "top1", cells)

    found = of_table_1("table 1 --scale=mini", 20)
    assert f"{_behind(*found)}." in fedss
    found = of_table_1("table headline", 80)
    *first, last = map(str, found[1])
    assert f"{_behind(*found)} (all but {', '.join(first)} and {last})" in fedss
    rounds, _ = _significant_rounds(
        "leap/table1.md",
        "table leap/1 --scale=mini",
        "test_loss",
        "cifar10_mini/leap - cifar10_mini/random",
    )
    # 78 mini-batches a round.
    *first, last = (f"{78 * k:,}" for k in rounds)
    assert f"after {', '.join(first)} and {last}, and at no other" in leap


@pytest.mark.parametrize("paper", claims_lib.PAPERS)
def test_claims_are_complete(paper):
    own = CLAIMS[CLAIMS["paper"] == paper]
    assert list(own["id"]) == [str(i + 1) for i in range(len(own))]
    for _, row in own.iterrows():
        assert row["verdict"] in claims_lib.VERDICTS, row["id"]
        if row["verdict"] in NEEDS_A_TABLE:
            assert row["how"] in ("measured", *claims_lib.EXACT), row["id"]
            assert row["ours"] and row["table"], row["id"]
        for table in claims_lib.parts(row["table"]):
            assert _where(table).exists(), table
            assert table in set(TABLES["table"]), table
        printed = f"{row['claim']} ({row['section']})", row["printed"]
        for cell in (*printed, claims_lib.ours(row)):
            assert len(cell) <= 80, cell
    assert set(CLAIMS["paper"]) == set(claims_lib.PAPERS)


def test_numbers_without_runs_stand_on_their_pages():
    of_pages = CLAIMS[(CLAIMS["value"] == "") & (CLAIMS["ours"] != "")]
    checked = 0
    for _, row in of_pages.iterrows():
        tables = claims_lib.parts(row["table"])
        if not tables[0].startswith("tests/"):
            there = {x for t in tables for x in NUMBER.findall(_text(_where(t)))}
            numbers = NUMBER.findall(row["ours"])
            assert set(numbers) <= there, (row["paper"], row["id"])
            checked += len(numbers)
    assert checked > 30


def _shares(at_64, at_1280):
    """Section 4.3's shares of a model by claim, of two sizes of phi."""
    sop, landmarks = 11_318, 2_028
    saving, whole = models.communication_saving, models.last_layer_share
    shares = {
        "21": [whole(at_64, sop, 64), whole(at_64, landmarks, 64)],
        "22": [saving(at_64, sop, 64, 100)],
        "23": [saving(at_64, landmarks, 64, 170)],
        "24": [saving(at_1280, sop, 1280, 100), saving(at_1280, landmarks, 1280, 170)],
    }
    return {k: ", ".join(f"{100 * x:.1f}" for x in own) for k, own in shares.items()}


def test_the_counted_shares_of_width_0_9():
    ours = CLAIMS[CLAIMS["paper"] == "fedss"].set_index("id")["ours"]
    # test_mobilenet_v3.py counts these parameters.
    for number, shares in _shares(3_677_016, 3_595_032).items():
        assert ours[number].startswith(f"{shares} %")


@pytest.mark.slow
def test_the_counted_shares_of_the_default_width():
    phis = [models.mobilenet_v3((224, 224, 3), d) for d in (64, 1280)]
    shares = _shares(*(phi.count_params() for phi in phis))
    text = (RESULTS / "claims" / "fedss.md").read_text()
    (paragraph,) = re.findall(r"\*\*21 to 24\.\*\* (.*?)\n\n", text, re.DOTALL)
    paragraph = re.sub(r"\s+", " ", paragraph)
    for number in ("21", "22", "24"):
        assert f"{shares[number].replace(', ', ' and ')} % ({number})" in paragraph


def test_the_findings_have_the_numbers_of_the_claims():
    findings = re.findall(r"^\d\. .*$", (RESULTS / "README.md").read_text(), re.M)
    assert len(findings) == 6
    known = ", ".join(claims_lib.ours(row) for _, row in CLAIMS.iterrows())
    pages = "\n".join(x.read_text() for x in sorted(RESULTS.glob("*/*.md")))
    pages = re.sub(" +", " ", pages)
    for finding in findings:
        intervals = re.findall(r"\S+ \[[-+.\d]+, [-+.\d]+\]", finding)
        numbers = intervals or re.findall(r"\d+\.\d+", finding)
        assert numbers, finding
        found = [(number, known) for number in numbers]
        halves = re.findall(r"[-+]?\d+\.\d+ ± \d+\.\d+", finding)
        found += [(number, pages) for number in halves]
        for number, where in found:
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", where), number


@pytest.mark.parametrize("paper", claims_lib.PAPERS)
def test_the_numbers_of_the_paragraphs_stand_on_pages(paper):
    own = CLAIMS[CLAIMS["paper"] == paper].set_index("id")
    page = RESULTS / "claims" / f"{paper}.md"
    paragraphs = [x for x in _by_hand(page).split("\n\n") if x.startswith("**")]
    for paragraph in paragraphs:
        (numbers,) = re.findall(r"^\*\*([\d, to]+)\.\*\*", paragraph)
        ids = re.findall(r"\d+", numbers)
        assert set(ids) <= set(own.index), paragraph
        if set(own["how"][ids]) == {"counted"}:
            continue  # Counted again above.
        links = re.findall(r"\]\(([^)#]+)", paragraph)
        paths = [(page.parent / x).resolve() for x in links if not x.endswith(".png")]
        paths += [_where(t) for i in ids for t in claims_lib.parts(own["table"][i])]
        # Beside a README.md of a folder lie the tables that it explains.
        paths = [x.parent if x.name == "README.md" else x for x in paths]
        text = "\n".join(_text(x) for x in paths)
        text += claims_lib.claims_table(own.loc[ids].reset_index())
        text = re.sub(r"\s+", " ", text)
        prose = re.sub(r"\]\([^)]*\)", "]", paragraph.partition(".**")[2])
        prose = re.sub(r"\s+", " ", prose)
        for number in re.findall(r"\d+\.\d+(?: ± \d+\.\d+)?(?:e-\d+)?", prose):
            found = re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", text)
            assert found, (number, prose)


@pytest.mark.parametrize("page", BY_HAND, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)]+)\)", page.read_text())
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        path = page.parent / name
        assert path.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text().lower(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", x).replace(" ", "-") for x in headings]
            assert anchor in anchors, link
