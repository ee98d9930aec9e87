"""Counts the kernels that a step of training launches on a GPU; needs none.

    ./run.sh python -m experiments.benchmarks.launches

The mini-batch loop of a FedSS client is made as for GPUs, optimized as for an H100, and
looked at by TensorFlow's registry of kernels (tff_fedss/runtime/gpu_kernels.py).
Operations that pass a tensor on, or compute sizes on the host, launch nothing. One that
launches several kernels, as convolutions in another layout and some sums do, counts as
one.

Prints a table with a column for each model and writes launches.md. Minutes.
"""

import dataclasses
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


def main(config: Config) -> None:
    """Counts, prints and writes."""
    output_dir = output_files.create_folder(config.output_dir)
    steps = {}
    for name in config.models:
        side = _SIDES.get(name, _SIDE)
        step = client_step(
            models.FEATURE_EXTRACTORS[name],
            (side, side, 1 if name == "small_cnn" else 3),
            batch_size=config.batch_size,
            layout_optimizer=config.layout_optimizer,
        )
        steps[f"{name}, {side}x{side}"] = step
        print(f"{name}: {sum(step.launches.values()):,} launches", flush=True)
    text = as_text(steps)
    output_files.write_text(output_dir / "launches.md", text)
    print(f"\n{text}\nWritten to {output_dir}/launches.md")


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


def as_text(steps: Mapping[str, gpu_kernels.Step]) -> str:
    """Writes the counts as a table in Markdown, a column for each model."""
    counts = {name: step.by_kind() for name, step in steps.items()}
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
