"""Defaults of flags that depend on the data."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from experiments.fedss.methods import METHODS
from experiments.fedss.run_config import RunConfig
from tff_fedss import models
from tff_fedss.datasets.federated.dataset import FederatedDataset

_ConfigT = TypeVar("_ConfigT", bound=RunConfig)


def filled(
    config: _ConfigT, dataset: FederatedDataset, methods: Sequence[str]
) -> tuple[_ConfigT, list[str]]:
    """Sets unset flags to values that suit the data.

    They stay unset in flags.txt: the same data give the same values.

    Returns:
        The flags, none unset, and a line on each choice for the user.
    """
    settings = config.settings
    num_classes, most = dataset.num_classes, dataset.max_positives
    values, reasons = {}, {}
    if config.image_size is None:
        values["image_size"] = dataset.image_shape[0]
        reasons["image_size"] = "at most the images' own size"
    if config.clients_per_round is None:
        cohort = min(settings.clients_per_round, dataset.num_clients)
        values["clients_per_round"] = cohort
        reasons["clients_per_round"] = f"of {dataset.num_clients:,} clients"
    if config.num_negatives is None:
        others = num_classes - most
        values["num_negatives"] = max(1, min(settings.num_negatives[-1], others))
        reasons["num_negatives"] = (
            f"a client has at most {most} of the n = {num_classes:,} classes"
        )
    if config.logit_scale is None:
        values["logit_scale"] = settings.logit_scale or models.adacos_scale(num_classes)
        if settings.logit_scale is None:
            reasons["logit_scale"] = "AdaCos's, sqrt(2) log(n - 1), at least 3"
    for name in ("gradient_clip_norm", "initial_norm"):
        if getattr(config, name) is None:
            values[name] = getattr(settings, name)
    lines = [f"--{name}={values[name]:.3g}: {why}." for name, why in reasons.items()]
    lines += [
        f"--client_learning_rate={rate:g}, for {METHODS[name].title} alone: a higher "
        "one would destroy phi."
        for name, rate in settings.learning_rates.items()
        if name in methods and config.client_learning_rate is None
    ]
    return dataclasses.replace(config, **values), lines
