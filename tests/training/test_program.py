"""FedSS in TFF's program loop: the rounds of a `FederatedRun`, also after a stop."""

import asyncio
import csv
import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from examples import tff_program
from tff_fedss import algorithms, models, runtime, tasks, training
from tff_fedss.datasets import synthetic


@pytest.fixture(autouse=True)
def other_context():
    """The default context is TFF's again afterwards."""
    before = tff.framework.get_context_stack().current
    yield
    tff.framework.set_default_context(before)


def rows(folder):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_program_does_the_rounds_of_a_run(tmp_path, one_layer):
    tff_program.main(tmp_path / "whole", rounds=3)
    tff_program.main(tmp_path / "stopped", rounds=2)
    tff_program.main(tmp_path / "stopped", rounds=3)
    whole = rows(tmp_path / "whole")
    assert rows(tmp_path / "stopped") == whole and len(whole) == 3
    assert any((tmp_path / "whole" / "models").iterdir())

    dataset = synthetic.glyphs(40, image_size=14)
    phi_fn = functools.partial(models.small_cnn, dataset.image_shape, 16)
    task = tasks.Classification(dataset, phi_fn)
    process = algorithms.build_fedss(
        phi_fn, 40, algorithms.ClassSets(dataset.max_positives, 5)
    )
    runtime.set_in_process_context()
    run = training.FederatedRun("fedss", process, task, cohort_size=4, seed=0)
    for named in whole:
        row = {name.removeprefix("model_metrics/"): x for name, x in named.items()}
        measured = run.run_round()
        assert float(row["loss"]) == pytest.approx(measured["loss"], rel=1e-5)
        assert float(row["num_examples"]) == measured["num_examples"]


def test_computations_wait_for_each_other():
    """References of one computation are arguments of the next."""

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def add(values):
        return tff.federated_sum(values)

    @tff.tensorflow.computation(np.float32)
    def double(x):
        return 2 * x

    async def program():
        total = add([1.0, 2.0, 4.5])
        return await tff.program.materialize_value(double(total))

    context = tff.program.NativeFederatedContext(runtime.AsyncInProcessContext())
    with tff.framework.get_context_stack().install(context):
        assert asyncio.run(program()) == 15.0
