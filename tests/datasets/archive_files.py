"""Writes the files that readers of data sets are to read."""

import io
import tarfile
import zipfile


def write_tar(path, files):
    """Writes a tar, compressed as its suffix says; names that end in / are folders."""
    kind = {"tgz": "gz", "txz": "xz", "tbz2": "bz2", "tar": ""}.get(
        path.suffix[1:], path.suffix[1:]
    )
    with tarfile.open(path, f"w:{kind}") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name.rstrip("/"))
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def write_zip(path, files):
    """Writes a zip; names that end in / are folders."""
    with zipfile.ZipFile(path, "w") as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)


def write_folder(path, files):
    """Writes files below a folder; names that end in / are folders."""
    for name, content in files.items():
        if name.endswith("/"):
            (path / name).mkdir(parents=True, exist_ok=True)
        else:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
