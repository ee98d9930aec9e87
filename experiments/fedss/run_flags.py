"""The flags of one federated run, and the parts that they stand for."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm
from absl import flags

from experiments.common import memory_needs, output_files, program, runtime_flags
from experiments.fedss import outcomes as outcomes_lib
from tff_fedss import algorithms, memory, models, tasks, training
from tff_fedss.class_sets import LOGIT_CORRECTIONS
from tff_fedss.datasets.federated_dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError

# In the order of the paper's tables.
METHODS = (
    "fedss",
    "neg_only",
    "pos_only",
    "fedaws",
    "full_softmax",
    "centralized",
)


def _by_dataset(name: str) -> str:
    """Says in --help what a flag's default is for each data set."""
    values = {
        key: getattr(next(iter(family.settings.values())), name)
        for key, family in tasks.FAMILIES.items()
    }
    texts = [
        f"{key} {_last(value):g}" if not isinstance(value, str) else f"{key} {value}"
        for key, value in values.items()
    ]
    return f" Default: {', '.join(texts)}."


def _last(value):
    return value[-1] if isinstance(value, tuple) else value


DATASET = flags.DEFINE_enum(
    "dataset",
    "glyphs",
    list(tasks.FAMILIES),
    "The data, and with them the defaults of the flags below: `glyphs` are drawn by an "
    "embedded generator, nothing is downloaded; data/README.md says how to get the "
    "others.",
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "Where the data set is: a folder or an archive, see data/README.md. Without it, "
    "TFDS downloads Omniglot and SOP.",
)
_TASK = flags.DEFINE_enum(
    "task",
    None,
    list(tasks.KINDS),
    "What is asked of the held-out images. Default: `retrieval` (MAP@10, of classes "
    "that no client has) for sop, `classification` (top-1) for the others; omniglot "
    "knows both.",
)
_PARTITION = flags.DEFINE_string(
    "partition",
    None,
    "How images are split over clients. omniglot: `mixed` (20 classes with about 5 "
    "drawings of each; the default) or `drawer` (natural: one person's hand in one "
    "alphabet). tiny_imagenet: `mixed` or `dirichlet`. The others know one way.",
)
_DIRICHLET_ALPHA = flags.DEFINE_float(
    "dirichlet_alpha",
    None,
    "The concentration of --partition=dirichlet; less is more uneven. Default: 10.",
    lower_bound=1e-6,
)
_NUM_CLIENTS = flags.DEFINE_integer(
    "num_clients",
    None,
    "How many clients the partition makes. Default for imagenet21k: 25,691, the "
    "paper's, scaled to the number of images.",
    lower_bound=1,
)
_CLIENTS_CSV = flags.DEFINE_string(
    "clients_csv",
    None,
    "For sop: which client has which image (user_id,image_id,class), as "
    "data/partition_sop.py writes it. Default: the same partition, made anew.",
)
_IMAGE_SIZE = flags.DEFINE_integer(
    "image_size",
    None,
    "Height and width of what the model sees, in pixels." + _by_dataset("image_size"),
    lower_bound=8,
)
_RESIZE_SIZE = flags.DEFINE_integer(
    "resize_size",
    None,
    "Photographs are resized to this height and width, from which the image is cut. "
    "Default: 256/224 of --image_size.",
    lower_bound=8,
)
_NUM_CLASSES = flags.DEFINE_integer(
    "num_classes", None, "n, for glyphs: up to a million. Default: 500.", lower_bound=2
)
_NUM_PUBLIC_CLASSES = flags.DEFINE_integer(
    "num_public_classes",
    None,
    "For tiny_imagenet: so many classes, drawn at random, are kept from the clients, "
    "for --warm_start_epochs. Default: 0.",
    lower_bound=0,
)
NUM_NEGATIVES = flags.DEFINE_integer(
    "num_negatives",
    None,
    "m, the negative classes that a client draws per round. Only fedss and neg_only "
    "draw any." + _by_dataset("num_negatives"),
    lower_bound=1,
)
_LOGIT_CORRECTION = flags.DEFINE_enum(
    "logit_correction",
    "inclusion",
    list(LOGIT_CORRECTIONS),
    "How the logits of sampled negatives are corrected: `inclusion` by the inverse of "
    "their inclusion probability, `none` not at all.",
)
_SPREADOUT_WEIGHT = flags.DEFINE_float(
    "spreadout_weight", 1.0, "lambda, of fedaws' regularizer.", lower_bound=0.0
)
_SPREADOUT_MARGIN = flags.DEFINE_float(
    "spreadout_margin",
    1.0,
    "nu, the distance on the unit sphere below which fedaws pushes classes apart.",
    lower_bound=1e-6,
    upper_bound=2.0,
)
_SPREADOUT_NEIGHBORS = flags.DEFINE_integer(
    "spreadout_neighbors",
    None,
    "k: only the k nearest classes of each class push it (fedaws, for many classes). "
    "By default all of them do.",
    lower_bound=1,
)
ROUNDS = flags.DEFINE_integer(
    "rounds", None, "How many rounds." + _by_dataset("rounds"), lower_bound=1
)
_CLIENTS_PER_ROUND = flags.DEFINE_integer(
    "clients_per_round",
    None,
    "K, the clients of a round." + _by_dataset("clients_per_round"),
    lower_bound=1,
)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 32, "The mini-batch on a client.", lower_bound=1
)
_CLIENT_LEARNING_RATE = flags.DEFINE_float(
    "client_learning_rate",
    None,
    "eta, of SGD on the clients (and of centralized SGD)."
    + _by_dataset("client_learning_rate"),
    lower_bound=0.0,
)
_SERVER_LEARNING_RATE = flags.DEFINE_float(
    "server_learning_rate", 1.0, "alpha, of the server.", lower_bound=0.0
)
_SERVER_MOMENTUM = flags.DEFINE_float(
    "server_momentum", 0.9, "Of the server.", lower_bound=0.0, upper_bound=1.0
)
_MODEL = flags.DEFINE_enum(
    "model",
    None,
    list(models.FEATURE_EXTRACTORS),
    "phi, the feature extractor. MobileNetV3 needs --image_size of at least 32; "
    "`paper` meets the paper's shares of parameters, ImageNet weights fit `large`."
    + _by_dataset("model"),
)
_PRETRAINED = flags.DEFINE_string(
    "pretrained",
    None,
    "Start phi from this file: Keras .h5 or SavedModel, by the names of the layers "
    "(ImageNet weights of MobileNetV3, for instance, those with their top), or the "
    "METHOD.npz or moco.npz of another run.",
)
_ALLOW_PARTIAL_PRETRAINED = flags.DEFINE_bool(
    "allow_partial_pretrained",
    None,
    "Start from --pretrained even if it has less than nine tenths of phi's parameters: "
    "the others keep their initial values. By default that is refused.",
)
_EMBEDDING_DIM = flags.DEFINE_integer(
    "embedding_dim", 64, "d, the length of an image's representation.", lower_bound=1
)
_WARM_START_EPOCHS = flags.DEFINE_integer(
    "warm_start_epochs",
    None,
    "Before the rounds, train phi centrally for so many epochs on public classes, "
    "which no client holds (the paper starts from ImageNet-1k). 0: from scratch."
    + _by_dataset("warm_start_epochs"),
    lower_bound=0,
)
ROUNDS_PER_EVALUATION = flags.DEFINE_integer(
    "rounds_per_evaluation",
    None,
    "How often to measure on the held-out images."
    + _by_dataset("rounds_per_evaluation"),
    lower_bound=1,
)
_TRAIN_TOP1 = flags.DEFINE_bool(
    "train_top1",
    False,
    "Measure after the last round how well the training images are classified, too "
    "(Table 4).",
)
_SEED = flags.DEFINE_integer(
    "seed",
    0,
    "Decides every random draw: same seed, same results.",
    lower_bound=0,
    upper_bound=2**31 - 1,
)
RESULTS_DIR = flags.DEFINE_string(
    "results_dir",
    None,
    "The folder for what the run leaves behind. A run that was stopped or killed goes "
    "on when it is given the same folder and flags again.",
)
_ROUNDS_PER_CHECKPOINT = flags.DEFINE_integer(
    "rounds_per_checkpoint",
    25,
    "How often to save what a killed run goes on from.",
    lower_bound=1,
)
_WARM_START_CACHE = flags.DEFINE_string(
    "warm_start_cache",
    None,
    "A folder that keeps warm starts, for other runs that begin with the same.",
)


# By topic, for --help. A run needs those of the first line; the others have defaults.
GROUPS = {
    "The run": ("method", "methods", "dataset", "data_dir", "results_dir", "seed"),
    "Data": (
        "task",
        "partition",
        "num_clients",
        "dirichlet_alpha",
        "clients_csv",
        "num_classes",
        "num_public_classes",
        "image_size",
        "resize_size",
    ),
    "Method": (
        "num_negatives",
        "logit_correction",
        "spreadout_weight",
        "spreadout_margin",
        "spreadout_neighbors",
    ),
    "Optimization": (
        "rounds",
        "clients_per_round",
        "batch_size",
        "client_learning_rate",
        "server_learning_rate",
        "server_momentum",
    ),
    "Model": (
        "model",
        "embedding_dim",
        "pretrained",
        "allow_partial_pretrained",
        "warm_start_epochs",
        "warm_start_cache",
    ),
    "Evaluation and checkpoints": (
        "rounds_per_evaluation",
        "train_top1",
        "rounds_per_checkpoint",
    ),
    "Where it runs": runtime_flags.NAMES,
}

_DECIDE_RESULTS = (
    DATASET,
    _DATA_DIR,
    _TASK,
    _PARTITION,
    _DIRICHLET_ALPHA,
    _NUM_CLIENTS,
    _CLIENTS_CSV,
    _IMAGE_SIZE,
    _RESIZE_SIZE,
    _NUM_CLASSES,
    _NUM_PUBLIC_CLASSES,
    NUM_NEGATIVES,
    _LOGIT_CORRECTION,
    _SPREADOUT_WEIGHT,
    _SPREADOUT_MARGIN,
    _SPREADOUT_NEIGHBORS,
    ROUNDS,
    _CLIENTS_PER_ROUND,
    _BATCH_SIZE,
    _CLIENT_LEARNING_RATE,
    _SERVER_LEARNING_RATE,
    _SERVER_MOMENTUM,
    _MODEL,
    _PRETRAINED,
    _ALLOW_PARTIAL_PRETRAINED,
    _EMBEDDING_DIM,
    _WARM_START_EPOCHS,
    ROUNDS_PER_EVALUATION,
    _TRAIN_TOP1,
    _SEED,
    # The order of sums differs.
    runtime_flags.RUNTIME,
)

_DECIDE_WARM_START = (
    DATASET,
    _DATA_DIR,
    _TASK,
    _IMAGE_SIZE,
    _NUM_CLASSES,
    _NUM_PUBLIC_CLASSES,
    _MODEL,
    _PRETRAINED,
    _EMBEDDING_DIM,
    _WARM_START_EPOCHS,
    _SEED,
)

# These go with some data sets only (`Family.options`).
_ONLY_FOR_SOME = (
    _DATA_DIR,
    _DIRICHLET_ALPHA,
    _NUM_CLIENTS,
    _CLIENTS_CSV,
    _RESIZE_SIZE,
    _NUM_CLASSES,
    _NUM_PUBLIC_CLASSES,
)

flags.adopt_module_key_flags(runtime_flags)

# Attributes of `tasks.Settings`.
_BY_DATASET = (
    _IMAGE_SIZE,
    NUM_NEGATIVES,
    ROUNDS,
    _CLIENTS_PER_ROUND,
    _CLIENT_LEARNING_RATE,
    _MODEL,
    _WARM_START_EPOCHS,
    ROUNDS_PER_EVALUATION,
)


def take_defaults() -> tasks.Family:
    """Gives the flags that were left open the values of the data set.

    Returns:
        What is known of the data set.

    Raises:
        InvalidInputError: If a flag does not go with the data set.
    """
    family = tasks.FAMILIES[DATASET.value]
    for flag, offered in (
        (_TASK, tuple(family.settings)),
        (_PARTITION, family.partitions),
    ):
        if flag.value is None:
            flags.set_default(flag, offered[0])
        elif flag.value not in offered:
            raise InvalidInputError(
                f"--{flag.name}={flag.value} does not go with "
                f"--dataset={DATASET.value}, which knows {' and '.join(offered)}."
            )
    for flag in _ONLY_FOR_SOME:
        if flag.value is not None and flag.name not in family.options:
            those = [k for k, f in tasks.FAMILIES.items() if flag.name in f.options]
            raise InvalidInputError(
                f"--{flag.name} goes with --dataset={' or '.join(those)} only, found "
                f"--dataset={DATASET.value}."
            )
    settings = family.settings[_TASK.value]
    for flag in _BY_DATASET:
        if flag.value is None:
            flags.set_default(flag, _last(getattr(settings, flag.name)))
    return family


def open_results_folder(*own_flags: flags.FlagHolder) -> training.ResultsFolder:
    """Checks --results_dir against the flags of a program; writes nothing yet.

    Args:
        *own_flags: The flags of the program itself that decide its results.

    Raises:
        InvalidInputError: If the folder belongs to other flags, or to something else;
            or if a flag does not go with the data set.
    """
    if not RESULTS_DIR.value:
        raise InvalidInputError("--results_dir=DIR is needed, for what the run leaves.")
    take_defaults()
    runtime_flags.take_defaults()
    return training.ResultsFolder(
        RESULTS_DIR.value, program.as_texts((*own_flags, *_DECIDE_RESULTS))
    )


def load_dataset() -> FederatedDataset:
    """Loads the data set that the flags ask for.

    Raises:
        InvalidInputError: If the data are not there, or damaged, or do not go with the
            other flags.
    """
    family = take_defaults()
    options = tasks.DataOptions(
        data_dir=_DATA_DIR.value,
        kind=_TASK.value,
        partition=_PARTITION.value,
        image_size=_IMAGE_SIZE.value,
        resize_size=_RESIZE_SIZE.value,
        num_classes=_NUM_CLASSES.value,
        num_clients=_NUM_CLIENTS.value,
        clients_csv=_CLIENTS_CSV.value,
    )
    for flag in (_DIRICHLET_ALPHA, _NUM_PUBLIC_CLASSES):
        if flag.value is not None:
            options = dataclasses.replace(options, **{flag.name: flag.value})
    return family.load(options)


def load_task(methods: Sequence[str]) -> tasks.Task:
    """Loads the data set and checks that the methods can be run on it.

    Args:
        methods: Of `METHODS`.

    Raises:
        InvalidInputError: If the data are not there, or damaged, or do not go with the
            other flags.
    """
    take_defaults()
    memory.check(
        memory_needs.images(1, _IMAGE_SIZE.value),
        device_needs=memory_needs.classifiers(
            methods, _NUM_CLASSES.value or 2, _EMBEDDING_DIM.value
        ),
    )
    dataset = load_dataset()
    if _CLIENTS_PER_ROUND.value > dataset.num_clients:
        raise InvalidInputError(
            f"--clients_per_round={_CLIENTS_PER_ROUND.value} is more than the "
            f"{dataset.num_clients} clients of {dataset.name}."
        )
    most = dataset.num_classes - dataset.max_positives
    if any(map(_draws_negatives, methods)) and NUM_NEGATIVES.value > most:
        raise InvalidInputError(
            f"--num_negatives={NUM_NEGATIVES.value} is more than n - |P_k| = "
            f"{dataset.num_classes} - {dataset.max_positives} = {most}, for the client "
            f"of {dataset.name} with the most classes."
        )
    if _WARM_START_EPOCHS.value and dataset.public is None:
        raise InvalidInputError(
            f"--warm_start_epochs={_WARM_START_EPOCHS.value} needs public classes, and "
            f"{dataset.name} has none: use --warm_start_epochs=0"
            + (
                ", or give it some by --num_public_classes."
                if _NUM_PUBLIC_CLASSES.name in tasks.FAMILIES[DATASET.value].options
                else "."
            )
        )
    if _MODEL.value.startswith("mobilenet") and _IMAGE_SIZE.value < 32:
        raise InvalidInputError(
            f"--model={_MODEL.value} needs --image_size of at least 32, "
            f"found {_IMAGE_SIZE.value}."
        )
    neighbors = _SPREADOUT_NEIGHBORS.value
    if "fedaws" in methods and neighbors and neighbors >= dataset.num_classes:
        raise InvalidInputError(
            f"--spreadout_neighbors={neighbors} is more than the n - 1 = "
            f"{dataset.num_classes - 1} other classes of {dataset.name}."
        )
    model_fn = functools.partial(
        models.FEATURE_EXTRACTORS[_MODEL.value],
        dataset.image_shape,
        _EMBEDDING_DIM.value,
        seed=_SEED.value,
    )
    memory.check(
        {},
        device_needs=memory_needs.classifiers(
            methods, dataset.num_classes, _EMBEDDING_DIM.value
        )
        | memory_needs.round_of_clients(
            methods,
            dataset,
            model_fn,
            embedding_dim=_EMBEDDING_DIM.value,
            num_negatives=NUM_NEGATIVES.value,
            clients_per_round=_CLIENTS_PER_ROUND.value,
            batch_size=_BATCH_SIZE.value,
        ),
    )
    return tasks.KINDS[_TASK.value](dataset, model_fn)


def build_run(method: str, task: tasks.Task) -> training.Run:
    """Builds the run of one method.

    Args:
        method: One of `METHODS`.
        task: The task.
    """
    if method == "centralized":
        return training.CentralizedRun(
            method,
            task,
            tf.keras.optimizers.SGD(_CLIENT_LEARNING_RATE.value),
            cohort_size=_CLIENTS_PER_ROUND.value,
            batch_size=_BATCH_SIZE.value,
            seed=_SEED.value,
        )
    build = functools.partial(
        algorithms.build_fedaws if method == "fedaws" else algorithms.build_fedss,
        task.feature_extractor_fn,
        task.dataset.num_classes,
        task.dataset.max_positives,
        client_optimizer=tff.learning.optimizers.build_sgdm(
            _CLIENT_LEARNING_RATE.value
        ),
        server_optimizer=algorithms.build_sparse_sgdm(
            _SERVER_LEARNING_RATE.value, _SERVER_MOMENTUM.value
        ),
        batch_size=_BATCH_SIZE.value,
        seed=_SEED.value,
    )
    if method == "fedaws":
        process = build(
            spreadout_weight=_SPREADOUT_WEIGHT.value,
            spreadout_margin=_SPREADOUT_MARGIN.value,
            spreadout_neighbors=_SPREADOUT_NEIGHBORS.value,
        )
    else:
        process = build(
            method=method,
            num_negatives=NUM_NEGATIVES.value if _draws_negatives(method) else 0,
            logit_correction=_LOGIT_CORRECTION.value,
        )
    return training.FederatedRun(
        method,
        process,
        task,
        cohort_size=_CLIENTS_PER_ROUND.value,
        seed=_SEED.value,
        asks_by_id=method != "full_softmax",
    )


def train_methods(methods: Sequence[str], folder: training.ResultsFolder) -> str:
    """Runs methods side by side, from the data to the files in the folder.

    Goes on from the folder's checkpoints, if there are any. If the folder is of a
    finished run, nothing is run again.

    Args:
        methods: Of `METHODS`.
        folder: From `open_results_folder`.

    Returns:
        The table of what came of each method, for the terminal.

    Raises:
        InvalidInputError: Before anything is written, if the flags or data are bad.
    """
    if (told := folder.told("table")) is not None:
        return told
    check_placement = runtime_flags.install()
    task = load_task(methods)
    model, loaded = _initial_feature_extractor(task)
    num_w = task.dataset.num_classes * _EMBEDDING_DIM.value
    share = models.last_layer_share(
        model.count_params(), task.dataset.num_classes, _EMBEDDING_DIM.value
    )
    facts = [
        task.dataset.summary(),
        f"phi: {_MODEL.value}, {model.count_params():,} parameters; W: {num_w:,} "
        f"({100 * share:.1f} % of all)",
    ]
    if loaded:
        facts.append(str(loaded))
    elif tasks.FAMILIES[DATASET.value].settings[_TASK.value].starts_pretrained:
        facts.append(
            "Note: the paper starts phi from ImageNet-1k; without --pretrained this "
            "run starts from scratch."
        )
    print("\n".join(facts), flush=True)
    inputs = {"data": task.fingerprint(), **_pretrained_fingerprint()}
    folder.open(inputs)
    with contextlib.closing(folder):
        return _train_in(folder, task, methods, inputs, check_placement)


def _train_in(
    folder: training.ResultsFolder,
    task: tasks.Task,
    methods: Sequence[str],
    inputs: Mapping[str, Any],
    check_placement: Callable[[], None],
) -> str:
    """Does what `train_methods` does once the folder is open."""
    runs = [build_run(method, task) for method in methods]
    checkpoints = folder.resume(runs)
    if not all(run.round_num for run in runs):
        phi = _starting_feature_extractor(task, inputs)
        for run in runs:
            if not run.round_num:
                run.set_feature_extractor(phi)

    collapsed = {m["method"] for m in folder.rows if _has_collapsed(task, m)}

    def release(metrics: training.Metrics, speed: training.Metrics) -> None:
        method = metrics["method"]
        if metrics["round"] and method != "centralized":
            check_placement()
        folder.release(metrics, speed)
        if _has_collapsed(task, metrics):
            if method not in collapsed:
                tqdm.tqdm.write(_explain_collapse(method, metrics), file=sys.stderr)
            collapsed.add(method)
        elif task.metric in metrics:
            collapsed.discard(method)

    with output_files.drawing_afterwards(
        lambda: outcomes_lib.plot(folder.rows, task, folder.path / "curves.png")
    ):
        training.train(
            runs,
            ROUNDS.value,
            ROUNDS_PER_EVALUATION.value,
            release,
            checkpoints,
            _ROUNDS_PER_CHECKPOINT.value,
            _TRAIN_TOP1.value,
        )
    for run in runs:
        folder.write_weights(f"{run.name}.npz", run.weights)
    outcomes = [outcomes_lib.outcome(run, folder.rows) for run in runs]
    folder.write_text("table.csv", outcomes_lib.as_csv(outcomes, task.metric))
    table = outcomes_lib.as_text(
        outcomes, task.metric_title, task.dataset.num_classes, task.chance
    )
    for method in (run.name for run in runs if run.name in collapsed):
        table += "\n" + _explain_collapse(method, folder.last_row(method))
    folder.finish(
        {
            "table": table,
            "metric": task.metric,
            "num_classes": task.dataset.num_classes,
            "outcomes": {
                run.name: {
                    **outcome._asdict(),
                    **({"collapsed": True} if run.name in collapsed else {}),
                }
                for run, outcome in zip(runs, outcomes, strict=True)
            },
        }
    )
    return table


def _pretrained_fingerprint() -> dict[str, dict[str, str]]:
    if not _PRETRAINED.value:
        return {}
    digest = models.pretrained_digest(_PRETRAINED.value)
    return {"pretrained": {"--pretrained": digest}}


def _has_collapsed(task: tasks.Task, metrics: training.Metrics) -> bool:
    """Whether an evaluation, if the row has one, found phi collapsed by training."""
    is_trained = metrics["round"] > 0
    return is_trained and "mean_cosine" in metrics and task.has_collapsed(metrics)


def _explain_collapse(method: str, metrics: training.Metrics) -> str:
    return (
        f"{method}: the features have collapsed: after round {metrics['round']} all "
        f"images look alike to phi (mean cosine {metrics['mean_cosine']:.3f}) and it "
        "knows no more than chance. Small federated runs from scratch do that. What "
        "helps: --warm_start_epochs, --pretrained, a smaller --client_learning_rate."
    )


def _initial_feature_extractor(
    task: tasks.Task,
) -> tuple[tf.keras.Model, models.LoadReport | None]:
    model = task.feature_extractor_fn()
    if not _PRETRAINED.value:
        return model, None
    options = {"min_share": 0.0} if _ALLOW_PARTIAL_PRETRAINED.value else {}
    try:
        return model, models.load_pretrained(model, _PRETRAINED.value, **options)
    except models.PartialFitError as error:
        raise InvalidInputError(
            f"--pretrained: {error} Give another file, or --allow_partial_pretrained "
            "to start from so little."
        ) from error
    except InvalidInputError as error:
        raise InvalidInputError(f"--pretrained: {error}") from error


def _starting_feature_extractor(
    task: tasks.Task, inputs: Mapping[str, Any]
) -> list[np.ndarray]:
    """Trains phi on public classes, or takes what --warm_start_cache has of that."""
    # A new model: once others have been built in graphs, as TFF does, Keras may refuse
    # to list the variables of an earlier one.
    model, _ = _initial_feature_extractor(task)
    epochs, seed = _WARM_START_EPOCHS.value, _SEED.value
    if epochs:
        train = functools.partial(
            training.warm_start, model, task.dataset, epochs, seed
        )
        if _WARM_START_CACHE.value:
            deciding = {flag.name: flag.value for flag in _DECIDE_WARM_START}
            deciding["inputs"] = inputs
            cache = training.WarmStartCache(_WARM_START_CACHE.value, deciding)
            cache.fill(model, train)
        else:
            train()
    return model.get_weights()


def _draws_negatives(method: str) -> bool:
    return method in ("fedss", "neg_only")
