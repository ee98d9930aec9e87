"""Runs programs again and again in one process that has TensorFlow loaded, for tests.

    python tests/experiments/program_server.py FD

A process for every run would be slow to start. Here any program can follow any other:
each defines its flags when it begins and takes them back at its end. What a run
changes of the process (flags, working directory, environment, limits, signal handlers,
user) is put back after it. Each line of standard input is a JSON object, see `Server`;
each line written to the file descriptor FD is [exit code, stdout, stderr] of the run.
"""

import builtins
import contextlib
import fcntl
import io
import json
import os
import pathlib
import resource
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_ROOT = pathlib.Path(__file__).parents[2]
TOYS = pathlib.Path(__file__).with_name("toys")  # The smallest paper.
_NOBODY = 65534
_PATCHED = (builtins, fcntl, os, time)


class Outcome(NamedTuple):
    """How a run ended."""

    code: int
    output: str
    errors: str

    def ok(self) -> tuple[str, str]:
        """Returns what was printed and logged; a failure is an AssertionError."""
        assert self.code == 0, self.errors
        return self.output, self.errors

    def refused(self, message: str, prints: bool = False) -> str:
        """Returns the one line, with a message in it, that refuses the input.

        With `prints`, the program may have described its data before.
        """
        assert self.code == 2 and (prints or self.output == ""), self
        assert self.errors.startswith("error: ") and self.errors.count("\n") == 1, self
        assert message in self.errors, self.errors
        return self.errors


def run_here(module: types.ModuleType, *flags: str, **options: Any) -> int:
    """Runs a program in this process, and returns its exit code."""
    from experiments.common import program

    handler = signal.getsignal(signal.SIGTERM)
    try:
        program.run(module.main, module.Config(), [module.__name__, *flags], **options)
    except SystemExit as end:
        return end.code or 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    raise AssertionError("program.run always ends with SystemExit")


class Server:
    """A process that runs programs; it is started again should it die or hang."""

    def __init__(self, seconds: float = 900.0):
        self._seconds = seconds  # A run that takes longer hangs.
        self._process: subprocess.Popen | None = None
        self._answers: int | None = None

    def run(
        self,
        module: str,
        *flags: str,
        cwd: os.PathLike | str | None = None,
        limits: Mapping[str, int] | None = None,
        as_nobody: bool = False,
        stop_after_rows: int | None = None,
        patch: str = "",
    ) -> Outcome:
        """Runs a program; a process that died or hung is an AssertionError.

        Args:
            module: As `python -m` takes it.
            *flags: Its arguments.
            cwd: Where; by default in the root of the project.
            limits: Soft limits by name: `FSIZE` in bytes, and so on.
            as_nobody: Whether to run it as the user `nobody` (needs root).
            stop_after_rows: The number of recorded rounds after which Ctrl-C comes.
            patch: Python code that replaces functions of `_PATCHED` for this run.
        """
        if self._process is None:
            self._start()
        request = {
            "module": module,
            "flags": list(flags),
            "cwd": str(cwd or _ROOT),
            "limits": dict(limits or {}),
            "as_nobody": as_nobody,
            "stop_after_rows": stop_after_rows,
            "patch": patch,
        }
        text = b""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            while not text.endswith(b"\n"):
                if not select.select([self._answers], [], [], self._seconds)[0]:
                    break
                part = os.read(self._answers, 2**16)
                if not part:
                    break
                text += part
        if not text.endswith(b"\n"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            code = self._process.poll()
            self.close()
            how = "hung" if code is None else f"died ({code})"
            raise AssertionError(f"{module} {' '.join(flags)}: the process {how}")
        return Outcome(*json.loads(text))

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            os.close(self._answers)
            self._process = None

    def _start(self) -> None:
        self._answers, theirs = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs],
            cwd=_ROOT,
            # Another order of sets than that of the tests' own process.
            env={**environment(), "PYTHONHASHSEED": "7"},
        )
        os.close(theirs)


def environment() -> dict[str, str]:
    """The variables of a process that imports what this one does, and the toy paper."""
    paths = [str(TOYS), *filter(None, sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


# --- In the process ---------------------------------------------------------------


def main() -> None:
    """Answers requests until standard input ends."""
    sys.path[:0] = [str(_ROOT)] if str(_ROOT) not in sys.path else []
    # Once, for all programs.
    import absl.flags
    import matplotlib.pyplot  # noqa: F401
    import tensorflow_datasets  # noqa: F401

    from tff_fedss import training  # noqa: F401

    with open(int(sys.argv[1]), "wb", buffering=0) as answers:
        for line in sys.stdin:
            request = json.loads(line)
            with _kept_state(request), _captured() as captured:
                absl.flags.FLAGS.unparse_flags()
                code = _run(request)
            answers.write(json.dumps([code, *captured]).encode() + b"\n")


def _run(request: Mapping[str, Any]) -> int:
    sys.argv = [request["module"], *request["flags"]]
    sys.modules.pop(request["module"], None)  # Python would warn that it is there.
    try:
        with _stopping(request["stop_after_rows"]):
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # As Python tells of it at its end.
        traceback.print_exc()
        return 1
    return 0


@contextlib.contextmanager
def _stopping(rows: int | None) -> Iterator[None]:
    """Presses Ctrl-C after a number of recorded rounds."""
    if rows is None:
        yield
        return
    from tff_fedss import training

    release, left = training.ResultsFolder.release, [rows]

    def release_and_stop(self: Any, *arguments: Any) -> None:
        release(self, *arguments)
        left[0] -= 1
        if not left[0]:
            signal.raise_signal(signal.SIGINT)

    training.ResultsFolder.release = release_and_stop
    try:
        yield
    finally:
        training.ResultsFolder.release = release


@contextlib.contextmanager
def _kept_state(request: Mapping[str, Any]) -> Iterator[None]:
    """Prepares the process for a run, and puts it back as it was."""
    argv, environment = sys.argv, dict(os.environ)
    handlers = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    names = {name: getattr(resource, f"RLIMIT_{name}") for name in request["limits"]}
    before = {name: resource.getrlimit(number) for name, number in names.items()}
    functions = [dict(vars(module)) for module in _PATCHED]
    os.chdir(request["cwd"])
    exec(request["patch"], {})
    for name, value in request["limits"].items():
        resource.setrlimit(names[name], (value, before[name][1]))
    if request["as_nobody"]:
        os.setegid(_NOBODY)
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if request["as_nobody"]:
            os.seteuid(os.getuid())
            os.setegid(os.getgid())
        for name, number in names.items():
            resource.setrlimit(number, before[name])
        for module, kept in zip(_PATCHED, functions, strict=True):
            vars(module).update(kept)
        os.chdir(_ROOT)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = argv


class _Pipe:
    """Takes what is written to a file descriptor; limits of files do not hold for it.

    A process that a program has started may hold the descriptor for longer than the
    program runs, so there is no wait for the end of the pipe.
    """

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._kept = os.dup(descriptor)
        self._source, target = os.pipe()
        os.set_blocking(self._source, False)
        os.dup2(target, descriptor)
        os.close(target)
        self._parts: list[bytes] = []
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            is_last = self._is_done.is_set()
            select.select([self._source], [], [], 0 if is_last else 0.02)
            try:
                part = os.read(self._source, 2**20)
            except BlockingIOError:
                part = b""
            self._parts.append(part)
            if is_last and not part:
                return

    def close(self) -> str:
        """Puts the descriptor back and returns what was written."""
        os.dup2(self._kept, self._descriptor)
        os.close(self._kept)
        self._is_done.set()
        self._thread.join()
        os.close(self._source)
        return b"".join(self._parts).decode(errors="replace")


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """Takes what the process and its libraries write; yields a list that is filled."""
    texts: list[str] = []
    streams = sys.stdout, sys.stderr
    for stream in streams:
        stream.flush()
    pipes = [_Pipe(1), _Pipe(2)]
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), line_buffering=True)
        for fd in (1, 2)
    )
    try:
        yield texts
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = streams
        texts += [pipe.close() for pipe in pipes]


def command(module: str, flags: Sequence[str]) -> list[str]:
    """The command of a process of its own, for what needs one."""
    return [sys.executable, "-P", "-m", module, *flags]


def run_alone(module: str, *flags: str) -> Outcome:
    """Runs a program in a process of its own; one that hangs is an error."""
    done = subprocess.run(
        command(module, flags),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


if __name__ == "__main__":
    main()
