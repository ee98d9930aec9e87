"""The cost model of hidden requests, by hand."""

import functools
import math

import numpy as np
import pytest

from experiments.privacy import retrieval_costs
from experiments.privacy.retrieval_costs import Setting

# W of 2^22 classes is 2^30 bytes, at d = 64.
LARGE = Setting("large", 2**22, 1000, 10)


def test_published_figures_are_met_at_their_size():
    size = 1e9 / 256
    setting = Setting("1 GB", size, 3, 2)
    simple, double = (
        retrieval_costs.single_server(setting, scheme)
        for scheme in retrieval_costs.SINGLE_SERVER
    )
    assert simple.fixed == pytest.approx(121e6) and simple.per_key == 242e3
    assert double.fixed == pytest.approx(16e6) and double.per_key == 345e3
    assert simple.total == pytest.approx(121e6 + 3 * 242e3)
    assert simple.break_even == pytest.approx((1e9 - 121e6) / 242e3)
    # "Fewer than one 32-bit multiplication and one addition per database byte."
    assert simple.server == pytest.approx(2e9)


def test_two_servers_get_a_key_each():
    cost = retrieval_costs.two_servers(LARGE)
    key = math.ceil((22 * 130 + 129) / 8)
    assert cost.per_key == 2 * (key + 256) and cost.fixed == 0
    assert cost.total == 1000 * cost.per_key
    assert cost.break_even * cost.per_key == pytest.approx(2**30)


def test_a_union_is_as_large_as_drawn_ones():
    setting = Setting("", 500, 60, 12)
    rng = np.random.default_rng(0)
    sizes = [
        len({c for _ in range(12) for c in rng.choice(500, 60, replace=False)})
        for _ in range(300)
    ]
    expected = retrieval_costs.expected_union(setting)
    assert expected == pytest.approx(np.mean(sizes), abs=5 * np.std(sizes) / 300**0.5)
    cost = retrieval_costs.private_union(setting)
    # A place for each class is shorter here than a Bloom filter.
    assert cost.fixed == 4 * 500
    assert cost.total == pytest.approx(2000 + expected * 260)


def test_a_bloom_filter_is_shorter_where_the_union_is_small():
    cost = retrieval_costs.private_union(LARGE)
    union = retrieval_costs.expected_union(LARGE)
    places = union * math.log(1000) / math.log(2) ** 2
    assert places < LARGE.num_classes
    assert cost.fixed == pytest.approx(4 * places)
    rows = union + 0.001 * (LARGE.num_classes - union)
    assert cost.total == pytest.approx(4 * places + 260 * rows)


def test_the_break_even_of_the_union_costs_all_of_w():
    setting = Setting("", 21_841, 100, 64)
    at = retrieval_costs.private_union(setting).break_even
    union = retrieval_costs.expected_union(setting._replace(request=at))
    assert 4 * 21_841 + 260 * union == pytest.approx(setting.bytes_of_w, rel=1e-6)


def test_the_program_writes_a_line_for_each_way(run_program, tmp_path):
    run = functools.partial(run_program, retrieval_costs)
    code, output, errors = run(f"--results_dir={tmp_path}")
    assert code == 0, errors
    lines = [line for line in output.splitlines() if line.startswith("| ImageNet")]
    assert len(lines) == 6 and "never" in lines[1]
    assert (tmp_path / "retrieval_costs.md").read_text().strip() == output.strip()
    assert len((tmp_path / "retrieval_costs.csv").read_text().splitlines()) == 17
