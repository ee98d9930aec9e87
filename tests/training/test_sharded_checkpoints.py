import json

import numpy as np
import pytest

from tff_fedss import algorithms, models, runtime, training
from tff_fedss.errors import InvalidInputError

N, D = 150_001, 3  # Several blocks of rows, and shards that cut them.


def matrix(num_shards, rows=N, seed=None):
    bounds = runtime.balanced_bounds(rows, num_shards)
    built = models.ShardedMatrix(["/CPU:0"] * num_shards, bounds, D)
    if seed is not None:
        built.draw_normal(1.0, seed)
    return built


def state(num_shards, seed=None, rows=N):
    filled = np.float32(seed or 0)
    return algorithms.ShardedState(
        [np.asarray(7 if seed else 0), np.full([2, 2], filled)],
        {"W": matrix(num_shards, rows, seed), "momentum": matrix(num_shards, rows, 9)},
    )


def whole(matrix):
    return matrix.read(0, matrix.shape[0])


def test_rows_do_not_depend_on_the_shards():
    one = whole(matrix(1, seed=1))
    assert one.std() == pytest.approx(1.0, abs=0.01)
    assert len(np.unique(one)) > 0.99 * one.size
    for num_shards in (3, 8):
        np.testing.assert_array_equal(whole(matrix(num_shards, seed=1)), one)
    assert (whole(matrix(1, seed=2)) != one).all(1).any()
    part = matrix(3, seed=1).read(49_990, 120_007)
    np.testing.assert_array_equal(part, one[49_990:120_007])
    assert matrix(2).read(5, 5).shape == (0, D)


@pytest.mark.parametrize("num_shards", [1, 2, 4, 8])
def test_what_four_shards_have_saved_goes_to_any_number_of_shards(tmp_path, num_shards):
    saved = state(4, seed=1)
    training.ShardedCheckpoints(tmp_path).save(saved, 3)
    assert len(list((tmp_path / "round_3").glob("W.*.npy"))) == 4

    fresh = state(num_shards)
    restored, round_num = training.ShardedCheckpoints(tmp_path).restore(fresh)
    assert round_num == 3
    for mine, theirs in zip(restored.arrays, saved.arrays):
        np.testing.assert_array_equal(mine, theirs)
    for name, matrix in fresh.matrices.items():
        matrix.copy_from(restored.matrices[name])
        np.testing.assert_array_equal(whole(matrix), whole(saved.matrices[name]))


def test_the_newest_are_kept(tmp_path):
    checkpoints = training.ShardedCheckpoints(tmp_path, keep=2)
    for round_num in (9, 10, 11):
        checkpoints.save(state(2, 1, rows=50), round_num)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round_10", "round_11"]
    assert training.ShardedCheckpoints(tmp_path).restore(state(2, rows=50))[1] == 11


def test_what_a_killed_program_was_writing_is_cleared_away(tmp_path):
    training.ShardedCheckpoints(tmp_path).save(state(2, 1, rows=50), 1)
    (tmp_path / "round_2_temp").mkdir()
    (tmp_path / "round_2_temp" / "arrays.npz").write_bytes(b"half")
    checkpoints = training.ShardedCheckpoints(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["round_1"]
    assert checkpoints.restore(state(2, rows=50))[1] == 1


@pytest.mark.parametrize("file", ["W.000000025-000000050.npy", "arrays.npz"])
@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_a_damaged_checkpoint_is_put_aside(tmp_path, capsys, file, damage):
    checkpoints = training.ShardedCheckpoints(tmp_path)
    checkpoints.save(state(2, 1, rows=50), 1)
    checkpoints.save(state(2, 2, rows=50), 2)
    path = tmp_path / "round_2" / file
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        content[-1] ^= 1
        path.write_bytes(content[:-5] if damage == "cut" else content)
    restored, round_num = checkpoints.restore(state(2, rows=50))
    assert round_num == 1 and restored.arrays[1][0, 0] == 1.0
    assert "round_2 is damaged" in capsys.readouterr().err
    assert (tmp_path / "damaged_round_2").is_dir()


def test_another_shape_is_refused(tmp_path):
    training.ShardedCheckpoints(tmp_path).save(state(2, 1, rows=50), 1)
    with pytest.raises(InvalidInputError, match=r"\(50, 3\), not \(51, 3\)"):
        training.ShardedCheckpoints(tmp_path).restore(state(2, rows=51))
    assert (tmp_path / "round_1").is_dir()


def test_nothing_is_there_before_the_first_save(tmp_path):
    assert (
        training.ShardedCheckpoints(tmp_path / "none").restore(state(1, 1, 9)) is None
    )


def test_files_are_arrays_that_numpy_reads(tmp_path):
    saved = state(2, 1, rows=50)
    training.ShardedCheckpoints(tmp_path).save(saved, 1)
    folder = tmp_path / "round_1"
    rows = np.load(folder / "W.000000000-000000025.npy")
    np.testing.assert_array_equal(rows, whole(saved.matrices["W"])[:25])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["content"]["matrices"]["W"]["shape"] == [50, D]
