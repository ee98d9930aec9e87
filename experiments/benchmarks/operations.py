"""Time of a training step by kind of operation, beside the machine's peak.

    ./run.sh python -m experiments.benchmarks.operations

traces a step of FedAvg (workload.py; a batch of 32, SGD) on one thread, 30 times. The
shortest time of an operation counts: other programs can only make it longer. The speed
of convolutions and matrix products is in floating-point operations per second, its peak
that of a product of 512x512 matrices; the speed of other operations is in bytes of
inputs and outputs, its peak that of a copy of 4 MiB. Prints a table. One minute.
"""

import collections
import dataclasses
import math
import re
import timeit
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from experiments.benchmarks.contenders import tf_model
from experiments.benchmarks.workload import BATCH_SIZE, LOGIT_SCALE, Workload
from experiments.common import config, program
from tff_fedss import models

# Patterns of operations' types, which begin with "sgd/" in SGD; the first match counts.
_KINDS = {
    "SGD": "sgd/",
    "depthwise convolution": "Depthwise.*Native$",
    "depthwise, gradient of the input": "Depthwise.*Input",
    "depthwise, gradient of the kernel": "Depthwise.*Filter",
    "convolution": "Conv2D$",
    "convolution, gradient of the input": "Conv2D.*Input",
    "convolution, gradient of the kernel": "Conv2D.*Filter",
    "matrix product": "MatMul",
    "sum, mean": "Sum|Mean",
    "product, sum, difference, square": "Mul|Add|Sub|Square",
    "ReLU and ReLU6": "Relu",
    "rest": "",
}


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """The flags of the program."""

    model: str = config.flag(
        "mobilenet_v3_small", "The network.", choices=("mobilenet_v3_small", "cnn")
    )


def main(config: Config) -> None:
    """Measures and prints."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    matrix = tf.random.normal([512, 512])
    source, target = np.ones([2, 2**20], np.float32)
    peak = 2 * 512**3 / _seconds(lambda: tf.matmul(matrix, matrix))
    copy = 2 * source.nbytes / _seconds(lambda: np.copyto(target, source))
    rows = []
    for node, inputs, outputs, seconds in _trace(Workload("fedavg", config.model, 1)):
        op = ("sgd/" if node.name.startswith("sgd/") else "") + node.op
        kind = next(kind for kind, pattern in _KINDS.items() if re.search(pattern, op))
        flops = _flops(node.op, inputs, outputs)
        num_bytes = 4 * sum(map(math.prod, inputs + outputs))
        at_peak = flops / peak if flops else num_bytes / copy
        rows.append((kind, 1, 1000 * seconds, flops / 1e9, at_peak))
    columns = ["kind", "operations", "ms", "GFLOP", "of the peak"]
    table = pd.DataFrame(rows, columns=columns).groupby("kind").sum()
    table = table.sort_values("ms", ascending=False)
    table.loc["all"] = table.sum()
    table["of the step"] = table["ms"] / table["ms"]["all"]
    table["of the peak"] /= table["ms"] / 1000
    table.loc[["rest", "all"], "of the peak"] = math.nan  # Reshapes move no bytes.
    print(f"Peak: {peak / 1e9:.0f} GFLOP/s; copy: {copy / 1e9:.0f} GB/s.\n")
    print(table.round(2).to_markdown())


def _trace(workload: Workload) -> list[tuple[Any, list, list, float]]:
    """Returns (NodeDef, shapes of inputs, of outputs, seconds) of a step's nodes."""
    client, graph = workload.client(0), tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, [None, *workload.image_shape])
        labels = tf.compat.v1.placeholder(tf.int32, [None])
        model = tf_model.feature_extractor(workload)
        w = tf.Variable(workload.initial_weights()["classifier"])
        weights = [*model.trainable_variables, w]
        with tf.GradientTape() as tape:
            features = model(tf.cast(images, tf.float32), training=True)
            logits = models.cosine_logits(features, w, LOGIT_SCALE)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, weights)
        with tf.name_scope("sgd"):
            step = [
                v.assign(v.read_value() - 0.01 * g, read_value=False)
                for v, g in zip(weights, gradients, strict=True)
            ]
        initialize = tf.compat.v1.global_variables_initializer()
    threads = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    options = tf.compat.v1.RunOptions(
        trace_level=tf.compat.v1.RunOptions.FULL_TRACE, output_partition_graphs=True
    )
    batch = {images: client.images[:BATCH_SIZE], labels: client.labels[:BATCH_SIZE]}
    seconds, shapes = collections.defaultdict(lambda: math.inf), {}
    with tf.compat.v1.Session(graph=graph, config=threads) as session:
        session.run(initialize)
        for _ in range(30):
            traced = tf.compat.v1.RunMetadata()
            session.run(step, batch, options, traced)
            for device in traced.step_stats.dev_stats:
                for n in device.node_stats:
                    time = (n.op_end_rel_nanos - n.op_start_rel_nanos) / 1e9
                    seconds[n.node_name] = min(seconds[n.node_name], time)
                    for output in n.output:
                        dims = output.tensor_description.shape.dim
                        key = n.node_name, output.slot
                        shapes[key] = [dim.size for dim in dims]
    found = []
    for node in (node for part in traced.partition_graphs for node in part.node):
        names = [name.partition(":") for name in node.input if name[0] != "^"]
        inputs = [shapes.get((name, int(k or 0)), []) for name, _, k in names]
        outputs = [shape for (name, _), shape in shapes.items() if name == node.name]
        found.append((node, inputs, outputs, seconds.get(node.name, 0.0)))
    return found


def _flops(op: str, inputs: list[list[int]], outputs: list[list[int]]) -> int:
    """Returns the floating-point operations of a product, or 0."""
    if "MatMul" in op:
        a, b, y = inputs[0], inputs[1], outputs[0]
        examples = math.prod(y[:-2])
        pairs = math.prod(a) * math.prod(b) * math.prod(y) // examples
        return 2 * math.isqrt(pairs)
    if "Conv2" not in op:
        return 0
    if "Backprop" not in op:
        return 2 * math.prod(inputs[1]) * math.prod(outputs[0][:3])
    kernel = inputs[1] if "Input" in op else outputs[0]
    return 2 * math.prod(kernel) * math.prod(inputs[2][:3])


def _seconds(function: Any) -> float:
    """Returns the shortest time of a call."""
    return min(timeit.repeat(function, number=1, repeat=50))


if __name__ == "__main__":
    program.run(main, Config())
