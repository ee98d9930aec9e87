"""Makes the tables of the claims: what of each paper is reproduced.

    ./run.sh python -m experiments.common.claims

reads claims.csv (a row for each claim) and tables.csv (a row for each table, page or
test that carries a number) of docs/results, takes the numbers from the published runs,
and writes both files and, in README.md and claims/PAPER.md, what lies between
`<!-- made: NAME -->` and `<!-- end -->`. The rest of the pages is written by hand.

A new row with a `value` (see `claim_numbers`) needs no `ours`, `low` and `high`.
Without one, `ours` is as the page that the column `table` names has it.
"""

import itertools
import pathlib

import pandas as pd

from experiments.common import claim_numbers
from experiments.common import table as tables_lib
from experiments.common.claim_numbers import RESULTS, parts

PAPERS = {
    "fedss": "FedSS",
    "rf_softmax": "RF-softmax",
    "partial_fc": "Partial FC",
    "leap": "LEAP",
    "moco": "focal contrastive",
}
VERDICTS = ("reproduced", "partly", "not reproduced", "cannot be run here", "not run")
EXACT = ("counted", "tested")  # How a claim was verified, if it was not measured.


def ours(row: pd.Series) -> str:
    """Writes what was measured and its numbers: `A − B: +9.6 [+7.1, +12.1]`."""
    numbers = itertools.zip_longest(*(parts(row[x]) for x in ("ours", "low", "high")))
    texts = [mean + f" [{low}, {high}]" * bool(low) for mean, low, high in numbers]
    return ": ".join(filter(None, (row["measure"], ", ".join(texts))))


def counts(claims: pd.DataFrame) -> str:
    """Writes the table of the verdicts by paper."""
    rows = []
    for paper in (*PAPERS, ""):
        own = claims[(claims["paper"] == paper) | (paper == "")]
        verdicts = [(own["verdict"] == verdict).sum() for verdict in VERDICTS]
        measured = ((own["verdict"] == VERDICTS[0]) & (own["how"] == "measured")).sum()
        name = f"[{PAPERS[paper]}](claims/{paper}.md)" if paper else "all"
        rows.append([name, len(own), verdicts[0], measured, *verdicts[1:]])
    header = ["", "claims", VERDICTS[0], "of which measured", *VERDICTS[1:]]
    return tables_lib.as_markdown(header, rows)


def claims_table(own: pd.DataFrame) -> str:
    """Writes the table of a paper's claims."""
    rows = []
    for _, row in own.iterrows():
        claim = f"{row['claim']} ({row['section']})"
        verdict = row["verdict"] + f" ({row['how']})" * (row["how"] in EXACT)
        rows.append([row["id"], claim, row["printed"], ours(row), verdict])
    header = ["#", "claim (section)", "paper", "ours [95 %]", "verdict"]
    return tables_lib.as_markdown(header, rows, left=range(5))


def tables_table(own: pd.DataFrame, tables: pd.DataFrame) -> str:
    """Writes where the numbers of a paper's claims are, and what made them."""
    rows = []
    for _, row in tables.iterrows():
        ids = [c["id"] for _, c in own.iterrows() if row["table"] in parts(c["table"])]
        if ids:
            link = f"[{row['table']}]({_link(row['table'])})"
            command = f"`{row['command']}`"
            rows.append([link, ", ".join(ids), command, row["commit"], row["hours"]])
    header = ["where", "claims", "command", "commit", "hours"]
    return tables_lib.as_markdown(header, rows, left=range(5))


def _link(table: str) -> str:
    """The page of a table, seen from docs/results/claims."""
    root = "../../../" if table.startswith("tests/") else "../"
    pages = sorted((RESULTS / table).glob("*.md"), key=lambda x: x.name != "README.md")
    return root + table + (f"/{pages[0].name}" if pages else "")


def made() -> dict[pathlib.Path, str]:
    """Returns the texts of all files that are made, whole, by path."""
    claims, tables = map(claim_numbers.read, ("claims.csv", "tables.csv"))
    claim_numbers.fill(claims, tables)
    texts = {
        RESULTS / "claims.csv": claims.to_csv(index=False),
        RESULTS / "tables.csv": tables.to_csv(index=False),
    }
    for path in (RESULTS / "README.md", *(RESULTS / f"claims/{p}.md" for p in PAPERS)):
        own = claims[claims["paper"] == path.stem]
        blocks = {"counts": counts(claims)}
        if len(own):
            blocks |= {"claims": claims_table(own), "tables": tables_table(own, tables)}
        texts[path] = path.read_text()
        for name, block in blocks.items():
            start, end = f"<!-- made: {name} -->\n", "<!-- end -->"
            before, found, rest = texts[path].partition(start)
            if found:
                after = rest.partition(end)[2]
                texts[path] = f"{before}{start}\n{block}\n\n{end}{after}"
    return texts


if __name__ == "__main__":
    for file, content in made().items():
        file.write_text(content)
