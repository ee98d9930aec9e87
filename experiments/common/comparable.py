"""Checks that runs may be averaged or compared.

The runs of a cell, which are averaged, agree in every flag that decides results except
the seed (`check_same_cell`). The cells of a table, which are compared, agree in every
flag that does not define a cell (`check_same_table`). Paths of data and pretrained
models may differ; their fingerprints in data.json must agree.
"""

from collections.abc import Collection, Sequence

from experiments.common.results import Flags, Run
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import run_files

# Paths. `pretrained` also tells whether there is a pretrained model.
_PLACES = frozenset({"data_dir", "pretrained"})
# Flags of additional measurements, which do not change other numbers.
_MEASUREMENT = frozenset(
    {"rounds_per_evaluation", "epochs_per_evaluation", "train_top1"}
)


def check_same_cell(runs: Sequence[Run]) -> None:
    """Checks that the runs of a cell may be averaged: they differ only in the seed.

    Raises:
        InvalidInputError: If a flag that decides results, the data or the pretrained
            model differs; it names them.
    """
    for run in runs[1:]:
        differences = _differences(run, runs[0], {"seed"})
        if differences:
            raise InvalidInputError(
                f"{run.path} has {differences[0]}, but {runs[0].path} of the same cell "
                f"has {differences[1]}. Runs of a cell differ in --seed alone."
            )
    _check_origins(runs)


def check_same_table(runs: Sequence[Run], may_differ: Collection[str] = ()) -> None:
    """Checks that cells may be compared: they differ only in what defines a cell.

    They may also differ in the flags `may_differ`.

    Raises:
        InvalidInputError: If another flag that decides results differs, or the data, or
            the pretrained model; it names them.
    """
    for run in runs[1:]:
        free = {"seed", *run.kind.cell_flags, *_MEASUREMENT, *may_differ}
        differences = _differences(run, runs[0], free)
        if differences:
            raise InvalidInputError(
                f"One table cannot hold {run.path} with {differences[0]} and "
                f"{runs[0].path} with {differences[1]}."
            )
    _check_origins(runs, {*may_differ} - runs[0].kind.cell_flags if runs else ())


def _differences(
    mine: Run, theirs: Run, free: Collection[str]
) -> tuple[str, str] | None:
    """Returns the flags in which two runs differ, with each run's value."""
    names = [
        name
        for name in sorted({*mine.flags, *theirs.flags} - {*free})
        if _comparable(mine.flags, name) != _comparable(theirs.flags, name)
    ]
    if not names:
        return None
    first, second = (
        " ".join(f"--{name}={run.flags.get(name, '(unset)')}" for name in names)
        for run in (mine, theirs)
    )
    return first, second


def _comparable(flags: Flags, name: str) -> str | bool | None:
    if name == "pretrained":
        return bool(flags.get(name))
    return None if name in _PLACES else flags.get(name)


def _check_origins(runs: Sequence[Run], of_data: Collection[str] = ()) -> None:
    """Checks that runs with a data.json have read the same data.

    Runs that differ in a flag of `of_data`, which selects the data, need not.
    """
    firsts: dict[tuple, Run] = {}
    for run in runs:
        for part, by_seed in (
            ("data", run.kind.has_own_data(run.flags)),
            ("pretrained", run.kind.starts_by_seed),
        ):
            mine = (run.origin or {}).get(part)
            if mine is None:
                continue
            data = tuple(run.flags.get(name) for name in sorted(of_data))
            first = firsts.setdefault((part, run.seed if by_seed else None, data), run)
            theirs = first.origin[part]
            for key in sorted({*mine, *theirs}):
                if mine.get(key) != theirs.get(key):
                    flag = "data_dir" if part == "data" else "pretrained"
                    here, there = map(run_files.short, (mine.get(key), theirs.get(key)))
                    raise InvalidInputError(
                        f"{run.source.at(run_files.DATA)}: the run found something "
                        f"else at --{flag} than {first.path}: {key} is {here}, there "
                        f"{there}."
                    )
