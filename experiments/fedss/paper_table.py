"""A table of the paper, filled with our runs: as Markdown and as CSV."""

import csv
import dataclasses
import io
import statistics
from collections.abc import Collection, Iterable, Sequence

from experiments.fedss import paper_values, table_header, table_results
from experiments.fedss.table_results import METHOD_TITLES, Setting
from tff_fedss import metrics, models, tasks
from tff_fedss.errors import InvalidInputError

# Of these the paper reports the best of the three runs (4.1).
_BEST_OF_SEEDS = ("full_softmax", "centralized")
_EITHER = "either"  # PosOnly or FedAwS: whichever has the number of the paper.


@dataclasses.dataclass(frozen=True)
class Statistics:
    """A metric over the finished seeds of a cell, in percent.

    Attributes:
        num_seeds: How many seeds.
        mean: Their mean.
        std: Their sample standard deviation (ddof = 1); None for a single seed.
        best: The best of them.
    """

    num_seeds: int
    mean: float
    std: float | None
    best: float


@dataclasses.dataclass(frozen=True)
class Line:
    """A cell of the table, with the paper's value: a row of the CSV.

    Attributes:
        setting: The cell.
        name: Its name.
        metric: The metric.
        ours: What our runs gave; None if no seed is finished.
        expected_seeds: How many seeds there are to be.
        paper: What the paper prints; None where it is unknown.
        class_set_size: |S_k|; None where unknown, or there are no clients.
        rounds: How many rounds; None if no run has begun.
        hours: Of all runs of the cell together.
        num_collapsed: How many of the finished seeds ended with features that are all
            alike, or at chance.
    """

    setting: Setting
    name: str
    metric: str
    ours: Statistics | None
    expected_seeds: int
    paper: paper_values.Value | None
    class_set_size: int | None
    rounds: int | None
    hours: float
    num_collapsed: int = 0

    @property
    def headline(self) -> float | None:
        """The number that stands in the paper's table."""
        if self.ours is None:
            return None
        if self.setting.method in _BEST_OF_SEEDS:
            return self.ours.best
        return self.ours.mean

    def __str__(self) -> str:
        """Writes it as in the paper's tables; `-` while nothing is finished."""
        if self.ours is None:
            return "-"
        text = f"{self.headline:.1f}"
        if self.setting.method not in _BEST_OF_SEEDS and self.ours.std is not None:
            text += f" ± {self.ours.std:.{1 if self.ours.std >= 0.1 else 2}f}"
        if self.ours.num_seeds < self.expected_seeds:
            text += f" ({self.ours.num_seeds}/{self.expected_seeds})"
        return text + (" †" if self.num_collapsed else "")


def expected_cells(names: Iterable[str]) -> dict[Setting, str]:
    """Finds out what the cells are that there are to be.

    Args:
        names: Of the cells; those that say nothing are left out.

    Returns:
        The name of each cell, by its setting.
    """
    by_setting = {table_results.setting_of_name(name): name for name in sorted(names)}
    by_setting.pop(None, None)
    return by_setting


def cells_of_table(
    results: table_results.Results,
    paper: paper_values.Table,
    expected: Collection[Setting],
) -> table_results.Results:
    """Leaves out the cells of Table 2 from the folder that Table 4 shares with it.

    Args:
        results: The runs.
        paper: The paper's table.
        expected: The cells that there are to be. If there are none, FedSS at its
            largest |S_k|, FullSoftmax and Centralized are.

    Returns:
        The runs of the table.

    Raises:
        InvalidInputError: If there is none.
    """
    if len(paper.metrics) == 1:
        return results
    largest = max(results.num_negatives("fedss"), default=None)
    wanted = expected or [
        Setting("fedss", largest),
        *(Setting(method) for method in _BEST_OF_SEEDS),
    ]
    cells = {s: cell for s, cell in results.cells.items() if s in wanted}
    if not cells:
        raise InvalidInputError(
            f"Table {paper.number} is of {', '.join(map(str, wanted))}: "
            f"{results.runs[0].path.parents[1]} has runs of none of them."
        )
    return table_results.Results(cells)


# --- What stands in the table -----------------------------------------------------


def lines_of(
    results: table_results.Results,
    paper: paper_values.Table,
    expected: dict[Setting, str],
    num_seeds: int,
) -> list[Line]:
    """Sums up each cell that is there or is to be, in the order of the paper's rows.

    Args:
        results: The runs.
        paper: The paper's table.
        expected: From `expected_cells`.
        num_seeds: How many seeds a cell is to have.

    Returns:
        A line for each cell and metric; the metrics of a cell stand together.

    Raises:
        InvalidInputError: If the runs measure something else than the table.
    """
    if results.task.metric != paper.metrics[-1]:
        raise InvalidInputError(
            f"Table {paper.number} is of {paper.metrics[-1]}, but "
            f"{results.runs[0].path} measures {results.task.metric}."
        )
    names = {**expected, **{s: cell.name for s, cell in results.cells.items()}}
    order = list(METHOD_TITLES)
    settings = sorted(
        names,
        key=lambda s: (
            order.index(s.method),
            not s.is_corrected,
            s.num_negatives or 0,
        ),
    )
    return [
        line_of(
            results,
            setting,
            names[setting],
            paper.values[metric].get((setting.method, setting.num_negatives)),
            num_seeds,
            metric,
        )
        for setting in settings
        for metric in paper.metrics
    ]


def line_of(
    results: table_results.Results,
    setting: Setting,
    name: str,
    paper_value: paper_values.Value | None,
    num_seeds: int,
    metric: str | None = None,
) -> Line:
    """Sums up a cell.

    Args:
        results: The runs.
        setting: The cell; it need not have begun.
        name: Its name.
        paper_value: What the paper prints there.
        num_seeds: How many seeds it is to have.
        metric: A column of metrics.csv; by default the metric of the task.
    """
    cell = results.cells.get(setting)
    runs = cell.runs if cell else ()
    by = results.task.metric
    metric = metric or by
    finished = cell.finished if cell else []
    return Line(
        setting=setting,
        name=name,
        metric=metric,
        ours=_statistics(
            [run.final(metric) for run in finished],
            [run.final(by) for run in finished],
        ),
        expected_seeds=max(num_seeds, len(runs)),
        paper=paper_value,
        class_set_size=results.class_set_size(setting),
        rounds=runs[0].num_rounds if runs else None,
        hours=sum(run.hours for run in runs),
        num_collapsed=sum(run.has_collapsed for run in finished),
    )


def _statistics(values: Sequence[float], by: Sequence[float]) -> Statistics | None:
    """Sums up; the best seed is the one with the largest `by`."""
    if not values:
        return None
    return Statistics(
        num_seeds=len(values),
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        best=values[by.index(max(by))],
    )


def as_csv(
    results: table_results.Results, paper: paper_values.Table, lines: Sequence[Line]
) -> str:
    """Writes the table as CSV, a row for each cell and metric, with all digits.

    If a run has collapsed, there is a last column that counts such runs.

    Args:
        results: The runs.
        paper: The paper's table.
        lines: From `lines_of`.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    tells_collapsed = any(line.num_collapsed for line in lines)
    writer.writerow(
        "table cell method m metric S_k percent_of_n seeds mean std best paper_value "
        "paper_std rounds hours".split()
        + ["collapsed"] * tells_collapsed
    )
    for line in lines:
        ours = line.ours or Statistics(0, None, None, None)
        writer.writerow(
            (
                paper.number,
                line.name,
                line.setting.title,
                line.setting.num_negatives,
                line.metric,
                line.class_set_size,
                _percent_of_n(results, line.class_set_size),
                ours.num_seeds,
                ours.mean,
                ours.std,
                ours.best,
                line.paper and line.paper.mean,
                line.paper and line.paper.std,
                line.rounds,
                round(line.hours, 4),
                *[line.num_collapsed] * tells_collapsed,
            )
        )
    return text.getvalue()


def _percent_of_n(results: table_results.Results, size: int | None) -> float | None:
    if size is None or results.num_classes is None:
        return None
    return 100 * size / results.num_classes


# --- How it is written ------------------------------------------------------------


def as_markdown(
    results: table_results.Results,
    paper: paper_values.Table,
    scale: str,
    lines: Sequence[Line],
    command: Sequence[str] | None = None,
) -> str:
    """Writes the table with everything that a reader needs to know of it.

    Args:
        results: The runs.
        paper: The paper's table.
        scale: Which cells there were to be.
        lines: From `lines_of`.
        command: What was given to write the table, argument by argument.
    """
    table = _two_metric_table if len(paper.metrics) > 1 else _table_by_size
    # Lines of several metrics belong to the same runs.
    seeds = {line.name: line.expected_seeds for line in lines}
    return "\n".join(
        [
            *table_header.header(results, paper, scale, seeds, command),
            "",
            *table(results, paper, lines),
            "",
            *_notes(results, paper, lines),
            *_order(results, paper, lines),
        ]
    )


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Writes rows, the first one as the header, so that columns stand in line."""
    rows = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| "
        + " | ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in rows
    ]
    rule = "|".join(
        [
            "",
            ":" + "-" * (widths[0] + 1),
            *("-" * (w + 1) + ":" for w in widths[1:]),
            "",
        ]
    )
    return [lines[0], rule, *lines[1:]]


def _table_by_size(
    results: table_results.Results, paper: paper_values.Table, lines: Sequence[Line]
) -> list[str]:
    """Tables 1 to 3: a column for each |S_k|, and one for methods without m."""
    by_setting = {line.setting: line for line in lines}
    sizes = _columns(paper, lines)
    ours = [results.class_set_size(Setting("fedss", m)) for m in sizes]
    columns = [*sizes, None]
    rows = [
        [
            "|S_k|",
            *(
                f"m = {m}" if size is None else f"{size:,}"
                for m, size in zip(sizes, ours, strict=True)
            ),
            "no negatives",
        ],
        ["% of n", *(_percent_text(_percent_of_n(results, size)) for size in ours), ""],
    ]
    title = table_header.paper_title(results, paper)
    if not table_header.is_papers_data(results, paper):
        rows.append(
            [
                f"|S_k|, {title}",
                *(
                    f"{paper.class_set_sizes[m]:,} ({paper.percents[m]:g} %)"
                    if m in paper.class_set_sizes
                    else ""
                    for m in sizes
                ),
                "",
            ]
        )
    values = paper.values[paper.metrics[-1]]
    for method, method_title in METHOD_TITLES.items():
        for corrected in (True, False):
            settings = [Setting(method, m, corrected) for m in columns]
            if corrected or any(s in by_setting for s in settings):
                best = " (best)" if method in _BEST_OF_SEEDS else ""
                rows.append(
                    [
                        settings[0].title + best,
                        *(
                            str(by_setting[s]) if s in by_setting else _blank(s)
                            for s in settings
                        ),
                    ]
                )
        rows.append(
            [
                f"{method_title}, {title}",
                *(str(values.get((method, m)) or "") for m in columns),
            ]
        )
    return _markdown(rows)


def _blank(setting: Setting) -> str:
    """What stands where there is no cell: nothing, unless there could be one."""
    draws = setting.method in table_results.DRAW_NEGATIVES
    return "-" if draws == (setting.num_negatives is not None) else ""


def _columns(paper: paper_values.Table, lines: Sequence[Line]) -> list[int]:
    """The values of m with a column: those of FedSS; more NegOnly is for figure 6."""
    for method in table_results.DRAW_NEGATIVES:
        sizes = {
            s.num_negatives for s in (x.setting for x in lines) if s.method == method
        }
        if sizes:
            return sorted(sizes)
    return sorted(paper.class_set_sizes)


def _percent_text(percent: float | None) -> str:
    if percent is None:
        return "-"
    return f"{percent:.{1 if percent >= 1 else 2}f} %"


def _two_metric_table(
    results: table_results.Results, paper: paper_values.Table, lines: Sequence[Line]
) -> list[str]:
    """Table 4: train and test side by side."""
    title = table_header.paper_title(results, paper)
    test = f"{results.task.metric_title} (test)"
    rows = [["method", "top-1 (train)", title, test, title]]
    for i in range(0, len(lines), len(paper.metrics)):
        of_cell = lines[i : i + len(paper.metrics)]
        setting, size = of_cell[0].setting, of_cell[0].class_set_size
        name = setting.title
        if setting.method in _BEST_OF_SEEDS:
            name += " (best)"
        elif size is not None:
            name += f", |S_k| = {size:,}"
        elif setting.num_negatives is not None:
            name += f", m = {setting.num_negatives}"
        rows.append(
            [
                name,
                *(text for x in of_cell for text in (str(x), str(x.paper or ""))),
            ]
        )
    return _markdown(rows)


def _notes(
    results: table_results.Results, paper: paper_values.Table, lines: Sequence[Line]
) -> list[str]:
    expected = max(line.expected_seeds for line in lines)
    counts = {line.ours.num_seeds for line in lines if line.ours}
    over = f"{max(counts)} seeds" if len(counts) == 1 else "the finished seeds"
    notes = [
        f"Mean ± standard deviation over {over} (ddof = 1); for FullSoftmax and "
        "Centralized the best seed, as in section 4.1 of the paper."
    ]
    if any(line.ours is None or line.ours.num_seeds < expected for line in lines):
        notes.append(
            "`-`: not finished. A count such as (2/3) says how many seeds are."
        )
    collapsed = {
        str(line.setting): f"{line.num_collapsed} of {line.ours.num_seeds}"
        for line in lines
        if line.num_collapsed
    }
    if collapsed:
        cells = ", ".join(f"{count} seeds of {x}" for x, count in collapsed.items())
        notes.append(
            f"†: features collapsed ({cells}): all images look alike to the model, or "
            "it is at chance. Such a number says nothing of the method. What may help: "
            "--warm_start_epochs, --pretrained, or a smaller --client_learning_rate."
        )
    if len(paper.metrics) > 1:
        notes.append("The best seed is the one that is best on the test images.")
    else:
        own = results.class_set_size(Setting("pos_only"))
        if own is not None:
            share = _percent_of_n(results, own)
            notes.append(
                "|S_k| is the measured mean |P_k|, rounded, and m. PosOnly and FedAwS "
                f"have {own:,} classes on a client"
                + (f" ({_percent_text(share)} of n)" if share is not None else "")
                + ", FullSoftmax all."
            )
    notes.append("A blank of the paper is unknown: its text lost that cell.")
    if paper.either_value is not None:
        either = " or ".join(METHOD_TITLES[m] for m in paper.either)
        notes.append(
            f"{paper.either_value} of the paper's {paper.either_value.source} belongs "
            f"to {either}; the text does not say to which."
        )
    if not table_header.is_papers_data(results, paper):
        notes.append(
            f"The paper's numbers are of {tasks.FAMILIES[paper.dataset].title}, "
            "another data set: in absolute value they are not comparable with ours; "
            "the order of the methods is."
        )
    saving = _saving_note(results, paper)
    if saving:
        notes.append(saving)
    return [f"- {note}" for note in notes]


def _saving_note(
    results: table_results.Results, paper: paper_values.Table
) -> str | None:
    """How much of the model a client is spared at the largest |S_k| (4.3)."""
    sizes = results.num_negatives("fedss")
    cell = None
    for corrected in (True, False):
        if sizes and cell is None:
            cell = results.cells.get(Setting("fedss", sizes[-1], corrected))
    if cell is None or results.num_classes is None:
        return None
    bytes_down = cell.runs[0].mean("bytes_down")
    classes = cell.runs[0].mean("classes_per_client")
    if bytes_down is None or classes is None:
        return None
    dim = int(cell.runs[0].flags["embedding_dim"])
    num_phi = round(bytes_down / metrics.BYTES_PER_PARAMETER - classes * dim)
    size = results.class_set_size(cell.setting)
    saving = models.communication_saving(num_phi, results.num_classes, dim, size)
    text = (
        f"At |S_k| = {size:,} a client is spared {100 * saving:.1f} % of the model's "
        f"{num_phi + results.num_classes * dim:,} parameters, in each direction."
    )
    if paper.number == 1 and table_header.is_papers_data(results, paper):
        text += (
            f" The paper prints {paper_values.PRINTED_LANDMARKS_SAVING} % at |S_k| = "
            "170, which is nearly the share of the whole last layer: a slip."
        )
    return text


# --- Whether the order of the methods is the paper's ------------------------------


def paper_order(paper: paper_values.Table) -> list[tuple[str, str]]:
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
    titles = {**METHOD_TITLES, _EITHER: "PosOnly or FedAwS"}
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


def _order(
    results: table_results.Results, paper: paper_values.Table, lines: Sequence[Line]
) -> list[str]:
    by_setting = {x.setting: x for x in lines if x.metric == results.task.metric}
    pairs = paper_order(paper)
    title = table_header.paper_title(results, paper)
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
            + _verdict(pairs, by_setting, _columns(paper, lines), corrected),
            "",
        ]
    return text


def _verdict(
    pairs: Sequence[tuple[str, str]],
    by_setting: dict[Setting, Line],
    sizes: Sequence[int],
    corrected: bool,
) -> str:
    """Compares our numbers as the paper's are ordered."""

    def candidates(method: str, m: int) -> list[Line | None]:
        if method == _EITHER:
            return [by_setting.get(Setting(one)) for one in ("pos_only", "fedaws")]
        if method not in table_results.DRAW_NEGATIVES:
            return [by_setting.get(Setting(method))]
        # NegOnly need not have been run in both readings.
        line = by_setting.get(Setting(method, m, corrected))
        if line is None and method == "neg_only":
            line = by_setting.get(Setting(method, m))
        return [line]

    agree, open_, against, close, is_early = 0, 0, [], 0, False
    for better, worse in pairs:
        draws = {better, worse} & {*table_results.DRAW_NEGATIVES}
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
            spread = max(high.ours.std or 0, low.ours.std or 0)
            close += abs(high.headline - low.headline) < spread
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
    if close:
        text += f" {close} of them are closer than one standard deviation."
    if is_early:
        text += " Some of these cells still wait for seeds."
    return text
