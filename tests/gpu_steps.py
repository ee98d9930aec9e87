"""What must hold of a step that is meant for a GPU."""

# What may be copied between the memories of host and GPU at each step.
MOST_BYTES = 4096


def assert_stays_on_the_gpu(step, host_ops=()):
    """Args: step, and the types of operations that are meant to be on the host."""
    assert set(step.without_kernel.values()) == set(host_ops), step.without_kernel
    names = set(step.without_kernel)
    large = [
        crossing
        for crossing in step.crossings
        if crossing.num_bytes > MOST_BYTES
        and not {crossing.reader.split()[0], crossing.tensor.split(":")[0]} & names
    ]
    assert not large
    assert sum(step.launches.values()) > 10
