"""The benchmark tells who cheats; the ratios of growth."""

import contextlib
import csv
import dataclasses
import io
import pathlib
import re
import types
from unittest import mock

import numpy as np
import pandas as pd
import psutil
import pytest
import tensorflow_federated as tff

from experiments.benchmarks import contest, growth, memory, reading, table
from experiments.benchmarks.workload import BATCH_SIZE, Workload
from tests import waiting
from tests.experiments import fake_contender

_WORKLOAD = Workload("fedavg", "cnn", num_clients=2, num_examples=40)
_FAKE = contest.Entry("tests.experiments.fake_contender")
_FAKES = {
    "reference": _FAKE,
    "fake": _FAKE,
    "absent": contest.Entry("tests.experiments.fake_contender", "no_such_peer"),
}


def _run(tmp_path, names, reference="reference", timeout=600, fakes=_FAKES, **kwargs):
    options = dict(repeats=3, log_dir=tmp_path) | kwargs
    with (
        mock.patch.multiple(contest, CONTENDERS=fakes, _TIMEOUT=timeout),
        contextlib.redirect_stdout(io.StringIO()) as output,
    ):
        results = contest.run(_WORKLOAD, [reference, *names], **options)
    lines = output.getvalue().splitlines()
    return dict(zip(names, results[1:], strict=True)), lines


def test_a_contender_of_another_checkout(tmp_path):
    own = pathlib.Path(fake_contender.__file__)
    folder = tmp_path / "checkout"
    for package in ("tests", "tests/experiments"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
    other = own.read_text().replace('settings = "fake"', 'settings = "another"')
    (folder / "tests/experiments" / own.name).write_text(other)
    name = f"fake:checkout={folder}"
    results, _ = _run(tmp_path, ["fake", name], repeats=1)
    assert (results[name].status, results[name].note) == ("ok", "another")
    assert results["fake"].note == "fake"


def test_contenders_that_compute_something_else_are_wrong(tmp_path):
    hows = ("lies", "stops", "nan", "other model", "other loss")
    names = [f"fake:how={how}" for how in hows]
    results, lines = _run(tmp_path, [*names, "fake"])
    for name in names:
        assert results[name].status == "WRONG", name
        assert any(name in line and "WRONG" in line for line in lines), name
        assert len(results[name].seconds) == 3  # Not hidden.
    honest = results["fake"]
    assert (honest.status, honest.note) == ("ok", "fake")
    assert honest.weights_difference == honest.loss_difference == 0
    assert len(honest.seconds) == 3 and honest.first_seconds > 0
    assert honest.peak_mib > 1
    assert "not a reply" in (tmp_path / "fedavg_cnn_2_fake.log").read_text()
    # Nearest to its mark after the first round, of 0.1 w_0.
    initial = _WORKLOAD.initial_weights().values()
    length = 0.1 * np.sqrt(sum(np.sum(np.square(w)) for w in initial))
    lies, *_, other_loss = (results[name] for name in names)
    assert lies.weights_difference == pytest.approx(1 / length, rel=1e-4)
    assert other_loss.loss_difference == pytest.approx(0.1)


def test_what_rounding_does_is_not_wrong(tmp_path):
    nudged, other = "fake:how=lies", "fake:how=other loss"
    results, _ = _run(tmp_path, [nudged, f"{nudged}:name=B", other], nudged=nudged)
    assert results[nudged].status == results[f"{nudged}:name=B"].status == "ok"
    assert results[nudged].weights_difference > 1e-3
    # Its loss is the reference's, so that of the others must be, too.
    assert results[other].status == "WRONG"
    results, _ = _run(tmp_path, ["fake", nudged], nudged="fake")
    assert results[nudged].status == "WRONG"


def test_what_rounding_did_in_any_round_is_not_wrong(tmp_path):
    nudged, other = "fake:how=other loss at first", "fake:how=other loss"
    results, _ = _run(tmp_path, [nudged, other], nudged=nudged)
    assert results[nudged].loss_difference == pytest.approx(0.1)
    assert results[other].status == "ok"


def test_contenders_that_fail_are_reported_and_stop_nobody(tmp_path):
    reasons = {
        "fake:how=dies": "out of cheese",
        "fake:how=raises": "no cheese",
        "fake:no_such_option=1": "no_such_option",
        "fake:checkout=/no/such": "no /no/such/tests/experiments/fake_contender.py",
        "absent": "--setup_peers",
    }
    results, lines = _run(tmp_path, [*reasons, "fake"])
    for name, reason in reasons.items():
        assert results[name].status == "failed" and reason in results[name].note, name
        assert any(name in line and reason in line for line in lines), name
    assert results["fake"].status == "ok" and len(results["fake"].seconds) == 3
    # Nor does the one that died leave children.
    log = (tmp_path / "fedavg_cnn_2_fake_how_dies.log").read_text()
    with contextlib.suppress(psutil.NoSuchProcess):
        child = psutil.Process(int(re.search(r"child (\d+)", log).group(1)))
        waiting.wait_until(lambda: not waiting.is_alive(child))


def test_a_contender_that_hangs_is_given_up(tmp_path):
    results, _ = _run(tmp_path, ["fake:how=hangs"], timeout=5)
    assert results["fake:how=hangs"].status == "failed"
    assert "no answer in 5 s" in results["fake:how=hangs"].note


def test_without_the_reference_nobody_counts_as_checked(tmp_path):
    fakes = {**_FAKES, "reference": _FAKES["absent"]}
    results, _ = _run(tmp_path, ["fake"], fakes=fakes)
    assert results["fake"].status == "WRONG"
    results, _ = _run(tmp_path, ["fake"], "reference:how=dies")
    assert results["fake"].note.startswith("not checked, as the reference failed")


def test_contenders_take_turns(tmp_path):
    diary = tmp_path / "diary"
    _run(tmp_path, [f"fake:diary={diary}:name={name}" for name in "ABC"], repeats=2)
    assert diary.read_text() == "ABC" + "ABCABC"


def test_the_workload_is_the_same_wherever_it_is_made():
    a, b = _WORKLOAD.clients(), dataclasses.replace(_WORKLOAD).clients()
    for x, y in zip(a, b, strict=True):
        for u, v in zip(x, y, strict=True):
            np.testing.assert_array_equal(u, v)
    assert not np.array_equal(a[0].images, a[1].images)
    np.testing.assert_array_equal(a[1].labels, _WORKLOAD.client(1).labels)
    assert a[0].images.shape == (40, 28, 28, 1) and a[0].images.dtype == np.uint8
    weights = _WORKLOAD.initial_weights()
    for name, value in _WORKLOAD.initial_weights().items():
        np.testing.assert_array_equal(value, weights[name])


@pytest.mark.parametrize(
    "model", ["cnn", pytest.param("mobilenet_v3_small", marks=pytest.mark.slow)]
)
def test_the_weights_are_those_of_the_models_here(model):
    from experiments.benchmarks.contenders import plain_tensorflow, tf_model

    workload = Workload("fedss", model, 2)
    phi = tf_model.feature_extractor(workload)
    *weights, w = plain_tensorflow.PlainTensorFlow(workload)._initial()
    assert [x.shape for x in weights] == [v.shape for v in phi.trainable_variables]
    assert w.shape == (workload.num_classes, phi.output_shape[1])


@pytest.mark.parametrize("algorithm", ["fedavg", "fedss"])
def test_ours_computes_what_the_plain_loop_does(algorithm, monkeypatch):
    from experiments.benchmarks.contenders import ours, plain_tensorflow

    # Too late in this process, where it has been set by conftest.py.
    monkeypatch.setattr(ours.runtimes, "use_one_thread_per_operation", lambda: None)
    workload = Workload(algorithm, "cnn", 2, 40)  # The last batch is a short one.
    contenders = plain_tensorflow.PlainTensorFlow(workload), ours.Ours(workload)
    for contender in contenders:
        contender.build()
        contender.one_round()
        contender.one_round()
    expected, found = (contender.weights() for contender in contenders)
    initial = workload.initial_weights()
    assert list(expected) == list(found) == list(initial)
    for name, value in initial.items():
        step = np.linalg.norm(expected[name] - value)
        assert step > 0, name
        assert np.linalg.norm(found[name] - expected[name]) < 1e-3 * step, name
    expected, found = (contender.loss() for contender in contenders)
    assert found == pytest.approx(expected, rel=1e-5)
    contenders[1].close()


def _result(contender, seconds, **kwargs):
    result = contest.Result(contender, _WORKLOAD, seconds=seconds, **kwargs)
    if seconds:
        result.build_seconds, result.first_seconds = 1.0, 3.0
    return result


def test_the_tables(tmp_path):
    results = [
        _result("plain_tensorflow", [1.0, 1.0, 2.0]),
        _result(
            "ours_in_process",
            [0.5, 1.0, 1.0],
            weights_difference=1e-6,
            loss_difference=1e-7,
        ),
        _result("tff_fed_avg", [2.0, 2.0, 2.0]),
        _result("fedjax", [0.1, 0.1, 0.1], status="WRONG"),
        _result("flower", [], status="failed", note="a | b"),
    ]
    table.write(tmp_path, results, "a processor", "equal")
    with open(tmp_path / "benchmark.csv") as file:
        rows = {row["contender"]: row for row in csv.DictReader(file)}
    # 80 images in the median round of 1 s; 1 / 0.5, 1 / 1 and 2 / 1 turn by turn.
    assert float(rows["ours_in_process"]["images_per_second"]) == 80
    assert float(rows["ours_in_process"]["of_plain_tensorflow"]) == 2
    assert rows["flower"]["images_per_second"] == ""
    with open(tmp_path / "benchmark_rounds.csv") as file:
        rounds = [r for r in csv.DictReader(file) if r["contender"] == "tff_fed_avg"]
    assert [r["round"] for r in rounds] == ["build", "first", "1", "2", "3"]
    text = (tmp_path / "benchmark.md").read_text()
    cells = [[c.strip() for c in line.split("|")] for line in text.splitlines()]
    statuses = {line[1]: line[2] for line in cells if len(line) > 2}
    assert statuses["fedjax"] == "WRONG" and statuses["flower"] == "failed"
    assert "a / b" in text
    # A wrong contender is no peer to be measured against.
    assert "2.00 of the best peer (tff_fed_avg)" in text
    assert "first round 3.0 of the median" in text
    assert (tmp_path / "benchmark.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cnn", "mobilenet_v3_small"])
def test_all_contenders_compute_the_same(tmp_path, model):
    reference, *others = contest.CONTENDERS
    if not all(entry.python.exists() for entry in contest.CONTENDERS.values()):
        pytest.skip("needs the peers: ./run.sh benchmark --setup_peers")
    results = contest.run(
        Workload("fedavg", model, 2, 2 * BATCH_SIZE),
        [reference, contest.NUDGED, *others],
        nudged=contest.NUDGED,
        repeats=1,
        log_dir=tmp_path,
    )
    assert {r.contender: (r.status, r.note) for r in results if r.status != "ok"} == {}


def test_ratios_are_to_the_first_row_of_a_series():
    columns = ["series", "seconds", "first_seconds", "classifier_mib", "peak_mib"]
    rows = [
        ("n_d64", 1.0, 4.0, 1.0, 700.0),
        ("n_d64", 1.2, 4.0, 245.0, 1310.0),
        ("cohort", 0.5, 1.0, 1.0, 700.0),
    ]
    table = growth.with_ratios(pd.DataFrame(rows, columns=columns))
    assert table.of_first.tolist() == [1, 1.2, 1]
    assert table.first_round[1] == pytest.approx(4 / 1.2)
    assert table.memory_over_w[1] == pytest.approx(2.5)  # (1310 - 700) / (245 - 1).
    assert table.memory_over_w[[0, 2]].isna().all()


@pytest.mark.slow
def test_measures_cases_in_processes_of_their_own(tmp_path, monkeypatch):
    cases = [growth.Case(num_classes=n, cohort_size=2) for n in (200, 400)]
    monkeypatch.setattr(growth, "_SERIES", {"n_d64": cases})
    growth.main(growth.Config(output_dir=str(tmp_path), repeats=1))
    first, second = csv.DictReader((tmp_path / "growth.csv").open())
    assert float(first["seconds"]) > 0 and float(first["peak_mib"]) > 100
    # 90 positives and 80 negatives, a row of 64 floats each.
    assert float(second["bytes_down"]) == 170 * 64 * 4
    assert (tmp_path / "growth.md").exists()


def test_the_first_quarter_does_not_count_for_the_growth_of_memory():
    resident = [*(1000 * k for k in range(10)), *(9000 + 64 * k for k in range(30))]
    assert memory.bytes_a_client(resident, cohort_size=16) == pytest.approx(4)


def test_memory_is_measured(tmp_path, monkeypatch, in_process_context):
    class Here:
        """This process, where the program starts another one."""

        def submit(self, function, *arguments):
            result = function(*arguments)
            return types.SimpleNamespace(result=lambda: result)

    here = contextlib.nullcontext(Here())
    monkeypatch.setattr(memory.measured, "process", lambda: here)
    asked = memory.Config(output_dir=str(tmp_path), runtimes=("in_process",), rounds=8)
    memory.main(asked)
    tff.framework.set_default_context(in_process_context)
    (row,) = csv.DictReader((tmp_path / "memory.csv").open())
    assert (row["process"], row["rounds"]) == ("driver", "8")
    assert 100 < float(row["resident_mib"]) < 4000


def test_reading_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("TFF_FEDSS_CACHE", "")  # It sets another, and does not reset it.
    reading.main(reading.Config(output_dir=str(tmp_path), num_images=20))
    kept, each_time = csv.DictReader((tmp_path / "reading.csv").open())
    assert kept["images"] == "kept" and float(kept["3"]) > 0
    assert each_time["images"] == "resized each time" and float(each_time["3"]) > 0
