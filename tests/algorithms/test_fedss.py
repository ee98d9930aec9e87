import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.toy import (
    BATCH_SIZE,
    EMBEDDING_DIM,
    ETA,
    IMAGE_SHAPE,
    MAX_POSITIVES,
    NUM_CLASSES,
    assert_close,
    build,
    dense_features,
    make_client,
    make_cohort,
    one_round,
    rounds_like_the_twin,
    same_bytes,
    to_tff,
    weights_of,
)
from tff_fedss import algorithms, class_sets, models, runtime
from tff_fedss.algorithms import client_update, fedss, optimizers
from tff_fedss.runtime import in_process

SGD = tff.learning.optimizers.build_sgdm(1.0)


def test_each_epoch_has_an_order_of_its_own():
    """The NumPy twin takes the orders from here: it would not notice equal ones."""
    orders = [client_update.example_order(50, [1, 2], e).numpy() for e in range(3)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(50))
    assert len({tuple(order) for order in orders}) == 3


def test_padding_is_never_the_nearest_class():
    """Its rows stay as they were, while those in S_k are trained."""
    everything = class_sets.AllClasses(3).build(
        tf.constant([1]), tf.zeros([2], "int32")
    )
    padded = everything._replace(is_member=tf.constant([True, True, False]))
    logits = tf.constant([[0.0, 1.0, 9.0]])
    assert client_update._is_correct(logits, tf.constant([1]), padded).numpy().all()


@pytest.mark.parametrize("method", fedss.METHODS)
def test_three_rounds_equal_the_numpy_twin(method):
    state, metrics = rounds_like_the_twin(build(method), method)
    assert metrics["num_clients"] == 3 and metrics["rejected_clients"] == 0
    assert state.round_num == 3
    assert 0 < metrics["accuracy"] < 1  # Or the comparison would say little.
    positives = (5 + 2 + 3) / 3
    assert metrics["positives_per_client"] == pytest.approx(positives)
    asked = {"full_softmax": NUM_CLASSES, "pos_only": positives}
    expected = asked.get(method, positives + 4)
    assert metrics["classes_per_client"] == pytest.approx(expected)


def test_without_correction_the_twin_agrees_too():
    process = build(logit_correction="none")
    rounds_like_the_twin(process, "fedss", num_rounds=1, correct=False)


def test_all_negatives_is_full_softmax():
    """Also for clients of unequal |P_k|, who draw min(m, n - |P_k|) each."""
    cohort = make_cohort(seed=5)
    assert {len(set(c["label"])) for c in cohort} == {2, 3, 5}
    sampled, full = build(m=NUM_CLASSES - 2), build("full_softmax")
    sampled_state, full_state = sampled.initialize(), full.initialize()
    same_bytes(weights_of(sampled_state), weights_of(full_state))
    for _ in range(3):
        sampled_state, sampled_metrics = sampled.next(sampled_state, to_tff(cohort))
        full_state, full_metrics = full.next(full_state, to_tff(cohort))
        assert_close(sampled_state, full_state, 1e-4, 1e-6)
        assert sampled_metrics["loss"] == pytest.approx(full_metrics["loss"], rel=1e-5)
        assert sampled_metrics["accuracy"] == full_metrics["accuracy"]


def test_xla_computes_the_same():
    """Short last batches, which XLA gets as whole ones, included."""
    plain, compiled = build(), build(use_xla=True)
    states = [plain.initialize(), compiled.initialize()]
    for r in range(2):
        cohort = to_tff(make_cohort(r))
        (states[0], ours), (states[1], theirs) = (
            process.next(state, cohort)
            for process, state in zip((plain, compiled), states, strict=True)
        )
        assert theirs.pop("loss") == pytest.approx(ours.pop("loss"), rel=1e-5)
        assert theirs == ours
    assert_close(*states, 1e-5, 1e-6)
    # Each of these five is right; places that repeat the last one do not count.
    client = make_client(np.random.default_rng(0), 5, [0])
    client["image"][:] = client["image"][0]
    features = dense_features()(client["image"][:1].astype(np.float32)).numpy()
    w = np.where(np.arange(NUM_CLASSES) == 0, 1, -1)[:, np.newaxis] * features
    state = plain.initialize()._replace(classifier=w.astype(np.float32))
    for process in (plain, compiled):
        assert one_round(process, [client], state)[1]["accuracy"] == 1


def with_positives(cohort):
    return [
        {**c, "positives": np.unique(theirs["label"])}
        for c, theirs in zip(to_tff(cohort), cohort, strict=True)
    ]


def test_deterministic_rounds_are_alike():
    """Their operations differ from those of other processes, but not by chance."""
    runtime.configure_gpus(deterministic=True)
    process = build.__wrapped__()  # A new one.
    same_bytes(one_round(process), one_round(process))


def test_more_padding_changes_nothing():
    """Padded keys are duplicates of a class in S_k, and take part in nothing."""
    states = []
    # Without a gradient, weight decay alone would move what is in no set.
    adamw = tff.learning.optimizers.build_adamw(0.01, weight_decay=0.5)
    for more in (0, 4):
        process = build(client_optimizer=adamw, max_positives=MAX_POSITIVES + more)
        state, metrics = one_round(process)
        assert metrics["classes_per_client"] == pytest.approx(22 / 3)
        states.append(state)
    assert_close(*states)


class Unused(tf.keras.layers.Layer):
    """Has a weight without effect."""

    def build(self, _):
        self.w = self.add_weight("w", (2,), initializer="ones")

    def call(self, features):
        return features


def test_a_weight_without_effect_stays(monkeypatch):
    """With FedProx, XLA, as a part of one vector, and with a batch size of NumPy's."""
    function, asked = tf.function, []
    monkeypatch.setattr(
        tf, "function", lambda *f, **how: asked.append(how) or function(*f, **how)
    )
    model = tf.keras.Sequential([dense_features(), Unused()])
    optimizer = optimizers._OverOneVector(SGD)
    training = algorithms.ClientTraining(
        optimizer, np.int64(2), proximal=0.5, use_xla=True
    )
    builder = class_sets.AllClasses(NUM_CLASSES)
    class_set = builder.build(tf.constant([1]), tf.zeros([2], tf.int32))
    phi = tuple(v.read_value() for v in model.trainable_variables)
    w = tf.ones([NUM_CLASSES, EMBEDDING_DIM])
    task = client_update.ClientTask(
        class_set,
        tf.ones([3, *IMAGE_SHAPE]),
        tf.constant([1, 2, 1]),
        tf.constant([1, 2]),
    )
    loss_fn = fedss._LOSSES["full_softmax"]
    result = client_update.train(model, phi, w, task, training, loss_fn)
    assert {"jit_compile": True} in asked
    *moved, unused = result.delta.phi
    assert all(np.any(delta) for delta in moved) and not np.any(unused)


class CosineHead(tf.keras.layers.Layer):
    """A dense cosine classifier inside of a Keras model, for the comparison below."""

    def build(self, _):
        self.w = self.add_weight("w", (NUM_CLASSES, EMBEDDING_DIM))

    def call(self, features):
        w = tf.math.l2_normalize(self.w, axis=1)
        return 20.0 * tf.math.l2_normalize(features, axis=1) @ tf.transpose(w)


def decaying(rate):
    """A learning rate that halves from round to round."""
    return lambda round_num: rate * 0.5 ** tf.cast(round_num, tf.float32)


_SERVER = tff.learning.optimizers.build_sgdm(1.0, 0.9)


def test_fedprox_is_the_numpy_twins():
    """Not TFF's: its build_weighted_fed_prox (0.87) pushes clients from theta_0."""
    process = build("fedss", proximal=3.0, num_epochs=2)
    rounds_like_the_twin(process, "fedss", num_epochs=2, proximal=3.0)


@pytest.mark.parametrize(
    "options, build_theirs",
    [
        pytest.param(
            {},
            lambda model_fn: tff.learning.algorithms.build_weighted_fed_avg(
                model_fn, tff.learning.optimizers.build_sgdm(ETA), _SERVER
            ),
            id="fed_avg",
        ),
        pytest.param(
            {"learning_rate_fn": decaying(4 * ETA)},
            lambda model_fn: (
                tff.learning.algorithms.build_weighted_fed_avg_with_optimizer_schedule(
                    model_fn,
                    decaying(4 * ETA),
                    tff.learning.optimizers.build_sgdm,
                    _SERVER,
                )
            ),
            id="schedule",
        ),
    ],
)
def test_full_softmax_is_tffs_own(options, build_theirs):
    def model_fn():
        features = dense_features()
        images = tf.keras.Input(IMAGE_SHAPE)
        keras_model = tf.keras.Model(images, CosineHead()(features(images)))
        return tff.learning.models.from_keras_model(
            keras_model,
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=(
                tf.TensorSpec([None, *IMAGE_SHAPE], tf.float32),
                tf.TensorSpec([None], tf.int32),
            ),
        )

    fedavg = build_theirs(model_fn)
    ours = build("full_softmax", **options)
    our_state = ours.initialize()
    their_state = fedavg.set_model_weights(
        fedavg.initialize(), ours.get_model_weights(our_state)
    )

    def to_fedavg(client):
        """The same examples in the order in which our client visits them."""
        order = client_update.example_order(len(client["label"]), client["seed"], 0)
        images = client["image"][order.numpy()].astype(np.float32)
        labels = client["label"][order.numpy()]
        return tf.data.Dataset.from_tensor_slices((images, labels)).batch(BATCH_SIZE)

    for r in range(3):
        cohort = make_cohort(r)
        our_state, _ = ours.next(our_state, to_tff(cohort))
        their_state, _ = fedavg.next(their_state, [to_fedavg(c) for c in cohort])
        theirs = fedavg.get_model_weights(their_state).trainable
        for a, b in zip(weights_of(our_state), theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_servers_rate_follows_the_round():
    """With momentum 0, a round of half the rate goes half the way."""
    plain = algorithms.build_sparse_sgdm(1.0)
    halved = build(server_optimizer=plain)
    scheduled = build(server_optimizer=plain, server_rate_fn=decaying(1.0))
    state = scheduled.initialize()
    for share in (1.0, 0.5):
        cohort = to_tff(make_cohort())
        before = weights_of(state)
        same_weights = halved.set_model_weights(
            halved.initialize(), scheduled.get_model_weights(state)
        )
        whole = halved.next(same_weights, cohort).state
        state = scheduled.next(state, cohort).state
        for was, a, b in zip(before, weights_of(state), weights_of(whole), strict=True):
            np.testing.assert_allclose(a - was, share * (b - was), rtol=1e-4, atol=1e-7)


def test_an_optimizer_without_a_rate_cannot_be_scheduled():
    class Rateless(tff.learning.optimizers.Optimizer):
        def initialize(self, specs):
            return ()

        def next(self, state, weights, gradients):
            return state, weights

    with pytest.raises(ValueError, match="Rateless has no learning rate in its state"):
        build(client_optimizer=Rateless(), learning_rate_fn=decaying(1.0))


@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_a_client_without_data_changes_nothing(weighting):
    process, cohort = build(client_weighting=weighting), make_cohort()
    no_data = {name: cohort[0][name][:0] for name in ("image", "label")}
    empty = {**cohort[0], **no_data}
    without, _ = one_round(process, cohort)
    with_empty, metrics = one_round(process, [*cohort, empty])
    same_bytes(weights_of(with_empty), weights_of(without))
    assert metrics["num_clients"] == 4 and metrics["rejected_clients"] == 0
    alone, _ = one_round(process, [empty])
    same_bytes(weights_of(alone), weights_of(process.initialize()))


def test_a_round_without_clients_fails():
    with pytest.raises(RuntimeError, match="needs clients: process.next got none"):
        one_round(build(), [])


def test_updates_that_are_not_finite_are_rejected_and_counted():
    process = build(
        client_optimizer=tff.learning.optimizers.build_sgdm(1e38),
        server_optimizer=SGD,
    )
    initial = process.initialize()
    state, metrics = one_round(process)
    assert metrics["rejected_clients"] == 3
    assert np.isnan([metrics["loss"], metrics["accuracy"]]).all()
    same_bytes(weights_of(state), weights_of(initial))


@pytest.mark.parametrize(
    "part, name, optimizer",
    [
        ("feature_extractor", "phi", SGD),
        ("classifier", "W", SGD),
        # Its steps are zero, so that W and phi stay finite.
        (
            "preconditioner",
            "state of the server optimizer",
            tff.learning.optimizers.build_adagrad(0.1),
        ),
    ],
)
def test_a_round_whose_state_is_not_finite_fails_and_says_where(part, name, optimizer):
    process = build(client_optimizer=optimizer, server_optimizer=optimizer)
    state = process.initialize()
    parts = state.optimizer if part in state.optimizer else state._asdict()
    parts[part] = tf.nest.map_structure(lambda t: np.full_like(t, np.inf), parts[part])
    if parts is not state.optimizer:
        state = type(state)(**parts)
    with pytest.raises(runtime.ServerError, match=f"{name} is not finite after the"):
        one_round(process, state=state)


def client_shapes(process):
    """The shapes of all tensors placed at clients inside of a round's computation."""
    proto = tff.framework.ConcreteComputation.get_proto(process.next)
    shapes = set()

    def parts(type_signature):
        yield type_signature
        for child in type_signature.children():
            yield from parts(child)

    def visit(node):
        for part in parts(node.type_signature):
            if isinstance(part, tff.FederatedType) and part.placement is tff.CLIENTS:
                shapes.update(
                    tuple(p.shape) for p in parts(part) if isinstance(p, tff.TensorType)
                )
        return node, False

    tff.framework.transform_postorder(
        tff.framework.ComputationBuildingBlock.from_proto(proto), visit
    )
    return shapes


def test_no_client_value_has_the_length_of_w():
    """W is never broadcast: no tensor at a client has a dimension n = 13."""
    for method in ("fedss", "neg_only", "pos_only"):
        shapes = client_shapes(build(method))
        assert any(MAX_POSITIVES in shape or 9 in shape for shape in shapes)
        assert not [shape for shape in shapes if NUM_CLASSES in shape]
    # The check sees a broadcast where there is one.
    assert (NUM_CLASSES, EMBEDDING_DIM) in client_shapes(build("full_softmax"))


def test_dropout_follows_from_the_clients_seed():
    """Two processes drop the same; another client drops something else."""
    client = make_client(np.random.default_rng(0), 4, [0])
    client["image"][:] = client["image"][0]  # Their order changes nothing.
    others = {**client, "seed": client["seed"] + np.int32(1)}

    def phi():
        features, dropout = dense_features(), models.CountedDropout(0.5, seed=3)
        return tf.keras.Model(features.input, dropout(features.output))

    processes = [build.__wrapped__("full_softmax", phi=phi) for _ in range(2)]
    first, second = (one_round(process, [client]) for process in processes)
    third = one_round(processes[0], [others])
    same_bytes(first, second)
    assert np.abs(first[0].classifier - third[0].classifier).max() > 1e-4


def test_clients_that_name_their_positives_may_be_read_ahead(monkeypatch):
    """Their data are read once then, and what they compute is the same."""
    cohort, computed = make_cohort(), []
    process, expected = build(with_positives=True), one_round(build(), make_cohort())
    found = process.next(process.initialize(), with_positives(cohort))
    same_bytes(found, expected)
    for_each_client = in_process._Invocation.for_each_client

    def watched(self, function, read=None):
        computed.append(read is not None)
        return for_each_client(self, function, read)

    monkeypatch.setattr(in_process._Invocation, "for_each_client", watched)
    context = runtime.InProcessContext(None, 2, reads_ahead=True)
    with tff.framework.get_context_stack().install(context):
        found = process.next(process.initialize(), with_positives(cohort))
    context.close()
    same_bytes(found, expected)
    # Class sets are drawn without the data.
    assert computed.count(True) == 1 and computed.index(False) < computed.index(True)


def client_data(label_type=np.int32):
    return tff.simulation.datasets.TestClientData(
        {
            f"client {k}": collections.OrderedDict(
                image=client["image"], label=client["label"].astype(label_type)
            )
            for k, client in enumerate(make_cohort())
        }
    )


def test_clients_make_their_data_from_their_ids():
    process, data = build(), client_data()
    composed = algorithms.compose_dataset_computation(data.dataset_computation, process)
    cohort = make_cohort()
    clients = [
        {"data": client_id, "seed": client["seed"]}
        for client_id, client in zip(data.client_ids, cohort, strict=True)
    ]
    ours, metrics = composed.next(composed.initialize(), clients)
    theirs, expected = process.next(process.initialize(), to_tff(cohort))
    same_bytes(weights_of(ours), weights_of(theirs))
    assert metrics == expected
    weights = composed.get_model_weights(ours)
    assert composed.set_model_weights(ours, weights).round_num == 1


def test_data_of_another_type_are_refused():
    data = client_data(np.int64)
    with pytest.raises(TypeError, match="must give .*label=int32.*found .*label=int64"):
        algorithms.compose_dataset_computation(data.dataset_computation, build())
