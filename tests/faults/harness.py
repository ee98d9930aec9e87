"""How a case of a fault is described, tried and judged."""

import contextlib
import dataclasses
import fnmatch
import os
import pathlib
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import pytest

from tests import waiting
from tests.experiments import program_server
from tests.faults import programs

RUN = "run"  # The results folder, in the place's own folder, where programs run.
# The exit codes of what is both: bad input, and an error of the operating system.
EITHER = (1, 2)

Arrangement = Callable[["Place"], object]


@dataclasses.dataclass(frozen=True)
class Case:
    """A fault, and what is to come of it.

    Attributes:
        id: Of the test; by default its flags.
        program: A name of `programs.PROGRAMS`; `of_each` fills it in.
        flags: More flags, after the program's usual ones.
        start: What the results folder is at first: `new` (not there), `stopped` (an
            interrupted run with checkpoints) or `finished`.
        prepare: What is there before the fault.
        arrange: Causes the fault.
        code: The exit code: 2 for input, 1 for the environment, 0 if it works; or the
            allowed ones.
        says: Texts of the line that tells of it, or anywhere for exit code 0; {name} is
            that of the run. A tuple in it: one of these texts.
        writes: Patterns of the paths that may differ afterwards; None: any may.
        cure: Removes the cause; then the same command works. True: what was arranged
            is undone, and limits are lifted. None: not tried.
        same: Whether a run that works ends with the bytes of an uninterrupted one.
        keeps: Patterns of paths that are there, unchanged, when all is over.
        limits: See `program_server.Server.run`.
        as_nobody: See `program_server.Server.run`; only root can change the user.
        patch: See `program_server.Server.run`.
    """

    id: str
    program: str = ""
    flags: Sequence[str] = ()
    start: str = "new"
    prepare: Arrangement | None = None
    arrange: Arrangement | None = None
    code: int | tuple[int, ...] = 2
    says: Sequence[str | tuple[str, ...]] = ()
    writes: Collection[str] | None = ()
    cure: Arrangement | bool | None = None
    same: bool = True
    keeps: Collection[str] = ()
    limits: Mapping[str, int] | None = None
    as_nobody: bool = False
    patch: str = ""


def of_each(*cases: Case, names: Sequence[str] = programs.TRAINING) -> list[Case]:
    """Makes the cases of each program, by default of those that train."""
    return [dataclasses.replace(c, program=name) for name in names for c in cases]


def params(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Makes a test for each case."""
    ids = [f"{case.program}-{case.id or ' '.join(case.flags)}" for case in cases]
    assert len(set(ids)) == len(ids), sorted(i for i in ids if ids.count(i) > 1)
    return pytest.mark.parametrize("case", cases, ids=ids)


def contents(folder: pathlib.Path) -> dict[str, tuple[int, bytes | None]]:
    """Returns the mode and the bytes of everything below a folder, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        readable = path.is_file() and os.access(path, os.R_OK)
        name = str(path.relative_to(folder))
        found[name] = (path.stat().st_mode, path.read_bytes() if readable else None)
    return found


def differences(before: Mapping, after: Mapping) -> list[str]:
    """Returns the paths of two folders' contents that are not the same."""
    return sorted(x for x in {*before, *after} if before.get(x) != after.get(x))


class Templates:
    """Runs that cases begin with or are compared with, each made once."""

    def __init__(self, server: program_server.Server, folder: pathlib.Path):
        self._server = server
        self._folder = folder

    def get(self, name: str, kind: str) -> pathlib.Path:
        """Returns the folder with `data` and `run` of a kind: see `Case.start`."""
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
    """Where a case is tried: `root` is the folder in which the program is run."""

    def __init__(
        self,
        root: pathlib.Path,
        server: program_server.Server,
        templates: Templates,
    ):
        self.root = root
        self.out = root / RUN
        self.data = root / "data"
        self.program = ""
        self.server = server
        self.templates = templates
        self.held: list = []  # Open files that go with the fault.
        self._mounts: list[pathlib.Path] = []

    def begin(self, program: str, start: str) -> None:
        """Copies the data and the results folder that a case begins with."""
        self.program = program
        shutil.copytree(
            self.templates.get(program, start), self.root, dirs_exist_ok=True
        )

    @property
    def name(self) -> str:
        """The name of the run."""
        return programs.PROGRAMS[self.program].name

    def run(self, case: Case, **changes) -> program_server.Outcome:
        """Runs the program of a case, with its flags."""
        program = programs.PROGRAMS[case.program]
        options = {"limits": case.limits, "as_nobody": case.as_nobody and is_root()}
        options["patch"] = case.patch
        return self.server.run(
            program.module,
            *program.flags,
            *case.flags,
            cwd=self.root,
            **{**options, **changes},
        )

    @contextlib.contextmanager
    def start(self, program: str, *flags: str, **options) -> Iterator[subprocess.Popen]:
        """Starts a program in a process of its own, and kills it at the end."""
        known = programs.PROGRAMS[program]
        process = subprocess.Popen(
            program_server.command(known.module, [*known.flags, *flags]),
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                "cwd": self.root,
                "env": {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                **options,
            },
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def open_for_all(self) -> None:
        """Lets any user read and write everything."""
        for path in [self.root, *self.root.rglob("*")]:
            path.chmod(0o777 if path.is_dir() else 0o666)

    def undo(self, before: Mapping, arranged: Mapping) -> None:
        """Puts back what a fault has changed, and nothing that a program has written.

        It takes the contents of `root` before the fault and with it.
        """
        while self.held:
            self.held.pop().close()
        changed = differences(before, arranged)
        for name in reversed(changed):
            path = self.root / name
            modes = [found[name][0] for found in (before, arranged) if name in found]
            if len(modes) == 2 and all(map(stat.S_ISDIR, modes)):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for name in filter(before.__contains__, changed):
            path, (mode, content) = self.root / name, before[name]
            if stat.S_ISDIR(mode):
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(content)
            path.chmod(stat.S_IMODE(mode))

    def mount(self, folder: pathlib.Path, options: str) -> None:
        """Mounts a disk of its own on a folder; root only."""
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        folder.mkdir(parents=True, exist_ok=True)
        if not is_root() or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no small disk can be mounted; the file size limit is tried")
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


def is_python_for_all() -> bool:
    """Whether other users can load Python's modules, which it does when needed."""
    folders = pathlib.Path(os.__file__).parents
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def end(process: subprocess.Popen) -> program_server.Outcome:
    """Waits for the end of a process."""
    output, errors = process.communicate(timeout=waiting.LIMIT)
    return program_server.Outcome(process.returncode, output or "", errors or "")


def try_case(case: Case, place: Place) -> None:
    """Tries a case and judges its outcome."""
    place.begin(case.program, case.start)
    if case.prepare is not None:
        case.prepare(place)
    if case.as_nobody:
        if is_root() and not is_python_for_all():
            pytest.skip("other users may not enter the folder of this Python")
        place.open_for_all()
    original = contents(place.root)
    if case.arrange is not None:
        case.arrange(place)
    before = contents(place.root)
    outcome = place.run(case)
    judge(case, outcome)
    after = contents(place.root)
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
        if case.cure is True:
            place.undo(original, before)
        else:
            case.cure(place)
        again = place.run(case, limits=None, patch="")
        assert again.code == 0, f"once the cause is gone: {again}"
        assert "Traceback" not in again.errors + again.output, again.errors
    if (case.cure is not None or not outcome.code) and case.same:
        expect_same_bytes(case.program, place)
    last = contents(place.root)
    lost = [name for name, entry in kept.items() if last.get(name) != entry]
    assert not lost, f"not kept: {lost}"


def judge(case: Case, outcome: program_server.Outcome) -> None:
    """Checks the exit code and the line of a case."""
    everything = outcome.output + outcome.errors
    codes = case.code if isinstance(case.code, tuple) else (case.code,)
    assert outcome.code in codes, f"exit {outcome.code}: {everything[-2000:]}"
    assert "Traceback" not in everything, everything
    assert "Exception ignored" not in everything, everything
    lines = [x for x in outcome.errors.splitlines() if x.startswith("error: ")]
    assert len(lines) == (1 if outcome.code else 0), everything
    where = lines[0] if lines else everything
    for text in case.says:
        texts = text if isinstance(text, tuple) else (text,)
        texts = [
            t.replace("{name}", programs.PROGRAMS[case.program].name) for t in texts
        ]
        assert any(t in where for t in texts), f"no {text!r} in: {where[-1500:]}"


def expect_same_bytes(program: str, place: Place) -> None:
    """Compares the results with those of a run that nothing disturbed."""
    unbroken = place.templates.get(program, "finished") / RUN
    names = [p.name for p in unbroken.glob("*.npz")]
    assert names
    for name in ("metrics.csv", *names):
        ours, theirs = place.out / name, unbroken / name
        assert ours.exists(), f"{name} is not there"
        assert ours.read_bytes() == theirs.read_bytes(), f"{name} has other bytes"
    assert (place.out / "done.json").read_text().startswith("{")
