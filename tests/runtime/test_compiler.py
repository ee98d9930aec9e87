"""What the runtimes have left out of TFF's compiler, and of TensorFlow's."""

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from tff_fedss.runtime import compiler


def _graph_with_a_constant_sum():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [3], name="x")
        total = tf.constant(0.0)
        for k in range(20):
            total = tf.add(total, tf.constant(float(k)))
        tf.multiply(x, total, name="y")
        return graph.as_graph_def()


def _run(graph_def, feed):
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session() as session:
            return session.run("y:0", {"x:0": feed})


def test_an_optimized_graph_gives_the_same_with_fewer_operations():
    graph_def = _graph_with_a_constant_sum()
    optimized = compiler.optimize(graph_def, ["x:0"], ["y:0"])
    assert not any(node.op == "AddV2" for node in optimized.node)
    x = np.array([1.0, -2.0, 0.5], np.float32)
    np.testing.assert_array_equal(_run(optimized, x), 190 * x)
    np.testing.assert_array_equal(_run(graph_def, x), 190 * x)


def test_what_runs_first_is_kept():
    with tf.Graph().as_default() as graph:
        variable = tf.compat.v1.get_variable("v", initializer=3.0, use_resource=True)
        tf.identity(variable, name="y")
        init_op = tf.compat.v1.global_variables_initializer().name
    optimized = compiler.optimize(graph.as_graph_def(), [], ["y:0"], init_op)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(optimized, name="")
        with tf.compat.v1.Session() as session:
            session.run(init_op)
            assert session.run("y:0") == 3


def test_a_graph_without_results_stays_as_it_is():
    graph_def = _graph_with_a_constant_sum()
    assert compiler.optimize(graph_def, ["x:0"], []) is graph_def


def _is_off():
    options = eager_context.context().function_call_options.config_proto_serialized
    config = tf.compat.v1.ConfigProto.FromString(options)
    return config.graph_options.rewrite_options.disable_meta_optimizer


def test_functions_on_cpus_are_not_optimized_again():
    with compiler.not_again("/device:CPU:0"):
        assert _is_off()
    assert not _is_off()
    with compiler.not_again("/device:GPU:1"):
        assert not _is_off()
