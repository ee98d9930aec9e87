"""Counts the kernels that a step of training launches on a GPU; needs none.

    ./run.sh python -m experiments.benchmarks.launches

The mini-batch loop of a FedSS client is made as for GPUs, optimized as for an H100, and
looked at by TensorFlow's registry of kernels (tff_fedss/runtime/gpu_kernels.py).
Operations that pass a tensor on, or compute sizes on the host, launch nothing. One that
launches several kernels, as convolutions in another layout and some sums do, counts as
one.

With --xla, XLA compiles the step for this machine's CPU, and what is counted are the
kernels of its optimized HLO: fusions, products, convolutions and the like. A GPU's
are others, but no more is known of them here.

Prints a table with a column for each model and writes launches.md. Minutes.
"""

import collections
import dataclasses
import re
from collections.abc import Callable, Mapping

import tensorflow as tf
import tensorflow_federated as tff

from experiments.common import config, output_files, program
from experiments.common.table import as_markdown
from tff_fedss import algorithms, class_sets, losses, models
from tff_fedss.algorithms import client_update
from tff_fedss.models import placement
from tff_fedss.runtime import gpu_kernels

_NUM_CLASSES, _NUM_NEGATIVES, _MAX_POSITIVES, _DIM = 2000, 80, 20, 64
_SIDES = {"small_cnn": 28}
_SIDE = 224


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    output_dir: str = config.flag("results/benchmarks", "Where launches.md goes.")
    models: tuple[str, ...] = config.flag(
        tuple(models.FEATURE_EXTRACTORS),
        "Which models to train.",
        choices=models.FEATURE_EXTRACTORS,
    )
    batch_size: int = config.flag(32, "The mini-batch.", low=1)
    layout_optimizer: bool = config.flag(
        False,
        "With TensorFlow's layout optimizer: transposes around convolutions.",
    )
    xla: bool = config.flag(False, "Count the kernels of the step compiled by XLA.")


def main(config: Config) -> None:
    """Counts, prints and writes."""
    output_dir = output_files.create_folder(config.output_dir)
    steps = {}
    for name in config.models:
        side = _SIDES.get(name, _SIDE)
        model_fn = models.FEATURE_EXTRACTORS[name]
        image_shape = (side, side, 1 if name == "small_cnn" else 3)
        if config.xla:
            step = xla_kernels(model_fn, image_shape, config.batch_size)
        else:
            step = client_step(
                model_fn,
                image_shape,
                batch_size=config.batch_size,
                layout_optimizer=config.layout_optimizer,
            ).by_kind()
        steps[f"{name}, {side}x{side}"] = step
        print(f"{name}: {sum(step.values()):,} launches", flush=True)
    text = as_text(steps)
    path = output_dir / ("launches_xla.md" if config.xla else "launches.md")
    output_files.write_text(path, text)
    print(f"\n{text}\nWritten to {path}")


def client_step(
    model_fn: Callable[..., tf.keras.Model],
    image_shape: tuple[int, int, int],
    *,
    batch_size: int = 32,
    layout_optimizer: bool = False,
) -> gpu_kernels.Step:
    """Returns what a GPU would do in the mini-batch loop of a client of FedSS.

    The loop is made without TFF's compiler, which takes minutes for a large network and
    leaves it as it is.

    Args:
        model_fn: (image shape, d) -> phi.
        image_shape: (height, width, channels).
        batch_size: The mini-batch.
        layout_optimizer: See `gpu_kernels.optimize`.
    """
    num_images = 3 * batch_size
    with placement.as_if_gpus(), tf.Graph().as_default() as graph:
        model = model_fn(image_shape, _DIM)
        phi = tuple(
            tf.compat.v1.placeholder(v.dtype, v.shape)
            for v in model.trainable_variables
        )
        sets = class_sets.SampledClasses(_NUM_CLASSES, _NUM_NEGATIVES, _MAX_POSITIVES)
        labels = tf.compat.v1.placeholder(tf.int32, [num_images])
        seed = tf.compat.v1.placeholder(tf.int32, [2])
        images = tf.compat.v1.placeholder(tf.uint8, [num_images, *image_shape])
        result = client_update.train(
            model,
            phi,
            tf.compat.v1.placeholder(tf.float32, [sets.size, _DIM]),
            client_update.ClientTask(sets.build(labels, seed), images, labels, seed),
            loss_fn=lambda o, t, s: losses.fedss_loss(
                o, t, s.is_member, s.log_correction
            ),
            logit_scale=20.0,
            optimizer=algorithms.over_one_vector(
                tff.learning.optimizers.build_sgdm(0.01)
            ),
            batch_size=batch_size,
            num_epochs=1,
        )
    fetches = [tensor.name for tensor in tf.nest.flatten(result)]
    optimized = gpu_kernels.optimize(
        graph.as_graph_def(), fetches, layout_optimizer=layout_optimizer
    )
    return gpu_kernels.inspect(optimized, unknown_size=batch_size)


# Instructions of HLO that compute nothing.
_FREE = frozenset("bitcast constant get-tuple-element iota parameter tuple".split())


def xla_kernels(
    model_fn: Callable[..., tf.keras.Model],
    image_shape: tuple[int, int, int],
    batch_size: int = 32,
) -> Mapping[str, int]:
    """Counts the kernels of a client's step that XLA has compiled for the CPU.

    Args:
        model_fn: (image shape, d) -> phi.
        image_shape: (height, width, channels).
        batch_size: The mini-batch.

    Returns:
        How many instructions the entry of the optimized HLO has, by their opcode,
        without those that compute nothing.
    """
    model = model_fn(image_shape, _DIM)
    sets = class_sets.SampledClasses(_NUM_CLASSES, _NUM_NEGATIVES, _MAX_POSITIVES)
    class_set = sets.build(tf.range(batch_size) % _MAX_POSITIVES, tf.constant([0, 1]))
    optimizer = tff.learning.optimizers.build_sgdm(0.01)
    step = client_update.build_step(
        model,
        class_set,
        loss_fn=lambda o, t, s: losses.fedss_loss(o, t, s.is_member, s.log_correction),
        logit_scale=20.0,
        optimizer=optimizer,
    )
    rows = tf.zeros([sets.size, _DIM])
    specs = tuple(tf.TensorSpec(v.shape) for v in model.trainable_variables)
    compiled = tf.function(step, jit_compile=True)
    hlo = compiled.experimental_get_compiler_ir(
        tf.zeros([batch_size, *image_shape], tf.uint8),
        tf.zeros([batch_size], tf.int32),
        tf.ones([batch_size], tf.bool),
        rows,
        optimizer.initialize((specs, tf.TensorSpec(rows.shape))),
    )(stage="optimized_hlo")
    opcodes = re.findall(
        r"= (?:\([^=]*?\)|\S+) ([a-z-]+)\(", hlo[hlo.index("\nENTRY ") :]
    )
    return collections.Counter(op for op in opcodes if op not in _FREE)


def as_text(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Writes counts by kind as a table in Markdown, a column for each model."""
    kinds = sorted(
        {kind for count in counts.values() for kind in count},
        key=lambda kind: -max(count.get(kind, 0) for count in counts.values()),
    )
    rows = [
        [kind, *(f"{count.get(kind, 0):,}" for count in counts.values())]
        for kind in kinds
    ]
    rows.append(["all", *(f"{sum(count.values()):,}" for count in counts.values())])
    return as_markdown(["launches of a step", *counts], rows)


if __name__ == "__main__":
    program.run(main, Config())
