import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import algorithms, models


def test_what_was_read_is_assigned_and_stays_as_it_was():
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3)]
    read = models.values(variables)
    variables[0].assign_add([1.0, 1.0])
    variables[1].assign(7)
    np.testing.assert_array_equal(read[0], np.float32([1, 2]))
    models.assign(variables, read)
    np.testing.assert_array_equal(variables[0], np.float32([1, 2]))
    assert int(variables[1]) == 3


def test_the_size_is_that_of_the_model():
    model = models.small_cnn((8, 8, 1), 4)
    size = models.model_size(lambda: models.small_cnn((8, 8, 1), 4))
    assert size.parameters == 4 * model.count_params()
    # Convolution and norm before each halving, then the embedding.
    outputs = 2 * (64 * 32 + 16 * 32 + 4 * 64 + 1 * 64) + 4
    assert size.activations == 4 * outputs


def test_measuring_takes_no_memory():
    size = models.model_size(lambda: models.small_cnn((100_000, 100_000, 1), 64))
    assert size.parameters == 4 * (65_184 + 6250**2 * 64 * 64 + 64)


# --- Models that are there before a process is built, and after it -----------------

IMAGES = np.zeros([2, 8, 8, 1], np.float32)
SETS = algorithms.ClassSets(5, 3)


class Scaled(tf.keras.layers.Layer):
    def build(self, _):
        self.scale = self.add_weight("scale", [], initializer="ones")

    def call(self, x):
        return self.scale * x


def layers():
    seeded = tf.keras.initializers.GlorotUniform(seed=0)
    return [
        Scaled(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(4, kernel_initializer=seeded),
    ]


def functional():
    outputs = images = tf.keras.Input([8, 8, 1])
    for layer in layers():
        outputs = layer(outputs)
    return tf.keras.Model(images, outputs)


def sequential():
    return tf.keras.Sequential([tf.keras.Input([8, 8, 1]), *layers()])


class Subclassed(tf.keras.Model):
    def __init__(self, inputs=None, outputs=None):
        if inputs is None:
            outputs = inputs = tf.keras.Input([8, 8, 1])
            for layer in layers():
                outputs = layer(outputs)
        super().__init__(inputs, outputs)


class Free(tf.keras.Model):
    """Not a graph of layers: it has no input shape, and cannot be phi."""

    def __init__(self):
        super().__init__()
        self.own = layers()

    def call(self, x):
        for layer in self.own:
            x = layer(x)
        return x


def use(model):
    before = model.get_weights()
    model.set_weights([2 * w for w in before])
    output = model(IMAGES)
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), output)
    model.set_weights(before)
    copy = tf.keras.models.clone_model(model) if model.built and model.inputs else model
    copy.set_weights(before)


@pytest.fixture(scope="module")
def old_models():
    made = [functional(), sequential(), Subclassed(), Free()]
    made[-1](IMAGES)
    return made


@pytest.mark.parametrize("make", [functional, sequential, Subclassed])
def test_models_work_in_any_order(make, old_models):
    process = algorithms.build_fedss(make, 12, SETS)
    for model in old_models:
        use(model)
    phi = make()
    use(phi)
    models.model_size(make)
    use(phi)
    state = process.initialize()
    phi.set_weights(process.get_model_weights(state).trainable[:-1])
    use(phi)
    new = process.set_model_weights(
        state,
        tff.learning.models.ModelWeights([*phi.get_weights(), state.classifier], []),
    )
    tf.nest.map_structure(
        np.testing.assert_array_equal, new.feature_extractor, state.feature_extractor
    )


def test_a_failure_gives_the_classes_back(old_models):
    def draws_anew():
        return tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=[8])])

    with pytest.raises(ValueError, match="gives other weights each time"):
        algorithms.build_fedss(draws_anew, 12, SETS)
    for model in old_models:
        use(model)


def test_the_graphs_that_a_process_is_made_of_are_freed():
    graphs = []

    def phi():
        graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
        return models.small_cnn((8, 8, 1), 4)

    process = algorithms.build_fedss(phi, 20, SETS)
    gc.collect()
    assert process and graphs
    assert not any(graph() for graph in graphs)
