"""Full disks, forbidden folders, limits: one line, and the run resumes afterwards."""

from tests.faults import harness
from tests.faults.arrangements import of_each
from tests.faults.harness import EITHER, Case

_SPACE = ("No space left", "disk is full", "free some space", "free space")
_LIMIT = ("File too large", "ulimit")


def small_disk(size):
    """The results folder is a disk of its own."""
    return lambda place: place.mount(place.out, f"size={size},mode=0777")


def grow(place):
    place.remount(place.out, "size=100m")


def read_only_disk(place):
    place.mount(place.root / "disk", "ro")


def read_only_after_a_stop(place):
    """The disk of a stopped run is read-only now."""
    keep = place.root / "keep"
    place.out.rename(keep)
    place.mount(place.out, "size=100m,mode=0777")
    harness.shutil.copytree(keep, place.out, dirs_exist_ok=True)
    harness.shutil.rmtree(keep)
    place.remount(place.out, "ro")


def forbidden(place):
    """A folder of somebody else's."""
    (place.root / "theirs").mkdir()
    (place.root / "theirs").chmod(0o555)


def forbid_run(place):
    """The stopped run is somebody else's."""
    for path in [place.out, *place.out.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def allow_run(place):
    for path in [place.out, *place.out.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)


# By what is full first: nothing fits; the flags do; a few rounds do; all but the end.
SMALL_DISKS = of_each(
    *(
        lambda p, size=size: Case(
            f"a_disk_of_{size}",
            p,
            arrange=small_disk(size),
            cure=grow,
            code=1,
            says=["run", _SPACE],
            writes=None,
        )
        for size in ("4k", "12k", "24k", "40k", "64k")
    ),
    *(
        lambda p, size=size: Case(
            f"files_of_{size}_at_most",
            p,
            # What Numba compiles is in its cache by then.
            arrange=lambda place: place.templates.get(p, "finished"),
            limits={"FSIZE": size},
            cure=lambda place: None,
            code=1,
            says=["run", _LIMIT],
            writes=None,
        )
        for size in (0, 100, 600, 2000, 10_000)
    ),
    *(
        lambda p, size=size: Case(
            f"files_of_{size}_at_most_from_a_stop_on",
            p,
            start="stopped",
            limits={"FSIZE": size},
            cure=lambda place: None,
            code=1,
            says=["run", _LIMIT],
            writes=None,
            # What was saved before is still there.
            keeps=["run/flags.txt", "run/data.json"],
        )
        for size in (0, 300, 5000)
    ),
)

FORBIDDEN = of_each(
    lambda p: Case(
        "a_read_only_disk",
        p,
        ["--results_dir=disk/run"],
        arrange=read_only_disk,
        code=EITHER,
        says=["disk/run", "ead-only file system"],
    ),
    lambda p: Case(
        "a_disk_that_became_read_only",
        p,
        start="stopped",
        arrange=read_only_after_a_stop,
        cure=lambda place: place.remount(place.out, "rw"),
        code=EITHER,
        says=["run", "ead-only file system"],
    ),
    lambda p: Case(
        "somebody_else_s_folder",
        p,
        ["--results_dir=theirs/run"],
        arrange=forbidden,
        code=EITHER,
        says=["theirs/run", "ermission denied"],
        as_nobody=True,
    ),
    lambda p: Case(
        "somebody_else_s_run",
        p,
        start="stopped",
        arrange=forbid_run,
        cure=allow_run,
        code=EITHER,
        says=["run", "ermission denied"],
        as_nobody=True,
    ),
    lambda p: Case(
        "no_folder_can_be_here",
        p,
        ["--results_dir=/proc/run"],
        code=EITHER,
        says=["/proc/run"],
    ),
    lambda p: Case(
        "a_device_for_a_folder",
        p,
        ["--results_dir=/dev/null/run"],
        code=EITHER,
        says=["--results_dir=/dev/null/run"],
    ),
)

# Reports and the like write their files at the end.
OTHERS = [
    case
    for program, flag, own in (
        ("sampler_quality", "output_dir", ["--num_draws=100"]),
        ("describe", "output", []),
    )
    for case in (
        Case(
            f"{program}_to_theirs",
            program,
            [f"--{flag}=theirs/x.png", *own],
            arrange=forbidden,
            code=EITHER,
            says=["ermission denied"],
            writes=None,
            as_nobody=True,
        ),
        Case(
            f"{program}_to_a_small_file",
            program,
            [f"--{flag}=out/x.png", *own],
            code=1,
            says=[_LIMIT],
            writes=None,
            limits={"FSIZE": 500},
        ),
    )
]


@harness.params(SMALL_DISKS)
def test_a_full_disk_is_named_and_the_run_resumes(case, place):
    harness.try_case(case, place)


@harness.params(FORBIDDEN)
def test_a_forbidden_folder_is_named(case, place):
    harness.try_case(case, place)


@harness.params(OTHERS)
def test_output_that_cannot_be_written_is_named(case, place):
    harness.try_case(case, place)
