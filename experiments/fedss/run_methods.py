"""One federated run, from its flags to its results folder."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow_federated as tff
import tqdm

from experiments.common import plots, run_encoder, runtime_config
from experiments.fedss import (
    outcomes,
    privacy_config,
    run_config,
    run_parts,
)
from experiments.fedss.methods import METHODS, name_of, settings_of
from experiments.fedss.run_config import RunConfig
from tff_fedss import models, tasks, training
from tff_fedss.datasets import splits
from tff_fedss.datasets.federated.dataset import FederatedDataset

# reg_sp(W) of a round of FedAwS, before its push.
_SPREADOUT = "spreadout_loss"
_VALIDATION_SHARE = 0.1
# With fewer clients, by default all train.
_FEWEST_CLIENTS = 10
# Columns of metrics.csv, of every run.
_COLUMNS = (
    "loss",
    "accuracy",
    "top1",
    "map_at_10",
    "train_top1",
    "num_examples",
    "num_clients",
    "classes_per_client",
    "positives_per_client",
    "rejected_clients",
    "bytes_down",
    "bytes_up",
    "mean_cosine",
    "r_precision",
    "tar_at_far",
)


# --- The round whose weights a run keeps: the last, or the best for validation -----


def _may_keep_best(config: RunConfig) -> bool:
    """Returns whether the flags keep the best round, if the data allow it."""
    if config.keep is not None:
        return config.keep == "best"
    follows_data = config.settings.follows_data and config.validation_share != 0
    return config.patience is not None or follows_data and not config.on_validation


def _validation_column(config: RunConfig) -> str:
    """Returns the column of metrics.csv that decides the best round."""
    metric = tasks.KINDS[config.task].metric
    return metric if config.on_validation else f"validation_{metric}"


def load(
    config: RunConfig,
) -> tuple[RunConfig, FederatedDataset, FederatedDataset | None, list[str]]:
    """Loads the data, with validation clients if the best round is kept.

    Args:
        config: The flags with the defaults of the data set.

    Returns:
        The flags, with `keep` and, if it is "best", a share of validation clients; the
        data set; the data set with the validation clients' images as its test, None if
        there are no such clients or the data set already has that test; and a line for
        the user if the data decided.

    Raises:
        InvalidInputError: If the data are missing or damaged, or cannot have validation
            clients although the flags keep the best round.
    """
    last = dataclasses.replace(config, keep="last")
    if not _may_keep_best(config):
        return last, run_parts.load_dataset(last), None, []
    share = config.validation_share or _VALIDATION_SHARE
    best = dataclasses.replace(config, keep="best", validation_share=share)
    if config.on_validation:
        return best, run_parts.load_dataset(best), None, []
    is_asked_for = config.keep is not None or config.patience is not None
    try:
        dataset = run_parts.load_dataset(best)
        validation = dataset.on_validation()
        if is_asked_for or config.validation_share is not None:
            return best, dataset, validation, []
        if dataset.num_clients + 1 < _FEWEST_CLIENTS:
            why = f"there are fewer than {_FEWEST_CLIENTS} clients"
        elif validation.test.num_examples < tasks.KINDS[config.task].min_test_images:
            why = f"validation clients have only {validation.test.num_examples} images"
        elif config.task == "retrieval" and validation.test.num_classes in (
            1,
            validation.test.num_examples,
        ):
            why = "validation clients have one class only, or no class twice"
        else:
            line = (
                f"--keep=best --validation_share={share:g}: the weights are those of "
                "the round that is best for validation clients."
            )
            return best, dataset, validation, [line]
    except splits.NoValidationError as error:
        if is_asked_for:
            raise
        why = str(error).rstrip(".")
    return last, run_parts.load_dataset(last), None, [f"--keep=last: {why}."]


class KeptRound:
    """Finds the round that is kept of each method, in the rows of metrics.csv.

    It depends on the rows alone, so that a resumed run finds the same. Of equally good
    rounds the first is the best. If not `is_best`, it is the last round.
    """

    def __init__(
        self,
        config: RunConfig,
        task: tasks.FederatedTask,
        validation: FederatedDataset | None,
    ):
        """Takes the results of `load`, and the task of the run."""
        self.is_best = config.keep == "best"
        self._column = _validation_column(config)
        self._patience = config.patience
        self._task = validation and type(task)(validation, lambda: task.model)

    def measure(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
        """Measures the task's metrics on validation clients."""
        if self._task is None:
            return {}
        return {self._column: self._task.evaluate(weights)[self._task.metric]}

    def row(self, rows: Sequence[training.Metrics], method: str) -> training.Metrics:
        """Returns the row of the round of a method that would be kept now."""
        own = [row for row in rows if row["method"] == method]
        if not self.is_best:
            return own[-1]
        return max(
            (row for row in own if self._column in row),
            key=lambda row: row[self._column],
        )

    def is_over(self, rows: Sequence[training.Metrics], method: str) -> bool:
        """Returns whether --patience ends the run, after a round that was measured."""
        newest = [row for row in rows if row["method"] == method][-1:]
        if self._patience is None or not newest or self._column not in newest[0]:
            return False
        since = newest[0]["round"] - self.row(rows, method)["round"]
        return since >= self._patience


# --- The run ----------------------------------------------------------------------


def train_methods(config: RunConfig) -> str:
    """Runs methods side by side, from the data to the files in --results_dir.

    Resumes from the folder's checkpoints, if there are any. A finished run is not
    repeated.

    Returns:
        The table of the methods' results, for the terminal.

    Raises:
        InvalidInputError: Before anything is written, if the flags or data are bad.
    """
    methods = [name_of(word) for word in config.method_words]
    config = run_config.with_defaults(config)
    folder = training.ResultsFolder(
        config.results_dir,
        config.deciding(),
        columns(config, methods),
    )
    if (summary := folder.summary("table")) is not None:
        return summary
    check_placement = runtime_config.install(
        config, any(METHODS[method].has_clients for method in methods)
    )
    config, dataset, validation, notes = load(config)
    config, task, chosen = run_parts.make_task(config, methods, dataset)
    kept = KeptRound(config, task, validation)
    loaded = run_parts.load_pretrained(config, task.model)
    num_phi = task.model.count_params()
    num_w = dataset.num_classes * config.embedding_dim
    share = models.last_layer_share(num_phi, dataset.num_classes, config.embedding_dim)
    facts = [
        dataset.summary(),
        *chosen,
        *notes,
        f"phi: {config.model}, {num_phi:,} parameters; W: {num_w:,} "
        f"({100 * share:.1f} % of all)",
    ]
    if loaded:
        facts.append(str(loaded))
    elif config.settings.starts_pretrained:
        facts.append(
            "Note: the paper starts phi from ImageNet-1k; without --pretrained this "
            "run starts from scratch."
        )
    print("\n".join(facts), flush=True)
    inputs = {"data": task.fingerprint(), **run_parts.pretrained_fingerprint(config)}
    client_fn = run_parts.client_fn(config, task, inputs["data"])
    # Before anything is written: the library may refuse the flags.
    runs = [run_parts.build_run(config, method, task, client_fn) for method in methods]
    folder.open(inputs)
    with contextlib.closing(folder):
        checkpoints = folder.resume(runs)
        if not all(run.round_num for run in runs):
            phi = run_parts.initial_phi(config, task, inputs)
            for run in runs:
                if not run.round_num:
                    run.set_feature_extractor(phi)
        waited = _train(config, folder, task, runs, checkpoints, check_placement, kept)
        return _finish(config, folder, task, runs, kept) + waited


def columns(config: RunConfig, methods: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns of metrics.csv, once each."""
    names = [*_COLUMNS, *privacy_config.columns(config)]
    if _may_keep_best(config):
        names.append(_validation_column(config))
    if config.chosen("dataset").options.get("num_unseen_classes"):
        names.append(tasks.UNSEEN_METRIC)
    if "fedaws" in methods:
        names.append(_SPREADOUT)
    return tuple(dict.fromkeys(names))


def _train(
    config: RunConfig,
    folder: training.ResultsFolder,
    task: tasks.FederatedTask,
    runs: Sequence[training.Run],
    checkpoints: Any,
    check_placement: Callable[[], None],
    kept: KeptRound,
) -> str:
    """Trains to the last round, and writes rows, weights and curves.

    Returns:
        A line with the share of the time that clients waited for data, or "".
    """
    by_name = {run.name: run for run in runs}
    seconds = 0.0

    def release(metrics: training.Metrics, speed: training.Metrics) -> None:
        nonlocal seconds
        method = metrics["method"]
        if metrics["round"] and METHODS[method].has_clients:
            check_placement()
            seconds += speed["round_seconds"]
        folder.release(metrics, speed)
        if kept.is_best and metrics is kept.row(folder.rows, method):
            folder.write_weights(f"{method}.npz", by_name[method].weights)
        if text := outcomes.warning(task, folder.rows, method):
            tqdm.tqdm.write(text, file=sys.stderr)

    with plots.drawing_afterwards(
        lambda: outcomes.plot(folder.rows, task, folder.path / "curves.png")
    ):
        training.train(
            runs,
            config.rounds,
            config.rounds_per_evaluation,
            release,
            checkpoints,
            config.rounds_per_checkpoint,
            config.train_top1,
            validate=kept.measure,
            is_over=lambda run: kept.is_over(folder.rows, run.name),
        )
    if not kept.is_best:
        for run in runs:
            folder.write_weights(f"{run.name}.npz", run.weights)
    if not seconds or config.runtime != "in_process":
        return ""
    waited = tff.framework.get_context_stack().current.waiting_seconds
    waited += sum(r.waiting_seconds for r in runs if METHODS[r.name].has_clients)
    return f"\nClients waited for data for {waited / seconds:.0%} of the rounds' time."


def _finish(
    config: RunConfig,
    folder: training.ResultsFolder,
    task: tasks.FederatedTask,
    runs: Sequence[training.Run],
    kept: KeptRound,
) -> str:
    """Writes what is known at the end of the runs; returns the table for the user."""
    dataset = config.chosen("dataset")
    image_input = run_encoder.federated_input(
        dataset.name, config.image_size, dataset.options.get("resize_size")
    )
    encoder = run_encoder.Encoder(config.model, config.embedding_dim, image_input)
    run_encoder.write(folder, encoder)
    found, summaries, failures, ended = {}, [], [], {}
    for run in runs:
        own = [row for row in folder.rows if row["method"] == run.name]
        row = kept.row(own, run.name)
        found[run.name] = outcomes.outcome(run, own, row[task.metric])
        summaries.append(outcomes.summary(run, own, row if kept.is_best else None))
        failures.append(outcomes.diagnosis(config, run, own))
        if outcomes.has_collapsed(task, row):
            found[run.name]["collapsed"] = True
        if kept.is_best:
            found[run.name]["kept_round"] = row["round"]
        if run.round_num < config.rounds:
            ended[run.name] = run.round_num
    rows = list(found.values())
    folder.write_text("table.csv", outcomes.as_csv(rows, task.metric))
    guarantees = privacy_config.record(runs)
    lines = [
        outcomes.as_text(rows, task.metric_title, task.dataset.num_classes, task.chance)
        + privacy_config.as_text(guarantees)
        + _tell_spreadout(config, folder.rows),
        *summaries,
        *filter(None, failures),
    ]
    table = "\n".join(lines)
    done = {
        "table": table,
        "metric": task.metric,
        "num_classes": task.dataset.num_classes,
    }
    if task.dataset.class_names is not None:
        done["class_names"] = list(task.dataset.class_names)
    done["outcomes"] = found
    if ended:
        done["last_rounds"] = ended
    folder.finish(done | guarantees)
    return table


def _tell_spreadout(config: RunConfig, rows: Sequence[training.Metrics]) -> str:
    """Reports rounds in which FedAwS' regularizer was 0, which no accuracy shows."""
    losses = [row[_SPREADOUT] for row in rows if _SPREADOUT in row]
    idle = losses.count(0)
    if not losses or idle < len(losses) / 2:
        return ""
    return (
        f"\nFedAwS: in {idle} of {len(losses)} rounds no two classes were within "
        f"the margin of {settings_of(config.method_words, 'fedaws').margin:g}, and the "
        "regularizer did nothing: such a round is one of pos_only. See --help of "
        "--method."
    )
