import pytest

from tff_fedss import errors, memory

GIB = 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Writes what Linux would say of a machine's memory."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "cgroup")

    def write(ram, swap=0, groups="", limits=()):
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "meminfo").write_text(
            f"MemTotal:       {ram * 2**20} kB\nMemFree:   1 kB\nHugePages_Total:   0\n"
            f"SwapTotal:      {swap * 2**20} kB\n"
        )
        (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
        for name, limit in dict(limits).items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{limit}\n")

    return write


@pytest.mark.parametrize(
    "options, expected",
    [
        (dict(ram=16), 16),
        (dict(ram=16, swap=4), 20),
        # Version 2: the smallest limit of a group and those above it.
        (
            dict(
                ram=16,
                groups="0::/jobs/7\n",
                limits={"jobs/7/memory.max": "max", "jobs/memory.max": 8 * GIB},
            ),
            8,
        ),
        (dict(ram=16, groups="0::/\n", limits={"memory.max": 3 * GIB}), 3),
        # In a container, the name may be the host's.
        (dict(ram=16, groups="0::/docker/a\n", limits={"memory.max": 2 * GIB}), 2),
        # Version 1, whose "no limit" is a huge number.
        (
            dict(
                ram=16,
                groups="9:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n",
                limits={
                    "memory/a/b/memory.limit_in_bytes": 2**63 - 4096,
                    "memory/a/memory.limit_in_bytes": 5 * GIB,
                    "cpu/a/memory.limit_in_bytes": GIB,
                },
            ),
            5,
        ),
        (dict(ram=16, swap=1, groups="0::/\n", limits={"memory.max": 3 * GIB}), 4),
    ],
)
def test_the_memory_is_the_machines_or_its_groups(machine, options, expected):
    machine(**options)
    assert memory.available_bytes() == expected * GIB


def test_this_machine_has_some():
    assert memory.available_bytes() > GIB


def test_what_fits_is_not_refused(machine):
    machine(ram=2)
    memory.check({"a": GIB, "b": GIB})
    memory.check({})
    with pytest.raises(errors.InvalidInputError):
        memory.check({"a": GIB, "b": GIB + 1})


def test_a_refusal_has_every_part_and_the_sum():
    with pytest.raises(errors.InvalidInputError) as error:
        memory.check(
            {"rows": 3 * GIB, "crumbs": 100},
            device_needs={"W": 2_000 * GIB},
            memory=4 * GIB,
        )
    text = str(error.value)
    assert "at least 2,003.0 GiB" in text and "this machine has 4.0 GiB" in text
    assert text.endswith("W 2,000.0 GiB; rows 3.0 GiB.")


def test_what_is_on_gpus_does_not_count(monkeypatch):
    monkeypatch.setattr(memory.tf.config, "get_visible_devices", lambda kind: ["0"])
    memory.check({"rows": GIB}, device_needs={"W": 9 * GIB}, memory=2 * GIB)
    with pytest.raises(errors.InvalidInputError):
        memory.check({"rows": 3 * GIB}, device_needs={"W": 1}, memory=2 * GIB)
