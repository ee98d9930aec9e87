"""Whether the methods of our runs are in the order of the paper's."""

from collections.abc import Sequence

from experiments.fedss import paired_runs as paired
from experiments.fedss import paper_values, table_results
from experiments.fedss.methods import METHODS, drawing
from experiments.fedss.table_lines import Line
from experiments.fedss.table_results import Setting

_EITHER = "either"  # PosOnly or FedAwS: whichever has the number of the paper.


def of_paper(paper: paper_values.Table) -> list[tuple[str, str]]:
    """Finds which method is better than which in the paper.

    One method is better than another if it is so in all pairs of numbers that the paper
    prints: at the same m, where both draw negatives; or where its text says so.

    Args:
        paper: The table.

    Returns:
        Pairs (better, worse) of methods; "either" stands for the better one of PosOnly
        and FedAwS, where it is unknown whose the number is.
    """
    numbers: dict[str, dict[int | None, float]] = {}
    for (method, m), value in paper.values[paper.metrics[-1]].items():
        if value is not None:
            numbers.setdefault(method, {})[m] = value.mean
    if paper.either_value is not None:
        numbers[_EITHER] = {None: paper.either_value.mean}
    pairs = []
    for better, mine in numbers.items():
        for worse, theirs in numbers.items():
            comparisons = [
                mine[m] > theirs[other]
                for m in mine
                for other in theirs
                if m == other or m is None or other is None
            ]
            if better != worse and comparisons and all(comparisons):
                pairs.append((better, worse))
    if {*paper.either} and {*paper.either} <= {*paper.outperformed}:
        # Said of both of them, below.
        pairs.remove(("fedss", _EITHER))
    pairs += [
        ("fedss", worse)
        for worse in paper.outperformed
        if ("fedss", worse) not in pairs
    ]
    return pairs


def _chain(paper: paper_values.Table, pairs: Sequence[tuple[str, str]]) -> str:
    """Writes the order that follows from numbers as A > B > C."""
    titles = {name: method.title for name, method in METHODS.items()}
    titles[_EITHER] = "PosOnly or FedAwS"
    known = {
        method
        for (method, _), value in paper.values[paper.metrics[-1]].items()
        if value is not None
    }
    if paper.either_value is not None:
        known.add(_EITHER)
    losses = {method: 0 for method in known}
    for better, worse in pairs:
        if better in known and worse in known:
            losses[worse] += 1
    # `titles` breaks ties, of which there are none by now.
    text = " > ".join(
        titles[method]
        for method in sorted(titles, key=lambda method: losses.get(method, 0))
        if method in known
    )
    by_text = [worse for worse in paper.outperformed if worse not in known]
    if by_text:
        text += (
            f"; and FedSS > {', '.join(titles[worse] for worse in by_text)} "
            f"({paper.claim_source})"
        )
    return text


def compare(
    results: table_results.Results,
    paper: paper_values.Table,
    lines: Sequence[Line],
    sizes: Sequence[int],
) -> list[str]:
    """Writes whether our methods are in the paper's order.

    Args:
        results: The runs.
        paper: The paper's table.
        lines: Of our table.
        sizes: The values of m that have a column there.

    Returns:
        Paragraphs, in Markdown, for each reading of the logit correction.
    """
    by_setting = {x.setting: x for x in lines if x.metric == results.task.metric}
    pairs = of_paper(paper)
    title = paper.title_beside(results.dataset)
    text = ["", f"Order of the methods, {title}: {_chain(paper, pairs)}.", ""]
    readings = [
        corrected
        for corrected in (True, False)
        if any(s.method == "fedss" and s.is_corrected == corrected for s in by_setting)
    ]
    for corrected in readings or [True]:
        name = Setting("fedss", None, corrected).title if len(readings) > 1 else "FedSS"
        text += [
            f"Ours, with {name}: "
            + _verdict(results, pairs, by_setting, sizes, corrected),
            "",
        ]
    return text


def _verdict(
    results: table_results.Results,
    pairs: Sequence[tuple[str, str]],
    by_setting: dict[Setting, Line],
    sizes: Sequence[int],
    corrected: bool,
) -> str:
    """Compares our numbers as the paper's are ordered."""

    def candidates(method: str, m: int) -> list[Line | None]:
        if method == _EITHER:
            return [by_setting.get(Setting(one)) for one in ("pos_only", "fedaws")]
        if not METHODS[method].draws_negatives:
            return [by_setting.get(Setting(method))]
        # NegOnly need not have been run in both readings.
        line = by_setting.get(Setting(method, m, corrected))
        if line is None and method == "neg_only":
            line = by_setting.get(Setting(method, m))
        return [line]

    agree, open_, against, is_early = 0, 0, [], False
    told = []
    for better, worse in pairs:
        draws = {better, worse} & {*drawing()}
        for m in sizes if draws else sizes[:1]:
            sides = [candidates(better, m), candidates(worse, m)]
            if any(x is None or x.ours is None for side in sides for x in side):
                open_ += 1
                continue
            high, low = (max(side, key=lambda x: x.headline) for side in sides)
            is_early |= any(x.ours.num_seeds < x.expected_seeds for x in (high, low))
            if high.headline > low.headline:
                agree += 1
            else:
                against.append(
                    f"{high.setting} {high.headline:.1f} is not above {low.setting} "
                    f"{low.headline:.1f}"
                )
            ahead = paired.between(
                results.cells[high.setting].runs,
                results.cells[low.setting].runs,
                results.task.metric,
            )
            if ahead is not None and len(ahead.values) > 1:
                told.append(ahead.mean if ahead.is_told else 0)
    total = agree + len(against) + open_
    if against:
        text = (
            f"the paper's order is NOT reproduced: {len(against)} of {total} "
            f"comparisons are against it: {'; '.join(against)}."
        )
    elif open_:
        text = "whether the paper's order is reproduced cannot be told yet."
    else:
        text = f"the paper's order is reproduced, in all {total} comparisons."
    if open_:
        text += (
            f" {open_} of {total} comparisons wait for cells that are not finished; "
            f"{agree} agree."
        )
    if told:
        yes, no = sum(x > 0 for x in told), sum(x < 0 for x in told)
        text += (
            f" By the 95 % interval of the mean difference, {yes} are as in the paper, "
            f"{no} against it, and {len(told) - yes - no} cannot be told."
        )
    if is_early:
        text += " Some of these cells still wait for seeds."
    return text
