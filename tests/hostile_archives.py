"""Zips and tars that should not be sent: bombs, links, names that climb."""

import bz2
import dataclasses
import gzip
import io
import itertools
import lzma
import pathlib
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence

LARGE = 10 << 30
_BLOCK = bytes(1 << 20)
_PIECES = 10_000  # Pieces that are compressed as one stream.
_NOT_UTF8 = b"\xff\xfe"  # Replaces ü.


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of an archive.

    Attributes:
        name: ü in it becomes bytes that are no UTF-8.
        content: What is in it.
        zeros: How many zeros follow; they are never in memory.
        kind: As tars say it.
        link: Where a link leads.
        size: What its header says, if that is not true.
    """

    name: str
    content: bytes = b""
    zeros: int = 0
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    size: int | None = None


# A fault is a function: from good members, and where nothing may be written, to others.
Fault = Callable[[Sequence[Member], pathlib.Path], list[Member]]


def _instead(**changes) -> Fault:
    """The last member is another one."""
    return lambda good, _: [*good[:-1], dataclasses.replace(good[-1], **changes)]


def _beside(name: str, **changes) -> Fault:
    """Another member, with the last name's ending; {root} is an absolute path."""

    def fault(good, root):
        suffix = pathlib.PurePath(good[-1].name).suffix
        other = name.format(root=root) + suffix
        return [*good, dataclasses.replace(good[-1], name=other, **changes)]

    return fault


def many(count: int) -> Fault:
    """A number of empty members in addition."""
    return lambda good, _: [*good, *(Member(f"junk/{i:07}.txt") for i in range(count))]


# What is never read, in tars and in zips; a zip has no other kinds of members.
REFUSED = {
    "a bomb": _instead(content=b"", zeros=LARGE),
    "a symbolic link": _instead(content=b"", kind=tarfile.SYMTYPE, link="/etc/passwd"),
}
REFUSED_TARS = {
    "a hard link": _instead(content=b"", kind=tarfile.LNKTYPE, link="/etc/passwd"),
    "a device": _instead(content=b"", kind=tarfile.CHRTYPE),
    "a pipe": _instead(content=b"", kind=tarfile.FIFOTYPE),
    "a sparse file": _instead(content=b"", kind=tarfile.GNUTYPE_SPARSE, size=LARGE),
    "a length below zero": _instead(content=b"", size=-1024),
    "a length beyond the end": _instead(content=b"", size=1 << 60),
    "a long name of zeros": lambda good, _: [
        Member("././@LongLink", zeros=LARGE, kind=tarfile.GNUTYPE_LONGNAME),
        *good,
    ],
    "a header of zeros": lambda good, _: [
        Member("pax", zeros=LARGE, kind=tarfile.XHDTYPE),
        *good,
    ],
    "a time that is no number": lambda good, _: [
        Member("pax", b"13 mtime=nan\n", kind=tarfile.XHDTYPE),
        *good,
    ],
    "a null in a name": lambda good, _: [
        Member("pax", b"14 path=a\0b/c\n", kind=tarfile.XHDTYPE),
        *good,
    ],
}
# These are read in memory, left out or refused.
HARMLESS = {
    "a name that climbs": _beside("../../escaped"),
    "an absolute name": _beside("{root}/escaped"),
    "a name that is not UTF-8": _beside("ü"),
    "a name twice": lambda good, _: [*good, good[-1]],
    "very many members": many(2000),
}


def _pieces(members: Sequence[Member]) -> Iterator[bytes | int]:
    """Yields what a tar is made of; a number is a count of zeros."""
    for member in members:
        info = tarfile.TarInfo(member.name)
        info.type, info.linkname = member.kind, member.link
        length = len(member.content) + member.zeros
        info.size = length if member.size is None else member.size
        header = bytearray(
            info.tobuf(tarfile.GNU_FORMAT).replace("ü".encode(), _NOT_UTF8)
        )
        if member.kind == tarfile.GNUTYPE_SPARSE:
            header[124:136] = b"00000000000\0"
            header[483:495] = b"%011o\0" % member.size
        header[148:156] = b"        "
        header[148:156] = b"%06o\0 " % sum(header)
        padding = bytes(-length % 512)
        if member.zeros:
            yield bytes(header) + member.content
            yield member.zeros
            yield padding
        else:
            yield bytes(header) + member.content + padding
    yield bytes(10240)


def write_tar(path: pathlib.Path, members: Sequence[Member]) -> None:
    """Writes a tar, compressed as its suffix says; zeros take no time."""
    compress = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
    compress = compress.get(path.suffix)
    parts = itertools.groupby(_pieces(members), lambda piece: isinstance(piece, bytes))
    with open(path, "wb") as file:
        for is_content, pieces in parts:
            if is_content:
                while content := b"".join(itertools.islice(pieces, _PIECES)):
                    file.write(compress(content) if compress else content)
            elif compress:  # One stream after another is a stream.
                file.write(compress(_BLOCK) * (sum(pieces) // len(_BLOCK)))
            else:
                file.seek(sum(pieces), io.SEEK_CUR)


def write_zip(path: pathlib.Path, members: Sequence[Member]) -> None:
    """Writes a zip; what is zeros is deflated."""
    with zipfile.ZipFile(path, "w") as archive:
        for member in members:
            info = zipfile.ZipInfo(member.name)
            is_link = member.kind == tarfile.SYMTYPE
            mode = stat.S_IFLNK if is_link else stat.S_IFREG
            info.external_attr = (mode | 0o644) << 16
            info.create_system = 3
            content = member.link.encode() if is_link else member.content
            archive.writestr(info, _deflated(member) if member.zeros else content)
            if member.zeros:  # The sum is that of nothing: it costs too much.
                info.compress_type = zipfile.ZIP_DEFLATED
                info.file_size = len(content) + member.zeros
    packed = path.read_bytes()
    if "ü".encode() in packed:
        path.write_bytes(packed.replace("ü".encode(), _NOT_UTF8))


def _deflated(member: Member) -> bytes:
    """The content and zeros of a member."""
    deflate = zlib.compressobj(wbits=-15)
    start = deflate.compress(member.content) + deflate.flush(zlib.Z_FULL_FLUSH)
    block = deflate.compress(_BLOCK) + deflate.flush(zlib.Z_FULL_FLUSH)
    return start + block * (member.zeros // len(_BLOCK)) + deflate.flush()
