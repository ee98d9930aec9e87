"""Archives of runs: their bytes, what is read from them, what is refused."""

import io
import lzma
import pathlib
import tarfile

import pytest

from experiments.common import results, sources
from tests.experiments import run_folders
from tests.refusals import refused

PUBLISHED = pathlib.Path(__file__).parents[3] / "docs" / "results"
CONTENTS = {
    "b_fedss/seed10/flags.txt": b"--seed=10\n",
    "b_fedss/seed2/flags.txt": b"--seed=2\n",
    "a/b/seed0/metrics.csv": b"",
}


@pytest.fixture
def runs(tmp_path):
    """Runs in folders, one of which is unfinished, and another folder."""
    for cell, seed, percent in (
        ("omniglot_fedss_m5", 0, 50.0),
        ("omniglot_fedss_m5", 10, 52.0),
        ("omniglot_fedss_m5", 2, 51.0),
        ("omniglot_centralized", 0, 60.0),
    ):
        run_folders.write_run(tmp_path / "runs", cell, seed, percent)
    run_folders.write_run(tmp_path / "runs", "omniglot_pos_only", 0, 9.0, rounds_done=2)
    (tmp_path / "runs" / "omniglot_fedss_m5" / "seed0" / "weights.h5").touch()
    (tmp_path / "runs" / "warm_starts").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def archived(runs, tmp_path):
    sources.write_runs(tmp_path / sources.ARCHIVE, runs)
    return tmp_path / sources.ARCHIVE


KIND = results.RunKind("train", lambda flags: flags["method"])


def described(path):
    """All that the finished runs of a folder say, but where they are."""
    found = [run for own in sources.find_cells(path).values() for run in own]
    runs = [results.read_run(run, KIND) for run in found]
    return [
        {name: value for name, value in vars(run).items() if name != "source"}
        for run in runs
        if run.is_done
    ]


def write_tar(path, *members):
    """Writes an archive of members with their contents."""
    with tarfile.open(path, "w:xz", preset=0) as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def assert_refused(path, *parts):
    with refused(str(path)) as error:
        sources.read_archive(path)
    for part in parts:
        assert part in str(error.value)


def test_runs_are_the_same_from_both(runs, archived):
    expected = described(runs)
    seeds = [int(run["flags"]["seed"]) for run in expected]
    assert seeds == [0, 0, 2, 10]
    assert described(archived) == expected
    runs.rename(archived.parent.parent / f"{archived.parent.name}_elsewhere")
    assert described(archived.parent) == expected


def test_a_cell_may_be_a_link_to_another_disk(runs, tmp_path):
    expected = described(runs)
    cell = runs / "omniglot_fedss_m5"
    cell.symlink_to(cell.rename(tmp_path / "elsewhere"))
    assert described(runs) == expected
    sources.write_runs(tmp_path / sources.ARCHIVE, runs)
    assert described(tmp_path / sources.ARCHIVE) == expected


def test_only_the_published_files_of_finished_runs_are_in_it(archived):
    names = sources.read_archive(archived)
    assert {pathlib.Path(name).name for name in names} == {
        "flags.txt",
        "run.json",
        "metrics.csv",
        "speed.csv",
        "done.json",
    }
    assert not any("pos_only" in name for name in names)


def test_the_same_contents_give_the_same_bytes(tmp_path):
    backwards = dict(reversed(CONTENTS.items()))
    sources.write_archive(tmp_path / "x", CONTENTS)
    sources.write_archive(tmp_path / "y", backwards)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()
    assert sources.read_archive(tmp_path / "x") == CONTENTS
    with tarfile.open(tmp_path / "x") as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(CONTENTS)
    assert {(x.mtime, x.uid, x.gid, x.uname) for x in members} == {(0, 0, 0, "")}


def test_published_archives_are_as_they_would_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_PRESET", 0)  # What is compressed is compared.
    paths = sorted(PUBLISHED.rglob(sources.ARCHIVE))
    assert len(paths) > 10
    for path in paths:
        sources.write_archive(tmp_path / "again", sources.read_archive(path))
        # xz itself may compress otherwise in another version.
        again = lzma.decompress((tmp_path / "again").read_bytes())
        assert again == lzma.decompress(path.read_bytes()), path


# Links, devices and more: tests/test_unpacking.py.
@pytest.mark.parametrize(
    "name", ["../seed0/flags.txt", "x/../../seed0/flags.txt", "/x/seed0/flags.txt"]
)
def test_a_path_out_of_the_archive_is_refused(tmp_path, name):
    write_tar(tmp_path / "x.tar.xz", (tarfile.TarInfo(name), b""))
    assert_refused(tmp_path / "x.tar.xz", name, "expected a path inside")


def test_an_archive_that_holds_too_much_is_refused(tmp_path):
    large = tmp_path / "large.tar.xz"
    write_tar(large, (tarfile.TarInfo("x/seed0/flags.txt"), bytes(2**26)))
    assert large.stat().st_size < 2**20
    assert_refused(large, "more than 64 MiB")
    many = tmp_path / "many.tar.xz"
    write_tar(many, *((tarfile.TarInfo(f"{i}"), b"") for i in range(10_001)))
    assert_refused(many, "more than 10,000 members")


def test_damaged_archives_are_refused(archived):
    content = archived.read_bytes()
    for damaged in (
        b"",
        content[: len(content) // 2],
        b"Dear Sir or Madam",
        lzma.compress(b"Dear Sir or Madam" * 99),  # No tar.
        lzma.compress(lzma.decompress(content)[:700]),
    ):
        archived.write_bytes(damaged)
        assert_refused(archived, "damaged")
    archived.unlink()
    assert_refused(archived, "missing")


def test_a_damaged_file_inside_is_named_with_its_line(archived):
    contents = sources.read_archive(archived)
    name = "omniglot_fedss_m5/seed2/metrics.csv"
    lines = contents[name].splitlines(keepends=True)
    sources.write_archive(
        archived, {**contents, name: b"".join([*lines[:2], b"nonsense\n", *lines[2:]])}
    )
    with refused("found 1 fields; the header") as error:
        described(archived)
    assert f"{archived}/{name}:3" in str(error.value)


def test_folders_beside_an_archive_are_refused(runs, archived):
    archived.rename(runs / sources.ARCHIVE)
    with refused("remove one of them"):
        sources.find_cells(runs)


def test_files_that_are_of_no_run_are_none(tmp_path):
    sources.write_archive(tmp_path / sources.ARCHIVE, {"README.md": b""})
    with refused("holds no run: expected"):
        sources.find_cells(tmp_path)
