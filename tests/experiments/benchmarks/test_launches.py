import pytest

from experiments.benchmarks import launches
from tests.gpu_steps import assert_stays_on_the_gpu
from tff_fedss import models


@pytest.mark.parametrize(
    "name, size, most_launches",
    [
        ("small_cnn", 28, 200),
        pytest.param("mobilenet_v3_small", 96, 1100, marks=pytest.mark.slow),
        pytest.param("mobilenet_v3_paper", 224, 1500, marks=pytest.mark.slow),
        pytest.param("mobilenet_v3_large", 224, 1500, marks=pytest.mark.slow),
    ],
)
def test_a_clients_loop_stays_on_the_gpu(name, size, most_launches):
    shape = (size, size, 1 if name == "small_cnn" else 3)
    step = launches.client_step(models.FEATURE_EXTRACTORS[name], shape)
    assert_stays_on_the_gpu(step)
    assert sum(step.launches.values()) <= most_launches


def test_the_program_writes_a_table(monkeypatch, tmp_path):
    step = launches.client_step(models.small_cnn, (8, 8, 1), batch_size=4)
    monkeypatch.setattr(launches, "client_step", lambda *args, **kwargs: step)
    chosen = ("small_cnn", "mobilenet_v3_small")
    launches.main(launches.Config(output_dir=str(tmp_path), models=chosen))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (tmp_path / "launches.md").read_text().splitlines()
    ]
    assert rows[0][1:] == ["small_cnn, 28x28", "mobilenet_v3_small, 224x224"]
    assert rows[-1] == ["all", *[f"{sum(step.launches.values()):,}"] * 2]
    assert ["convolutions", "11", "11"] in rows
