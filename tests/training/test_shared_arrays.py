import multiprocessing
import pickle

import numpy as np
import pytest

from tff_fedss.training.shared_arrays import SharedArrays


def double(arrays):
    arrays["a"][...] *= 2
    arrays["b"][1] = True
    arrays.close()


@pytest.mark.slow  # The other process imports TFF.
def test_another_process_sees_and_changes_them():
    arrays = SharedArrays.of(
        {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, bool)}
    )
    try:
        process = multiprocessing.get_context("spawn").Process(
            target=double, args=(arrays,)
        )
        process.start()
        process.join()
        assert process.exitcode == 0
        np.testing.assert_array_equal(arrays["a"], [[0, 2, 4], [6, 8, 10]])
        assert arrays["b"].tolist() == [False, True, False]
    finally:
        arrays.close()


def test_a_copy_is_a_reference_until_the_owner_lets_go():
    arrays = SharedArrays((("x", "<i4", (4,)), ("nothing", "<f8", (0,))))
    other = pickle.loads(pickle.dumps(arrays))
    other["x"][2] = 7
    assert arrays["x"].tolist() == [0, 0, 7, 0]
    assert arrays["nothing"].shape == (0,) and len(arrays) == 2
    other.close()
    pickled = pickle.dumps(arrays)
    arrays.close()
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickled)
