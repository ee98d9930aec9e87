"""How a case of a fault is described, tried and judged."""

import dataclasses
import fnmatch
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence

import pytest

from tests.experiments import program_server
from tests.faults import programs

RUN = "run"  # The results folder, in the place's own folder, where programs run.
# The exit codes of what is both: bad input, and an error of the operating system.
EITHER = (1, 2)


@dataclasses.dataclass(frozen=True)
class Case:
    """A fault, and what is to come of it.

    Attributes:
        id: Of the test.
        program: A name of `programs.PROGRAMS`.
        flags: More flags, after the program's usual ones.
        start: What the results folder is at first: `new` (not there), `stopped` (an
            interrupted run with checkpoints) or `finished`.
        arrange: Brings the fault about.
        code: The exit code: 2 for input, 1 for the environment, 0 if it works; or those
            that will do.
        says: Texts of the line that tells of it, or anywhere for exit code 0. A tuple
            in it: one of these texts.
        silent: Texts that must not be in what the program writes.
        writes: Patterns of the paths that may differ afterwards; None: any may.
        cure: Removes the cause; then the same command works. None: not tried.
        same: Whether a run that works ends with the bytes of an undisturbed one.
        keeps: Patterns of paths that are there, unchanged, when all is over.
        limits: See `program_server.Server.run`.
        as_nobody: See `program_server.Server.run`; only root can change the user.
        without_usual: Whether to leave out the usual flags of the program.
    """

    id: str
    program: str
    flags: Sequence[str] = ()
    start: str = "new"
    arrange: Callable[["Place"], None] | None = None
    code: int | tuple[int, ...] = 2
    says: Sequence[str | tuple[str, ...]] = ()
    silent: Sequence[str] = ()
    writes: Collection[str] | None = ()
    cure: Callable[["Place"], None] | None = None
    same: bool = True
    keeps: Collection[str] = ()
    limits: Mapping[str, int] | None = None
    as_nobody: bool = False
    without_usual: bool = False


def params(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Makes a test for each case."""
    ids = [f"{case.program}-{case.id}" for case in cases]
    assert len(set(ids)) == len(ids), sorted(i for i in ids if ids.count(i) > 1)
    return pytest.mark.parametrize("case", cases, ids=ids)


def nothing(_place: "Place") -> None:
    """The cure of what goes by itself."""


def listing(folder: pathlib.Path) -> dict[str, tuple]:
    """Returns path -> kind, size and digest of everything below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_file():
            content = path.read_bytes()
            found[name] = ("file", len(content), hashlib.sha256(content).hexdigest())
        else:
            found[name] = ("folder" if path.is_dir() else "special",)
    return found


def differences(before: Mapping, after: Mapping) -> list[str]:
    """Returns the paths of two listings that are not the same."""
    return sorted(
        name for name in {*before, *after} if before.get(name) != after.get(name)
    )


class Templates:
    """Runs that cases begin with or are compared with, each made once."""

    def __init__(self, server: program_server.Server, folder: pathlib.Path):
        """Makes nothing yet.

        Args:
            server: Runs them.
            folder: Where to keep them.
        """
        self._server = server
        self._folder = folder

    def get(self, name: str, kind: str) -> pathlib.Path:
        """Returns the folder with `data` and `run` of a program's run.

        Args:
            name: Of `programs.PROGRAMS`.
            kind: `new`, `stopped` or `finished`.
        """
        folder = self._folder / f"{name}_{kind}"
        if folder.exists():
            return folder
        making = self._folder / f"{name}_{kind}_making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        program = programs.PROGRAMS[name]
        if program.make_data is not None:
            program.make_data(making / "data")
        if kind != "new":
            outcome = self._server.run(
                program.module,
                *program.flags,
                cwd=making,
                stop_after_rows=programs.STOP_AFTER_ROWS if kind == "stopped" else None,
            )
            expected = 130 if kind == "stopped" else 0
            assert outcome.code == expected, f"{name}, {kind}: {outcome}"
        making.rename(folder)
        return folder


class Place:
    """Where a case is tried.

    Attributes:
        root: The folder in which the program is run; holds `data`.
        out: The results folder.
        data: The folder of data, if the program needs any.
    """

    def __init__(
        self,
        root: pathlib.Path,
        server: program_server.Server,
        templates: Templates,
    ):
        """Writes nothing yet."""
        self.root = root
        self.out = root / RUN
        self.data = root / "data"
        self.server = server
        self.templates = templates
        self.held: list = []
        self._mounts: list[pathlib.Path] = []

    def begin(self, program: str, start: str) -> None:
        """Copies the data and the results folder that a case begins with."""
        shutil.copytree(
            self.templates.get(program, start),
            self.root,
            dirs_exist_ok=True,
            symlinks=True,
        )

    def run(self, case: Case, **changes) -> program_server.Outcome:
        """Runs the program of a case, with its flags."""
        program = programs.PROGRAMS[case.program]
        usual = () if case.without_usual else program.flags
        options = {"limits": case.limits, "as_nobody": case.as_nobody and is_root()}
        return self.server.run(
            program.module, *usual, *case.flags, cwd=self.root, **{**options, **changes}
        )

    def mount(self, folder: pathlib.Path, options: str) -> None:
        """Mounts a disk of its own on a folder; root only.

        Args:
            folder: Made if it is not there.
            options: Such as `size=100k`.
        """
        if not is_root():
            pytest.skip(
                "only root can mount a small disk; the file size limit is tried"
            )
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mount is forbidden here; the file size limit is tried")
        self._mounts.append(folder)

    def remount(self, folder: pathlib.Path, options: str) -> None:
        """Changes the options of a mounted disk."""
        subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)

    def unmount(self) -> None:
        """Puts away what the case holds: disks and open files."""
        for file in self.held:
            file.close()
        for folder in reversed(self._mounts):
            subprocess.run(["umount", "-l", str(folder)], check=True)


def is_root() -> bool:
    """Whether permissions mean nothing to this process."""
    return os.geteuid() == 0


def try_case(case: Case, place: Place) -> None:
    """Tries a case and judges what came of it."""
    place.begin(case.program, case.start)
    if case.arrange is not None:
        case.arrange(place)
    before = listing(place.root)
    outcome = place.run(case)
    judge(case, outcome)
    after = listing(place.root)
    if case.writes is not None and outcome.code:
        changed = [
            name
            for name in differences(before, after)
            if not any(fnmatch.fnmatch(name, pattern) for pattern in case.writes)
        ]
        assert not changed, f"it has written {changed}"
    kept = {
        name: entry
        for name, entry in after.items()
        if any(fnmatch.fnmatch(name, pattern) for pattern in case.keeps)
    }
    assert kept or not case.keeps, f"nothing of {case.keeps} is there: {list(after)}"
    if case.cure is not None and outcome.code:
        case.cure(place)
        again = place.run(case, limits=None)
        assert again.code == 0, f"once the cause is gone: {again}"
        assert "Traceback" not in again.errors + again.output, again.errors
    if (case.cure is not None or not outcome.code) and case.same:
        expect_same_bytes(case.program, place)
    end = listing(place.root)
    lost = [name for name, entry in kept.items() if end.get(name) != entry]
    assert not lost, f"not kept: {lost}"


def judge(case: Case, outcome: program_server.Outcome) -> None:
    """Checks the exit code and the line of a case."""
    everything = outcome.output + outcome.errors
    codes = case.code if isinstance(case.code, tuple) else (case.code,)
    assert outcome.code in codes, f"exit {outcome.code}: {everything[-2000:]}"
    assert "Traceback" not in everything, everything
    assert "Exception ignored" not in everything, everything
    lines = [x for x in outcome.errors.splitlines() if x.startswith("error: ")]
    if outcome.code:
        assert len(lines) == 1, everything
        where = lines[0]
    else:
        assert not lines, everything
        where = everything
    for text in case.says:
        texts = text if isinstance(text, tuple) else (text,)
        assert any(t in where for t in texts), f"no {text!r} in: {where[-1500:]}"
    for text in case.silent:
        assert text not in everything, f"{text!r} in: {everything[-1500:]}"


def expect_same_bytes(program: str, place: Place) -> None:
    """Compares the results with those of a run that nothing disturbed."""
    undisturbed = place.templates.get(program, "finished") / RUN
    names = [p.name for p in undisturbed.glob("*.npz")]
    assert names
    for name in ("metrics.csv", *names):
        ours, theirs = place.out / name, undisturbed / name
        assert ours.exists(), f"{name} is not there"
        assert ours.read_bytes() == theirs.read_bytes(), f"{name} has other bytes"
    assert (place.out / "done.json").exists()
    for name in ("metrics.csv", "done.json"):
        assert (place.out / name).stat().st_size, name
    json.loads((place.out / "done.json").read_text())
