"""Ways to bring a fault about, and to remove it again."""

import fcntl
import shutil
from collections.abc import Callable
from typing import Any

from tests.faults import programs
from tests.faults.harness import Case, Place

Arrangement = Callable[[Place], None]


def of_each(
    *cases: Callable[[str], Case], names: tuple[str, ...] = programs.TRAINING
) -> list[Case]:
    """Makes cases for each program that trains: functions of its name."""
    return [case(program) for program in names for case in cases]


def all_of(*arrangements: Arrangement) -> Arrangement:
    """One after the other."""

    def arrange(place):
        for each in arrangements:
            each(place)

    return arrange


def write(name: str, content: bytes | str) -> Arrangement:
    """Puts a file into the place's folder; run/... is in the results folder."""

    def arrange(place):
        path = place.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return arrange


def make_folder(name: str) -> Arrangement:
    """Makes a folder, where a file should be."""
    return lambda place: (place.root / name).mkdir(parents=True)


def remove(name: str) -> Arrangement:
    """Removes a file or a folder."""

    def arrange(place):
        path = place.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    return arrange


def spoil(name: str, change: Callable[[bytes], bytes | None]) -> dict[str, Any]:
    """Changes a file, and restores it as the cure.

    Args:
        name: In the place's folder. A pattern: the first path in its order.
        change: From the file's content to another; None: the file is lost.

    Returns:
        `arrange` and `cure` of a case.
    """

    def find(place):
        return sorted(place.root.glob(name))[0]

    def arrange(place):
        path = find(place)
        place.kept = (path, path.read_bytes())
        content = change(place.kept[1])
        if content is None:
            path.unlink()
        else:
            assert content != place.kept[1], f"{path} is as it was"
            path.write_bytes(content)

    def cure(place):
        path, content = place.kept
        path.write_bytes(content)

    return {"arrange": arrange, "cure": cure}


def harm(name: str, change: Callable[[bytes], bytes | None]) -> dict[str, Any]:
    """As `spoil`, without the cure: others like it show that a run resumes."""
    return {"arrange": spoil(name, change)["arrange"]}


def replace_by_folder(name: str) -> dict[str, Any]:
    """Puts a folder where a file should be, and restores the file as the cure."""

    def arrange(place):
        path = place.root / name
        place.kept = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        path.mkdir()

    def cure(place):
        path = place.root / name
        path.rmdir()
        if place.kept is not None:
            path.write_bytes(place.kept)

    return {"arrange": arrange, "cure": cure}


def flip(content: bytes) -> bytes:
    """Changes one bit in the middle, as a bad disk does."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]


def cut_off(content: bytes) -> bytes:
    """Keeps the first half."""
    return content[: len(content) // 2]


def lose(_content: bytes) -> None:
    """The file is not there any more."""


def put(content: bytes | str) -> Callable[[bytes], bytes]:
    """Another content."""
    return lambda _: content if isinstance(content, bytes) else content.encode()


def hold_lock(place: Place) -> None:
    """Another process has the folder."""
    place.out.mkdir(exist_ok=True)
    lock = (place.out / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    place.held.append(lock)


def let_go(place: Place) -> None:
    """The other process has ended."""
    place.held.pop().close()
