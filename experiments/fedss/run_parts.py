"""The parts of a federated run, built from its flags."""

import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.common import config as config_lib
from experiments.common import launch, memory_needs
from experiments.fedss import privacy_config, run_config
from experiments.fedss.methods import METHODS, name_of, settings_of
from experiments.fedss.run_config import RunConfig
from tff_fedss import algorithms, memory, metrics, models, runtime, tasks, training
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError

_ConfigT = TypeVar("_ConfigT", bound=RunConfig)
# The flags that decide a warm start.
_OF_WARM_START = (
    "dataset",
    "data_dir",
    "task",
    "image_size",
    "model",
    "pretrained",
    "embedding_dim",
    "warm_start_epochs",
    "seed",
    "deterministic",
    "precision",
)


def load_dataset(config: RunConfig) -> FederatedDataset:
    """Loads the data set of the flags.

    Raises:
        InvalidInputError: If the data are missing or damaged, do not suit the other
            flags, or W or an image would be larger than memory.
    """
    num_classes = config.chosen("dataset").options.get("num_classes", 2)
    memory.check(
        memory_needs.images(1, config.image_size or 0),
        device_needs=memory_needs.matrix("W", num_classes, config.embedding_dim),
    )
    return config.spec.open(config.task, **config.dataset_keywords())


def client_fn(
    config: RunConfig, task: tasks.FederatedTask, fingerprint: Mapping[str, Any]
) -> Callable[..., Any]:
    """Returns a function that makes a client's argument, like `FederatedTask.client`.

    In a cluster it runs where the client trains, with the same --data_dir, whose data
    must have the same fingerprint.
    """
    context = tff.framework.get_context_stack().current
    if not isinstance(context, runtime.ClusterContext):
        return task.client
    keywords = config.dataset_keywords()
    if keywords.get("data_dir") is not None:
        keywords["data_dir"] = os.path.abspath(keywords["data_dir"])
    for name, value in keywords.items():
        if isinstance(value, pathlib.Path):
            keywords[name] = value.absolute()
    name = config.chosen("dataset").name
    load = functools.partial(tasks.load_clients, name, config.task, keywords)
    return context.share(load, task.client, fingerprint)


def with_data_defaults(
    config: _ConfigT, dataset: FederatedDataset, methods: Sequence[str]
) -> tuple[_ConfigT, list[str]]:
    """Sets unset flags to values that suit the data.

    Returns:
        The flags, none unset, and a line on each choice for the user.
    """
    settings = config.settings
    num_classes, most = dataset.num_classes, dataset.max_positives
    cohort_size = min(settings.clients_per_round, dataset.num_clients)
    chosen = {
        "image_size": (dataset.image_shape[0], "at most the images' own size"),
        "clients_per_round": (cohort_size, f"of {dataset.num_clients:,} clients"),
        "num_negatives": (
            max(1, min(settings.num_negatives, num_classes - most)),
            f"a client has at most {most} of the n = {num_classes:,} classes",
        ),
    }
    if settings.logit_scale is None:
        scale = models.adacos_scale(num_classes)
        chosen["logit_scale"] = (scale, "AdaCos's, sqrt(2) log(n - 1), at least 3")
    lines = [
        f"--{name}={value:.3g}: {why}."
        for name, (value, why) in chosen.items()
        if getattr(config, name) is None
    ]
    lines += [
        f"--client_learning_rate={rate:g}, for {METHODS[name].title} alone: a higher "
        "one would destroy phi."
        for name, rate in settings.learning_rates.items()
        if name in methods and config.client_learning_rate is None
    ]
    values = {name: getattr(settings, name) for name in run_config.LATE}
    values |= {name: value for name, (value, _) in chosen.items()}
    return config.filled(values), lines


def make_task(
    config: _ConfigT, methods: Sequence[str], dataset: FederatedDataset
) -> tuple[_ConfigT, tasks.FederatedTask, list[str]]:
    """Checks that the flags suit the data, and makes the task.

    Returns:
        The flags with the defaults of the data, the task, and lines on those choices,
        see `with_data_defaults`.

    Raises:
        InvalidInputError: If the data do not suit the flags.
    """
    config, chosen = with_data_defaults(config, dataset, methods)
    if config.clients_per_round > dataset.num_clients:
        raise InvalidInputError(
            f"--clients_per_round={config.clients_per_round} is more than the "
            f"{dataset.num_clients} clients of {dataset.name}."
        )
    privacy_config.check(config, methods)
    if config.warm_start_epochs and dataset.public is None:
        raise InvalidInputError(
            f"--warm_start_epochs={config.warm_start_epochs} needs public classes, and "
            f"{dataset.name} has none: use --warm_start_epochs=0"
            + (
                f", or give it some by --dataset={config.chosen('dataset').name}:"
                "num_public_classes=NUMBER."
                if "num_public_classes" in config.spec.options
                else "."
            )
        )
    launch.check_image_size(config, "model")
    model_fn = functools.partial(
        models.FEATURE_EXTRACTORS[config.model],
        dataset.image_shape,
        config.embedding_dim,
        seed=config.seed,
    )
    task = tasks.KINDS[config.task](dataset, model_fn)
    # Clients have momentums of W at the server, Centralized has none.
    copies = sum(2 if METHODS[method].has_clients else 1 for method in methods)
    most = dataset.num_examples(dataset.train.client_ids[0])
    memory.check(
        {},
        device_needs=memory_needs.matrix(
            "W and its momentum", dataset.num_classes, config.embedding_dim, copies
        )
        | memory_needs.network(
            "phi", task.feature_extractor_fn, min(config.batch_size, most), copies=2
        ),
    )
    return config, task, chosen


def build_run(
    config: RunConfig,
    method: str,
    task: tasks.FederatedTask,
    client_fn: Callable[..., Any] | None = None,
) -> training.FederatedRun | training.CentralizedRun:
    """Builds a method's run; without `client_fn` the task makes clients' arguments.

    Raises:
        InvalidInputError: If the flags do not suit the data.
    """
    if not METHODS[method].has_clients:
        rate = config.learning_rate(method)
        return training.CentralizedRun(
            method,
            task,
            tf.keras.optimizers.SGD(
                rate, global_clipnorm=config.gradient_clip_norm or None
            ),
            cohort_size=config.clients_per_round,
            batch_size=config.batch_size,
            seed=config.seed,
            updates=settings_of(config.method_words, method).updates,
            initial_norm=config.initial_norm,
            logit_scale=config.logit_scale,
            learning_rate_fn=config.learning_rate_fn("clients", rate),
        )
    protocol = privacy_config.protocol(config, method)
    process = _build_process(config, method, task, protocol)
    sampling = privacy_config.sampling(config)
    cohort_size = config.clients_per_round
    cohort_fn = training.cohort_fn(
        task.dataset.train.client_ids, cohort_size, config.seed, sampling
    )
    return training.FederatedRun(
        method,
        process,
        task,
        cohort_size=cohort_size,
        seed=config.seed,
        protocol=protocol,
        client_fn=client_fn,
        sampling=sampling,
        accountant=privacy_config.accountant(config, task.dataset, cohort_fn),
    )


def _build_process(
    config: RunConfig, method: str, task: tasks.Task, protocol: metrics.Protocol
) -> tff.learning.templates.LearningProcess:
    builder = privacy_config.class_set_builder(config, method, task.dataset)
    draws = METHODS[method].draws_negatives and builder is None
    rate = config.learning_rate(method)
    optimizer = algorithms.over_one_vector(tff.learning.optimizers.build_sgdm(rate))
    if config.gradient_clip_norm:
        optimizer = algorithms.clip_gradients(optimizer, config.gradient_clip_norm)
    return METHODS[method].build(
        settings_of(config.method_words, method),
        task.feature_extractor_fn,
        task.dataset.num_classes,
        algorithms.ClassSets(
            task.dataset.max_positives,
            config.num_negatives if draws else 0,
            config.logit_correction,
            builder,
            protocol.requests,
            with_positives=True,
        ),
        client_training=algorithms.ClientTraining(
            optimizer,
            config.batch_size,
            logit_scale=config.logit_scale,
            use_xla=bool(config.xla),
            learning_rate_fn=config.learning_rate_fn("clients", rate),
        ),
        server_update=algorithms.ServerUpdate(
            config.server.build(),
            learning_rate_fn=config.learning_rate_fn(
                "server", config.server.learning_rate
            ),
            **privacy_config.server_options(config, method, task.dataset),
        ),
        seed=config.seed,
        initial_norm=config.initial_norm,
    )


# --- The initial phi: drawn, loaded or trained on public classes ---------------------


def _pretrained_path(config: config_lib.Config) -> str | os.PathLike:
    """Returns the file of --pretrained, downloaded if it is `imagenet`.

    Raises:
        InvalidInputError: If the download fails.
    """
    if config.pretrained != "imagenet":
        return config.pretrained
    try:
        return models.fetch_imagenet(config.model)
    except InvalidInputError as error:
        raise InvalidInputError(f"--pretrained={error}") from error


def pretrained_fingerprint(config: config_lib.Config) -> dict[str, dict[str, str]]:
    """Returns the fingerprint of --pretrained; empty if there is none."""
    if not config.pretrained:
        return {}
    digest = models.pretrained_digest(_pretrained_path(config))
    return {"pretrained": {"--pretrained": digest}}


def load_pretrained(
    config: config_lib.Config, model: tf.keras.Model
) -> models.LoadReport | None:
    """Loads the weights of --pretrained into phi, if there are any.

    Raises:
        InvalidInputError: If they are missing, damaged, or of another model.
    """
    if not config.pretrained:
        return None
    path = _pretrained_path(config)
    with config_lib.naming("--pretrained"):
        return models.load_pretrained(model, path)


def initial_phi(
    config: RunConfig,
    task: tasks.FederatedTask,
    inputs: Mapping[str, Any],
) -> list[np.ndarray]:
    """Trains phi of a task not measured yet on public classes, if the flags say so.

    --warm_start_cache may have the result, by the fingerprints of the run's inputs.

    Returns:
        Phi before the rounds.
    """
    model, epochs, seed = task.model, config.warm_start_epochs, config.seed
    if epochs:
        train = functools.partial(
            training.warm_start, model, task.dataset, epochs, seed
        )
        if config.warm_start_cache:
            deciding = {name: getattr(config, name) for name in _OF_WARM_START}
            deciding["inputs"] = inputs
            if not any(METHODS[name_of(w)].has_clients for w in config.method_words):
                # Then an operation has several threads, and other bytes.
                deciding["threads"] = "several"
            folder = config.warm_start_cache
            training.cached_warm_start(folder, deciding, model, train)
        else:
            train()
    return model.get_weights()
