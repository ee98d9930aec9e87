"""A table of the paper, filled with our runs: as Markdown and as CSV."""

from collections.abc import Sequence

from experiments.common import table, table_header
from experiments.fedss import (
    differences,
    paper_order,
    paper_values,
    table_lines,
    table_results,
)
from experiments.fedss.methods import METHODS, drawing
from experiments.fedss.table_lines import Line, Statistics
from experiments.fedss.table_results import Setting
from tff_fedss import metrics, models, tasks


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
    tells_collapsed = any(line.num_collapsed for line in lines)
    rows = []
    for line in lines:
        ours = line.ours or Statistics(0, None, None, None)
        row = {
            "table": paper.number,
            "cell": line.name,
            "method": line.setting.title,
            "m": line.setting.num_negatives,
            "metric": line.metric,
            "S_k": line.class_set_size,
            "percent_of_n": _percent_of_n(results, line.class_set_size),
            "seeds": ours.num_seeds,
            "mean": ours.mean,
            "std": ours.std,
            "best": ours.best,
            "paper_value": line.paper and line.paper.mean,
            "paper_std": line.paper and line.paper.std,
            "rounds": line.rounds,
            "hours": round(line.hours, 4),
        }
        rows.append(
            {**row, **({"collapsed": line.num_collapsed} if tells_collapsed else {})}
        )
    return table.as_csv(rows)


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
    of_table = [line for line in lines if line.metric in paper.metrics]
    as_table = _two_metric_table if len(paper.metrics) > 1 else _table_by_size
    # Lines of several metrics belong to the same runs.
    seeds = {line.name: line.expected_seeds for line in lines}
    cells = {cell.name: cell.runs for cell in results.cells.values()}
    return "\n".join(
        [
            f"# Table {paper.number}, --scale={scale}: {results.dataset_title}",
            "",
            *_data(results, paper),
            *table_header.lines(cells, command, seeds, paper.rounds),
            "",
            as_table(results, paper, of_table),
            "",
            *_notes(results, paper, of_table),
            *paper_order.compare(results, paper, of_table, _columns(paper, of_table)),
            *_differences(results, paper, of_table),
            *_more_tables(results, paper, lines),
        ]
    )


_MORE_TITLES = {
    tasks.UNSEEN_METRIC: "MAP@10 of the images of classes that nobody has, in percent"
}


def _more_tables(
    results: table_results.Results, paper: paper_values.Table, lines: Sequence[Line]
) -> list[str]:
    """What the runs measured beside the paper's metrics, a table each."""
    text = []
    for metric in table_lines.more_metrics(results):
        of_metric = [line for line in lines if line.metric == metric]
        table_text = _table_by_size(results, paper, of_metric, with_paper=False)
        text += [f"{_MORE_TITLES[metric]}:", "", table_text, ""]
    return text


def _differences(
    results: table_results.Results, paper: paper_values.Table, lines: Sequence[Line]
) -> list[str]:
    """How far the methods are apart, in each metric of the paper."""
    task, columns = results.task, _columns(paper, lines)
    text = []
    for metric in paper.metrics:
        title = task.metric_title if metric == task.metric else "top-1 (train)"
        text += differences.as_markdown(results, columns, metric, title)
        text += differences.late_as_markdown(results, columns, metric, title)
    return text


def _data(results: table_results.Results, paper: paper_values.Table) -> list[str]:
    """What was trained on, and what was measured."""
    facts = [results.dataset_title]
    if results.num_classes:
        facts.append(f"n = {results.num_classes:,} classes")
    if results.mean_positives is not None:
        facts.append(f"|P_k| = {results.mean_positives:.1f} on average")
    more = " (and top-1 on train images)" if len(paper.metrics) > 1 else ""
    return [
        f"- Data: {', '.join(facts)}",
        f"- Metric: {results.task.metric_title}{more}, in percent, on held-out images "
        "after the last round",
    ]


def _table_by_size(
    results: table_results.Results,
    paper: paper_values.Table,
    lines: Sequence[Line],
    with_paper: bool = True,
) -> str:
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
    title = paper.title_beside(results.dataset)
    if with_paper and results.dataset != paper.dataset:
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
    for name, method in METHODS.items():
        for corrected in (True, False):
            settings = [Setting(name, m, corrected) for m in columns]
            if corrected or any(s in by_setting for s in settings):
                best = " (best)" * method.is_best_of_seeds
                rows.append(
                    [
                        settings[0].title + best,
                        *(
                            str(by_setting[s]) if s in by_setting else _blank(s)
                            for s in settings
                        ),
                    ]
                )
        if with_paper:
            rows.append(
                [
                    f"{method.title}, {title}",
                    *(str(values.get((name, m)) or "") for m in columns),
                ]
            )
    return table.as_markdown(rows[0], rows[1:])


def _blank(setting: Setting) -> str:
    """What stands where there is no cell: nothing, unless there could be one."""
    draws = METHODS[setting.method].draws_negatives
    return "-" if draws == (setting.num_negatives is not None) else ""


def _columns(paper: paper_values.Table, lines: Sequence[Line]) -> list[int]:
    """The values of m with a column: those of FedSS; more NegOnly is for figure 6."""
    for method in drawing():
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
) -> str:
    """Table 4: train and test side by side."""
    title = paper.title_beside(results.dataset)
    test = f"{results.task.metric_title} (test)"
    rows = [["method", "top-1 (train)", title, test, title]]
    for i in range(0, len(lines), len(paper.metrics)):
        of_cell = lines[i : i + len(paper.metrics)]
        setting, size = of_cell[0].setting, of_cell[0].class_set_size
        name = setting.title
        if METHODS[setting.method].is_best_of_seeds:
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
    return table.as_markdown(rows[0], rows[1:])


def _notes(
    results: table_results.Results, paper: paper_values.Table, lines: Sequence[Line]
) -> list[str]:
    expected = max(line.expected_seeds for line in lines)
    counts = {line.ours.num_seeds for line in lines if line.ours}
    if counts == {1}:
        notes = ["One seed of each cell, and so no standard deviation."]
    else:
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
        either = " or ".join(METHODS[m].title for m in paper.either)
        notes.append(
            f"{paper.either_value} of the paper's {paper.either_value.source} belongs "
            f"to {either}; the text does not say to which."
        )
    if results.dataset != paper.dataset:
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
    if paper.number == 1 and results.dataset == paper.dataset:
        text += (
            f" The paper prints {paper_values.PRINTED_LANDMARKS_SAVING} % at |S_k| = "
            "170, which is nearly the share of the whole last layer: a slip."
        )
    return text
