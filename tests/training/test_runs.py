import functools
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from examples import tff_program
from tests.algorithms import toy
from tests.arrays import assert_same
from tests.experiments.central_runs import rows_of
from tests.refusals import refused
from tests.training.test_checkpoints import CountingRun
from tff_fedss import algorithms, class_set_defences, models, runtime, tasks, training
from tff_fedss.algorithms import aggregation
from tff_fedss.datasets import synthetic
from tff_fedss.training import Metrics, Run


class Algorithm:
    """Adds up numbers."""

    def __init__(self):
        self.state = 0

    @property
    def weights(self):
        return -self.state

    def set_state(self, state):
        self.state = state


class Numbers:
    """A task whose batches are 1, 2, 3, ..."""

    def batches(self, num_done):
        return iter(range(num_done + 1, 1000))


class AddingRun(Run):
    """Two numbers a round."""

    fails_in = None

    def __init__(self):
        super().__init__("adding", Numbers(), Algorithm())

    def _train_round(self, round_num):
        for number in self._next_batches(2 * (round_num - 1), 2):
            self._algorithm.state += number
        if round_num == self.fails_in:
            raise ValueError("lost")
        return Metrics(sum=self._algorithm.state)


def test_a_run_that_resumes_does_as_the_other_would_have():
    whole, resumed = AddingRun(), AddingRun()
    sums = [whole.run_round()["sum"] for _ in range(4)]
    assert sums == [3, 10, 21, 36]
    for _ in range(2):  # Also one that has done rounds before.
        resumed.resume(10, 2)
        assert [resumed.run_round()["sum"] for _ in range(2)] == sums[2:]
        assert resumed.round_num == 4
        assert resumed.state == whole.state and resumed.weights == whole.weights


def test_a_state_can_be_read_until_the_next_round_begins():
    run = AddingRun()
    run.run_round()
    read_state = run.state_reader()
    assert read_state() == read_state() == 3
    run.run_round()
    assert read_state() is None and run.state_reader()() == 10


def test_a_round_that_fails_does_not_count_and_leaves_nothing_to_read():
    run = AddingRun()
    run.run_round()
    read_state, run.fails_in = run.state_reader(), 2
    with pytest.raises(ValueError, match="lost"):
        run.run_round()
    assert run.round_num == 1 and read_state() is None
    run.resume(3, 1)
    run.fails_in = None
    assert run.run_round() == {"sum": 10}


def phi():
    """A linear one: a convolution would take longer to build than to test."""
    images = tf.keras.Input((28, 28, 1))
    x = tf.keras.layers.Flatten()(tf.keras.layers.Rescaling(1 / 255)(images))
    kernel = tf.keras.initializers.GlorotUniform(0)
    return tf.keras.Model(images, tf.keras.layers.Dense(16, None, True, kernel)(x))


@pytest.fixture(scope="module")
def task():
    dataset = synthetic.glyphs(
        40,
        mean_classes_per_client=6,
        mean_examples_per_class=3,
        num_public_classes=20,
        public_examples_per_class=6,
    )
    return tasks.Classification(dataset, phi)


@pytest.fixture(scope="module")
def process(task):
    return algorithms.build_fedss(
        task.feature_extractor_fn,
        task.dataset.num_classes,
        algorithms.ClassSets(task.dataset.max_positives, num_negatives=5),
        algorithms.ClientTraining(tff.learning.optimizers.build_sgdm(0.1)),
    )


def federated(task, process, **kwargs):
    return training.FederatedRun(
        "fedss", process, task, cohort_size=3, seed=5, **kwargs
    )


def centralized(task, **kwargs):
    return training.CentralizedRun(
        "centralized",
        task,
        tf.keras.optimizers.SGD(0.1),
        cohort_size=3,
        batch_size=4,
        **{"seed": 5} | kwargs,
    )


def cohort_sizes(task, round_num):
    return [
        len(task.dataset.train.client_arrays(client_id)[1])
        for client_id in training.cohort(5, round_num, task.dataset.train.client_ids, 3)
    ]


def test_a_federated_run_trains_the_cohorts_of_its_seed(task, process):
    run = federated(task, process)
    for round_num in (1, 2):
        metrics = run.run_round()
        assert metrics["num_examples"] == sum(cohort_sizes(task, round_num))
        assert metrics["num_clients"] == 3
        # Phi both ways, a row for each class down, and its number beside it up.
        phi_and_rows = (785 + metrics["classes_per_client"]) * 16
        assert metrics["bytes_down"] == pytest.approx(4 * phi_and_rows)
        expected = 4 * phi_and_rows + 4 * metrics["classes_per_client"]
        assert metrics["bytes_up"] == pytest.approx(expected)
        assert all(isinstance(value, int | float) for value in metrics.values())
    assert run.round_num == 2


def test_a_round_without_clients_has_no_mean_of_one(task, process, monkeypatch):
    """A Poisson cohort may be empty."""
    run = federated(task, process)
    names = ("loss", "accuracy", "num_examples", "num_clients")
    means = ("classes_per_client", "positives_per_client", "rows_per_client")
    of_round = dict.fromkeys((*names, *means), 0)
    process = types.SimpleNamespace(next=lambda state, clients: (state, of_round))
    monkeypatch.setattr(run, "process", process)
    monkeypatch.setattr(run, "clients", lambda round_num: [])
    assert run.run_round() == {"num_examples": 0, "num_clients": 0}


def test_a_centralized_run_has_as_many_updates_as_the_federated_one(task):
    run = centralized(task)
    counted = 0
    update = run._algorithm.update

    def counting(images, labels):
        nonlocal counted
        counted += 1
        return update(images, labels)

    run._algorithm.update = counting
    for round_num in (1, 2):
        counted = 0
        run.run_round()
        assert counted == sum(-(-n // 4) for n in cohort_sizes(task, round_num))
    assert run.round_num == 2


def test_a_centralized_run_may_have_an_update_for_each_round(task):
    run = centralized(task, updates="rounds")
    assert [run.run_round()["num_examples"] for _ in range(2)] == [4, 4]
    # The state says where in the data it is.
    again = centralized(task, updates="rounds")
    other = centralized(task, updates="rounds", seed=6)
    assert (other.weights.trainable[-1] != again.weights.trainable[-1]).any()
    for later in (again, other):
        later.set_state(run.state)
    row = run.run_round()
    assert again.run_round() == row
    assert other.run_round() != row  # Of other images.
    flat = centralized(task, updates="rounds", logit_scale=1e-6).run_round()
    assert flat["loss"] == pytest.approx(np.log(40), rel=1e-5)
    with pytest.raises(ValueError, match="updates='batches' must be one of"):
        centralized(task, updates="batches")


def test_the_rows_of_w_begin_as_long_as_asked(task, process):
    short = algorithms.build_fedss(
        task.feature_extractor_fn,
        task.dataset.num_classes,
        algorithms.ClassSets(task.dataset.max_positives, num_negatives=5),
        initial_norm=0.1,
    )
    w, usual = (built.initialize().classifier for built in (short, process))
    np.testing.assert_allclose(w * 3, usual, rtol=1e-6)
    run = centralized(task, initial_norm=0.1)
    ratio = run.weights.trainable[-1] / centralized(task).weights.trainable[-1]
    np.testing.assert_allclose(ratio, 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("kind", ["federated", "centralized"])
def test_runs_start_from_a_given_feature_extractor(task, process, kind):
    start = [w + 1.0 for w in phi().get_weights()]
    run = federated(task, process) if kind == "federated" else centralized(task)
    classifier = run.weights.trainable[-1]
    run.set_feature_extractor(start)
    np.testing.assert_array_equal(run.weights.trainable[-1], classifier)
    assert_same(run.weights.trainable[:-1], start)


def test_evaluation_counts_the_nearest_classes(task):
    model = task.feature_extractor_fn()
    w = models.initial_classifier(40, 16, [1, 0]).numpy()
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    examples = list(task.dataset.test.data.as_numpy_iterator())
    features = model(np.stack([e["image"] for e in examples])).numpy()
    correct = np.argmax(features @ unit.T, 1) == [e["label"] for e in examples]
    weights = tff.learning.models.ModelWeights([*model.get_weights(), w], [])
    assert task.evaluate(weights)["top1"] == pytest.approx(np.mean(correct))


def test_the_loop_interleaves_evaluates_and_releases():
    rows, speeds = [], []

    def release(metrics, speed):
        rows.append(metrics)
        speeds.append(speed)

    runs = [CountingRun("a"), CountingRun("b")]
    training.train(runs, 3, 2, release, measures_train=True)
    assert [row["method"] for row in rows] == [speed["method"] for speed in speeds]
    assert all("images_per_second" in speed for speed in speeds[2:])
    assert [(row["method"], row["round"]) for row in rows] == [
        (name, round_num) for round_num in range(4) for name in "ab"
    ]
    # Before the first round, every second round and after the last.
    top1 = [row.get("top1") for row in rows if row["method"] == "a"]
    assert top1 == [0.0, None, 0.2, 0.3]
    loss = [row.get("loss") for row in rows if row["method"] == "b"]
    assert loss == [None, 1.0, 2.0, 3.0]
    train_top1 = [row.get("train_top1") for row in rows if row["method"] == "a"]
    assert train_top1 == [None, None, None, 0.9]


def test_an_evaluation_that_fails_costs_its_own_round_only(task, process, tmp_path):
    run = federated(task, process)
    states = []

    def release(metrics, speed):
        states.append(run.state)
        if metrics["round"] == 2:
            raise runtime.WorkerError("No worker is left.")

    checkpoints = training.Checkpoints(tmp_path)
    with pytest.raises(runtime.WorkerError):
        training.train([run], 3, 1, release, {"fedss": checkpoints})
    state, round_num = training.Checkpoints(tmp_path).restore(run.state)
    assert round_num == 1
    tf.nest.map_structure(np.testing.assert_array_equal, state, states[1])


def test_the_warm_start_trains_phi_in_place(task):
    initial, first, again, seeded, longer = (
        task.feature_extractor_fn() for _ in range(5)
    )
    for model, epochs, seed in (
        (first, 1, 1),
        (again, 1, 1),
        (seeded, 1, 2),
        (longer, 2, 1),
    ):
        training.warm_start(model, task.dataset, epochs, seed)
    assert_same(first.get_weights(), again.get_weights())
    for other in (initial, seeded, longer):
        pairs = zip(first.get_weights(), other.get_weights(), strict=True)
        assert min(np.abs(a - b).max() for a, b in pairs) > 1e-4


def test_a_cached_warm_start_is_the_one_that_was_trained(tmp_path):
    def weights(seed, shape=(2, 3)):
        """Phi of a warm start in the cache; trained, it has the number of calls."""
        model = tf.keras.Sequential([tf.keras.layers.Dense(shape[1])])
        model.build((None, shape[0]))

        def train():
            trained.append(seed)
            model.set_weights([0 * w + len(trained) for w in model.get_weights()])

        training.cached_warm_start(tmp_path / "new", {"seed": seed}, model, train)
        return model.get_weights()

    trained = []
    first, second, again = weights(1), weights(2), weights(1)
    assert trained == [1, 2] and (second[0] == 2).all()
    assert_same(first, again)
    with refused("is of another model"):
        weights(1, (2, 4))
    for path in (tmp_path / "new").iterdir():
        path.write_bytes(path.read_bytes()[:-30])
    with refused("is damaged"):
        weights(1)


def defended_process():
    """Class sets that stay for life, requests of a union, and a threshold."""
    sets = class_set_defences.builder(
        "pool", toy.NUM_CLASSES, 4, toy.MAX_POSITIVES, size=6
    )
    return algorithms.build_fedss(
        toy.dense_features,
        toy.NUM_CLASSES,
        algorithms.ClassSets(builder=sets, requests="union", with_positives=True),
        server_update=algorithms.ServerUpdate(
            rows_aggregator=aggregation.SparseRowsFactory(threshold=2)
        ),
    )


def test_a_run_resumes_from_a_checkpoint_to_the_same_bytes(tmp_path):
    built = defended_process()

    def new():
        return training.FederatedRun("x", built, toy.task(), cohort_size=2, seed=3)

    whole, first = new(), new()
    expected = [whole.run_round() for _ in range(4)]
    found = [first.run_round() for _ in range(2)]
    checkpoints = training.Checkpoints(tmp_path)
    checkpoints.save(first.state, first.round_num)
    later = new()
    later.resume(*training.Checkpoints(tmp_path).restore(later.state))
    assert later.round_num == 2
    found += [later.run_round() for _ in range(2)]
    assert found == expected
    toy.same_bytes(whole.state, later.state)
    # Something was trained, and another seed would have come to something else.
    assert not np.array_equal(whole.state.classifier, first.state.classifier)


# --- TFF's program loop -----------------------------------------------------------


@pytest.fixture
def other_context():
    """The default context is TFF's again afterwards."""
    before = tff.framework.get_context_stack().current
    yield
    tff.framework.set_default_context(before)


def test_the_program_does_the_rounds_of_a_run(other_context, tmp_path, one_layer):
    for number in (2, 3):  # The second start resumes.
        tff_program.main(tmp_path, rounds=number)
    found = rows_of(tmp_path)
    assert len(found) == 3 and any((tmp_path / "models").iterdir())

    dataset = synthetic.glyphs(40, image_size=14)
    phi_fn = functools.partial(models.small_cnn, dataset.image_shape, 16)
    task = tasks.Classification(dataset, phi_fn)
    process = algorithms.build_fedss(
        phi_fn, 40, algorithms.ClassSets(dataset.max_positives, 5)
    )
    runtime.set_in_process_context()
    run = training.FederatedRun("fedss", process, task, cohort_size=4, seed=0)
    for named in found:
        row = {name.removeprefix("model_metrics/"): x for name, x in named.items()}
        measured = run.run_round()
        assert float(row["loss"]) == pytest.approx(measured["loss"], rel=1e-5)
        assert float(row["num_examples"]) == measured["num_examples"]
