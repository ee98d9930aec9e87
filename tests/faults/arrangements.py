"""Ways to cause a fault."""

import fcntl
import shutil
from collections.abc import Callable

from tests.faults.harness import Arrangement, Place

Change = Callable[[bytes], bytes | None]


def all_of(*arrangements: Arrangement) -> Arrangement:
    """One after the other."""

    def arrange(place):
        for each in arrangements:
            each(place)

    return arrange


def write(name: str, content: bytes | str) -> Arrangement:
    """Puts a file into the place's folder; {name} is that of the run."""

    def arrange(place):
        path = _path(place, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return arrange


def make_folder(name: str) -> Arrangement:
    """Makes a folder, which replaces a file if there is one."""

    def arrange(place):
        path = _path(place, name)
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)

    return arrange


def remove(name: str) -> Arrangement:
    """Removes a folder and all in it."""
    return lambda place: shutil.rmtree(_path(place, name))


def change(name: str, by: Change) -> Arrangement:
    """Changes a file by a function from its content to another; None: it is lost."""

    def arrange(place):
        path = _path(place, name)
        old = path.read_bytes()
        content = by(old)
        if content is None:
            path.unlink()
        else:
            assert content != old, f"{path} is as it was"
            path.write_bytes(content)

    return arrange


def forbid(name: str) -> Arrangement:
    """Makes a file or a folder usable by its owner only."""
    return lambda place: _path(place, name).chmod(0o000)


def _path(place, name):
    return place.root / name.replace("{name}", place.name)


def flip(content: bytes) -> bytes:
    """Changes one bit in the middle, as a bad disk does."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]


def cut_off(content: bytes) -> bytes:
    """Keeps the first half."""
    return content[: len(content) // 2]


def lose(_content: bytes) -> None:
    """The file is not there any more."""


def put(content: bytes | str) -> Change:
    """Another content."""
    return lambda _: content if isinstance(content, bytes) else content.encode()


def swap(old: bytes, new: bytes) -> Change:
    """Another text where one occurs first."""
    return lambda content: content.replace(old, new, 1)


def hold_lock(place: Place) -> None:
    """Another process has the folder."""
    place.out.mkdir(exist_ok=True)
    lock = (place.out / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    place.held.append(lock)
