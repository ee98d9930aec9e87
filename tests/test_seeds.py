import itertools

import numpy as np

from tff_fedss import seeds


def test_generators_follow_from_both_numbers():
    keys = [(0, 1), (1, 0), (1, 1), (2**33, 1)]
    draws = [seeds.generator(*key).integers(2**63, size=4) for key in keys]
    for a, b in itertools.combinations(draws, 2):
        assert (a != b).any()
    for key, draw in zip(keys, draws, strict=True):
        np.testing.assert_array_equal(
            seeds.generator(*key).integers(2**63, size=4), draw
        )


def test_streams_and_items_of_a_seed_differ():
    folded = [tuple(seeds.fold_in([3, 4], stream).numpy()) for stream in seeds.Stream]
    assert len(set(folded)) == len(seeds.Stream)
    assert folded[0] == tuple(seeds.fold_in([3, 4], 0).numpy())
