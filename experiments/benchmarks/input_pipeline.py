"""Measures the input pipeline at 224x224 beside the training step that it must feed.

    ./run.sh python -m experiments.benchmarks.input_pipeline --output_dir=DIR

makes JPEGs of 500x375 pixels (the size of ImageNet's, about 80 kB each) in one TFRecord
file, and drains, in turn and several times over, what a client's round and an
evaluation read of them: references, records, decoded images, resized and cropped ones.
Beside that it measures MobileNetV3's training step on batches of 32 that lie in memory
already, on the same cores. The pipeline feeds the step if its rate is the larger one.

Prints a table and writes input_pipeline.csv: images/s, minimum, median and maximum over
the repeats, and the peak memory of a process that does only this, beyond one that does
nothing. About 3 minutes on 2 cores.
"""

import collections
import dataclasses
import io
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
from PIL import Image, ImageFilter

from experiments.benchmarks import peak_memory
from experiments.common import config, output_files, program
from tff_fedss import models
from tff_fedss.datasets.federated import record_index, records
from tff_fedss.datasets.federated.preprocessing import Preprocessing


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    output_dir: str = config.flag(
        "results/benchmarks", "Where to write input_pipeline.csv."
    )
    num_images: int = config.flag(400, "Images of one client, or evaluation.", low=1)
    repeats: int = config.flag(5, "How often to measure.", low=1)
    only: str | None = config.flag(
        None, "Measure the memory of one stage; how the program calls itself."
    )
    records: str | None = config.flag(None, "The file that --only reads.")


_FEATURE = "image/encoded_jpeg"
_BATCH_SIZE = 32


def main(config: Config) -> None:
    """Measures and prints."""
    if config.only:
        if config.only != "nothing":
            _drain(_stages(config, config.records)[config.only]())
        print(peak_memory.peak_bytes())
        return
    output_dir = output_files.create_folder(config.output_dir)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "images.tfrecord")
        size = _write_images(config, path)
        print(
            f"{config.num_images} JPEGs of 500x375 pixels, {size / 1000:.0f} kB each; "
            f"{len(os.sched_getaffinity(0))} cores.",
            flush=True,
        )
        stages = _stages(config, path)
        rates = collections.defaultdict(list)
        step = _training_step()
        for _ in range(config.repeats):
            for name, make in stages.items():
                start = time.perf_counter()
                _drain(make())
                rates[name].append(config.num_images / (time.perf_counter() - start))
            rates["training step of MobileNetV3 (paper)"].append(step())
        memory = {
            name: _peak_memory(config, name, path) for name in ("nothing", *stages)
        }
    rows = []
    for name, values in rates.items():
        extra = memory[name] - memory["nothing"] if name in memory else None
        rows.append(
            {
                "stage": name,
                "images_per_second_min": round(min(values), 1),
                "images_per_second_median": round(float(np.median(values)), 1),
                "images_per_second_max": round(max(values), 1),
                "peak_mib": None if extra is None else round(extra / 2**20),
            }
        )
    output_files.write_csv(output_dir / "input_pipeline.csv", rows)
    width = max(len(row["stage"]) for row in rows)
    print(f"{'':{width}}  images/s: min   median      max   MiB more")
    for row in rows:
        name, low, middle, high, peak = row.values()
        memory_text = "" if peak is None else f"{peak:8,}"
        print(f"{name:{width}}  {low:13,.0f}{middle:9,.0f}{high:9,.0f}   {memory_text}")
    print(f"Written to {output_dir}/input_pipeline.csv")


def _write_images(config: Config, path: str) -> float:
    """Writes JPEGs that compress like photographs; returns their mean size in bytes."""
    rng = np.random.default_rng(0)
    sizes = []
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(config.num_images):
            noise = Image.fromarray(rng.integers(0, 256, (375, 500, 3), np.uint8))
            coarse = noise.resize((25, 19)).resize((500, 375), Image.Resampling.BICUBIC)
            fine = noise.filter(ImageFilter.GaussianBlur(1.0))
            content = io.BytesIO()
            Image.blend(coarse, fine, 0.5).save(content, "JPEG", quality=90)
            sizes.append(len(content.getvalue()))
            example = tf.train.Example()
            example.features.feature[_FEATURE].bytes_list.value.append(
                content.getvalue()
            )
            example.features.feature["class"].int64_list.value.append(i % 20)
            writer.write(example.SerializeToString())
    return float(np.mean(sizes))


def _stages(config: Config, path: str):
    """Names what is drained: functions to datasets, each doing more than the last."""
    index = record_index.build_index(
        [path],
        record_index.example_parser(_FEATURE, "class", 20),
        what="benchmark",
        cache_dir=os.path.dirname(path),
    )
    preprocessing = Preprocessing(224, 256, read=records.read_image(_FEATURE))
    seed = np.array([1, 2], np.int32)

    def references():
        return records.references(index, np.arange(len(index.records)))

    def decoded():
        return references().map(
            lambda example: preprocessing.read(example["image"]),
            num_parallel_calls=tf.data.AUTOTUNE,
        )

    return {
        "references": references,
        "read and decoded": decoded,
        "a client's round (random crops)": lambda: preprocessing.training(
            references(), seed
        ),
        "evaluation (centre crops)": lambda: preprocessing.evaluation(references()),
        "a client's round, as one stack": lambda: preprocessing.training(
            references(), seed
        ).batch(config.num_images),
    }


def _drain(data: tf.data.Dataset) -> None:
    """Goes through a dataset without keeping anything."""
    for _ in data:
        pass


def _training_step():
    """Returns a function that does some steps and says how many images/s it did."""
    model = models.paper_feature_extractor((224, 224, 3), 64, seed=0)
    w = tf.Variable(models.initial_classifier(1000, 64, [0, 0]))
    optimizer = tf.keras.optimizers.SGD(0.01)
    rng = np.random.default_rng(0)
    images = tf.constant(rng.integers(0, 256, (_BATCH_SIZE, 224, 224, 3), np.uint8))
    labels = tf.constant(rng.integers(0, 1000, _BATCH_SIZE), tf.int32)
    variables = [*model.trainable_variables, w]
    optimizer.build(variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            features = model(tf.cast(images, tf.float32), training=True)
            logits = models.cosine_logits(features, w, 20.0)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            )
        gradient = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradient, variables, strict=True))

    step()  # Traces.

    def measure(num_steps: int = 3) -> float:
        start = time.perf_counter()
        for _ in range(num_steps):
            step()
        return num_steps * _BATCH_SIZE / (time.perf_counter() - start)

    return measure


def _peak_memory(config: Config, stage: str, path: str) -> int:
    """Runs one stage in a process of its own; returns its peak memory in bytes."""
    output = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "experiments.benchmarks.input_pipeline",
            f"--only={stage}",
            f"--records={path}",
            f"--num_images={config.num_images}",
        ],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    ).stdout
    return int(output.split()[-1])


if __name__ == "__main__":
    program.run(main, Config())
