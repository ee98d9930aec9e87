"""Trains phi centrally on public images, for the --pretrained of federated runs.

    ./run.sh pretrain --flagfile=experiments/fedss/pretrain_photographs.flags \
        --data_dir=DIR --also=cifar10:DIR2 --results_dir=results/pretrain/photographs
    ./run.sh train --dataset=tiny_imagenet:num_public_classes=80 --data_dir=DIR \
        --image_size=32 --model=mobilenet_v3_small \
        --pretrained=results/pretrain/photographs/pretrain.h5 --results_dir=...

The paper starts phi from ImageNet-1k (FedSS, A.2). If those weights do not fit or are
not available, images that no client holds can replace them: the public classes of
--dataset and, by --also, whole data sets of labelled images. phi and a cosine
classifier of all these classes are trained with AdamW, whose learning rate falls by a
half cosine.

Some of the public classes are not trained (--probe_classes): a linear classifier of
phi's features on them measures the features on new classes, as the clients' will be. So
the epochs and the recipe can be chosen without the clients' images.

The results folder has metrics.csv (a row per epoch), pretrain.h5 (Keras's own format:
phi's weights by the names of the layers), curves.png and .pdf, flags.txt and run.json.
The same flags resume a run that was stopped or killed, which ends with the same
weights.
"""

import dataclasses
import functools
import pathlib

import numpy as np
import tensorflow as tf

from experiments.common import (
    config,
    dataset_words,
    launch,
    memory_needs,
    option_words,
    program,
    runtime_config,
)
from experiments.common.config import naming
from experiments.fedss import run_parts
from tff_fedss import algorithms, files, memory, models, tasks, training
from tff_fedss.datasets.central import augmentation, labelled_images, public_images
from tff_fedss.errors import InvalidInputError

NAME = "pretrain"
WEIGHTS = f"{NAME}.h5"
# The default share of the public classes for the probe.
_PROBE_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Config(runtime_config.DeviceConfig):
    """The flags of the program."""

    dataset: str = config.flag(
        "glyphs",
        "The data set of the later federated runs: its public classes are trained "
        "on, and no client's images. For tiny_imagenet, images and tfds its option "
        "num_public_classes says how many are public: give `train` the same --dataset "
        "and --task, and the same classes are drawn (of images for "
        "--partition=natural only with folders=client/class). glyphs and omniglot "
        "have public classes of their own.",
        group="The run",
        words=dataset_words.FEDERATED,
    )
    data_dir: str | None = config.flag(
        None, "Its folder or archive, see data/README.md. " + dataset_words.DATA_DIR
    )
    task: str | None = config.flag(
        None,
        "The task of the later runs, which decides what is public. Default: as for "
        "`train`.",
        choices=tasks.KINDS,
    )
    also: tuple[str, ...] = config.flag(
        (),
        "More labelled images, as NAME:DIR,NAME:DIR, of which the whole training "
        f"part is used. NAME is one of {', '.join(labelled_images.SOURCES)}, or "
        "images for CLASS/image; a NAME alone comes from TFDS.",
    )
    image_size: int | None = config.flag(
        None, "Height and width of the model's images, in pixels.", low=8
    )
    probe_classes: int | None = config.flag(
        None,
        "The number of public classes of --dataset that are not trained but used "
        "for the probe. Default: a tenth of them, at least 2; 0: no probe.",
        low=0,
    )
    results_dir: str = launch.results_dir()
    seed: int = launch.seed()
    model: str | None = config.flag(
        None,
        "phi. Default: that of federated runs on --dataset.",
        group="Model",
        choices=models.FEATURE_EXTRACTORS,
    )
    embedding_dim: int = config.flag(64, "d.", low=1)
    normalization: str = config.flag(
        "group",
        "`batch`: a MobileNetV3 with Keras' BatchNorms. Federated runs can start "
        "from it; their GroupNorms use its scales and offsets.",
        choices=models.NORMALIZATIONS,
    )
    pretrained: str | None = config.flag(
        None, "Start phi from this file, see `./run.sh train --help`."
    )
    epochs: int = config.flag(
        20, "Passes through all images.", group="Optimization", low=1
    )
    batch_size: int = config.flag(64, "The mini-batch.", low=1)
    learning_rate: float = config.flag(
        1e-3, "Initial rate of AdamW, which falls to 0 by a half cosine.", low=0.0
    )
    weight_decay: float = config.flag(0.02, "Decoupled weight decay of AdamW.", low=0.0)
    augmentation: str = config.flag(
        "flip_crop",
        "The augmentation of images: `flip_crop` mirrors half of them and shifts "
        "all by up to 4 pixels. Use `none` for writing, which must not be mirrored.",
        choices=augmentation.AUGMENTATIONS,
    )
    epochs_per_evaluation: int = config.flag(
        1, "Epochs between two probes.", group="Evaluation and checkpoints", low=1
    )
    epochs_per_checkpoint: int = launch.checkpoints(1)


_COLUMNS = ("steps", "loss", "accuracy", tasks.Pretraining.metric, "num_examples")


def main(config: Config) -> None:
    """Trains, writes the weights and prints the result."""
    config = _with_defaults(config)
    launch.run(
        config,
        _COLUMNS,
        _build_run,
        _finish,
        results=(tasks.Pretraining.metric, "accuracy"),
        unit="epoch",
        curves=("loss", "accuracy"),
        inputs=run_parts.pretrained_fingerprint,
    )
    path = pathlib.Path(config.results_dir) / WEIGHTS
    print(f"Start federated runs from it: --pretrained={path}")


def _finish(
    config: Config, run: training.StepRun, folder: training.ResultsFolder
) -> str:
    """Writes phi; returns the result in words."""
    task, model, weights = run.task, run.task.model_fn(), run.weights
    *phi, _ = weights.trainable
    models.assign(model.trainable_variables, phi)
    models.assign(model.non_trainable_variables, weights.non_trainable)
    with files.replacing(folder.path / WEIGHTS) as temporary:
        model.save_weights(temporary, save_format="h5")
    last = folder.rows[-1]
    text = f"{task.format_metric(last['accuracy'])} of the training images"
    if task.metric in last:
        text = f"{task.metric_title} {task.format_metric(last[task.metric])}, {text}"
    return f"{text} after {config.epochs} epochs"


def _with_defaults(config: Config) -> Config:
    """Sets unset flags, and checks that the flags suit each other."""
    spec = tasks.DATASETS[config.chosen("dataset").name]
    config = dataclasses.replace(config, task=dataset_words.chosen_task(config))
    settings = spec.settings[config.task]
    config = config.filled({"model": settings.model})
    config = config.filled({"image_size": settings.image_size_for(config.model)})
    if config.normalization != "group" and not config.model.startswith("mobilenet"):
        raise InvalidInputError(
            f"--normalization={config.normalization} needs a MobileNetV3, found "
            f"--model={config.model}."
        )
    launch.check_image_size(config, "model")
    return config


def _load_task(config: Config) -> tasks.Pretraining:
    first = _public_classes(config)
    config = config.filled({"image_size": first.images.shape[1]})
    sources = [first, *(_source(config, given) for given in config.also)]
    num_probe = config.probe_classes
    if num_probe is None:
        num_probe = max(2, round(_PROBE_SHARE * first.num_classes))
    with naming("--probe_classes, --also"):
        data = public_images.put_together(
            sources, num_probe_classes=num_probe, seed=config.seed
        )
    options = {"seed": config.seed}
    if config.normalization != "group":
        options["normalization"] = config.normalization
    model_fn = functools.partial(
        models.FEATURE_EXTRACTORS[config.model],
        data.image_shape,
        config.embedding_dim,
        **options,
    )
    memory.check(
        {},
        # AdamW has two moments besides weights and gradient.
        device_needs=memory_needs.network("phi", model_fn, config.batch_size, copies=4)
        | memory_needs.matrix("W", data.num_classes, config.embedding_dim, copies=4),
    )
    return tasks.Pretraining(
        data,
        model_fn,
        augmentation.AUGMENTATIONS[config.augmentation],
        batch_size=config.batch_size,
        seed=config.seed,
    )


def _public_classes(config: Config) -> public_images.Source:
    """Loads the public classes of --dataset."""
    chosen = config.chosen("dataset")
    spec = tasks.DATASETS[chosen.name]
    dataset = spec.open(
        config.task,
        image_size=config.image_size,
        **dataset_words.keywords(chosen, config.data_dir, "dataset"),
    )
    if dataset.public is None:
        how = "take another --dataset."
        if "num_public_classes" in spec.options:
            how = f"say how many by --dataset={chosen.name}:num_public_classes=NUMBER."
        raise InvalidInputError(
            f"--dataset={config.dataset}: {dataset.name} has no public classes: {how}"
        )
    memory.check(
        memory_needs.images(
            dataset.public.num_examples, dataset.image_shape[0], dataset.image_shape[2]
        )
    )
    batches = list(dataset.public_examples().batch(256).as_numpy_iterator())
    return public_images.Source(
        dataset.name,
        np.concatenate([batch["image"] for batch in batches]),
        np.concatenate([batch["label"] for batch in batches]).astype(np.int32),
        dataset.public.num_classes,
    )


def _source(config: Config, given: str) -> public_images.Source:
    """Loads one data set of --also."""
    name, _, data_dir = given.partition(":")
    known = (*labelled_images.SOURCES, "images")
    if name not in known or (name == "images" and not data_dir):
        raise InvalidInputError(
            f"--also={given}: expected NAME:DIR with a NAME of {', '.join(known)}; "
            "without DIR, all but images and tiny_imagenet come from TFDS."
        )
    with naming(f"--also={given}"):
        data = dataset_words.load_labelled(
            option_words.Chosen(name, {}), data_dir or None, config.image_size
        )
    return public_images.Source(
        data.name, data.train_images, data.train_labels, data.num_classes
    )


def _build_run(config: Config) -> training.StepRun:
    task = _load_task(config)
    model = task.model_fn()
    if loaded := run_parts.load_pretrained(config, model):
        print(loaded, flush=True)
    learning_rate = tf.keras.optimizers.schedules.CosineDecay(
        config.learning_rate, config.epochs * task.steps_per_epoch
    )
    algorithm = algorithms.Centralized(
        model,
        task.dataset.num_classes,
        tf.keras.optimizers.AdamW(learning_rate, weight_decay=config.weight_decay),
        image_dtype=tf.float32,
        seed=config.seed,
    )
    return training.StepRun(NAME, task, algorithm, task.steps_per_epoch)


if __name__ == "__main__":
    program.run(main, Config())
