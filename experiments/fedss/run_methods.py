"""One federated run, from its flags to its results folder."""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tqdm

from experiments.common import plots, run_encoder, runtime_config
from experiments.fedss import (
    best_round,
    closing,
    privacy_config,
    run_config,
    run_parts,
    starting_point,
)
from experiments.fedss import outcomes as outcomes_lib
from experiments.fedss.methods import METHODS, name_of, settings_of
from experiments.fedss.run_config import RunConfig
from tff_fedss import models, tasks, training

# reg_sp(W) of a round of FedAwS, before its push.
_SPREADOUT = "spreadout_loss"
# Columns of metrics.csv, of every run.
COLUMNS = (
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
    options = config.chosen("dataset").options
    folder = training.ResultsFolder(
        config.results_dir,
        config.deciding(),
        (
            *COLUMNS,
            *privacy_config.columns(config),
            *([best_round.column(config)] if best_round.may_be_kept(config) else []),
            *([tasks.UNSEEN_METRIC] if options.get("num_unseen_classes") else []),
            *([_SPREADOUT] if "fedaws" in methods else []),
        ),
    )
    if (summary := folder.summary("table")) is not None:
        return summary
    check_placement = runtime_config.install(config)
    run_parts.check_memory(config, methods)
    config, dataset, validation, notes = best_round.load(config)
    config, task, chosen = run_parts.make_task(config, methods, dataset)
    kept = best_round.KeptRound(config, task, validation)
    model, loaded = starting_point.initial(config, task)
    num_w = task.dataset.num_classes * config.embedding_dim
    share = models.last_layer_share(
        model.count_params(), task.dataset.num_classes, config.embedding_dim
    )
    facts = [
        task.dataset.summary(),
        *chosen,
        *notes,
        f"phi: {config.model}, {model.count_params():,} parameters; W: {num_w:,} "
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
    inputs = {"data": task.fingerprint(), **starting_point.fingerprint(config)}
    folder.open(inputs)
    with contextlib.closing(folder):
        return _train_in(config, folder, task, methods, inputs, check_placement, kept)


def _train_in(
    config: RunConfig,
    folder: training.ResultsFolder,
    task: tasks.FederatedTask,
    methods: Sequence[str],
    inputs: Mapping[str, Any],
    check_placement: Callable[[], None],
    kept: best_round.KeptRound,
) -> str:
    """Does the work of `train_methods` after the folder is open."""
    client_fn = run_parts.client_fn(config, task, inputs["data"])
    runs = [run_parts.build_run(config, method, task, client_fn) for method in methods]
    checkpoints = folder.resume(runs)
    if not all(run.round_num for run in runs):
        phi = starting_point.trained(config, task, inputs)
        for run in runs:
            if not run.round_num:
                run.set_feature_extractor(phi)

    by_name = {run.name: run for run in runs}

    def release(metrics: training.Metrics, speed: training.Metrics) -> None:
        method = metrics["method"]
        if metrics["round"] and METHODS[method].has_clients:
            check_placement()
        folder.release(metrics, speed)
        if kept.is_best and metrics is kept.row(folder.rows, method):
            folder.write_weights(f"{method}.npz", by_name[method].weights)
        if text := closing.warning(task, folder.rows, method):
            tqdm.tqdm.write(text, file=sys.stderr)

    with plots.drawing_afterwards(
        lambda: outcomes_lib.plot(folder.rows, task, folder.path / "curves.png")
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
    dataset = config.chosen("dataset")
    image_input = run_encoder.federated_input(
        dataset.name, config.image_size, dataset.options.get("resize_size")
    )
    encoder = run_encoder.Encoder(config.model, config.embedding_dim, image_input)
    run_encoder.write(folder, encoder)
    rows = {run.name: kept.row(folder.rows, run.name) for run in runs}
    outcomes = [
        outcomes_lib.outcome(run, folder.rows, rows[run.name][task.metric])
        for run in runs
    ]
    folder.write_text("table.csv", outcomes_lib.as_csv(outcomes, task.metric))
    table = outcomes_lib.as_text(
        outcomes, task.metric_title, task.dataset.num_classes, task.chance
    )
    guarantees = privacy_config.record(runs)
    table += privacy_config.as_text(guarantees)
    table += _tell_spreadout(config, folder.rows)
    own = {
        run.name: [row for row in folder.rows if row["method"] == run.name]
        for run in runs
    }
    lines = [
        closing.summary(run, own[run.name], rows[run.name] if kept.is_best else None)
        for run in runs
    ]
    lines += [closing.diagnosis(config, run, own[run.name]) for run in runs]
    table = "\n".join([table, *filter(None, lines)])
    ended = {r.name: r.round_num for r in runs if r.round_num < config.rounds}
    folder.finish(
        {
            "table": table,
            "metric": task.metric,
            "num_classes": task.dataset.num_classes,
            **(
                {}
                if task.dataset.class_names is None
                else {"class_names": list(task.dataset.class_names)}
            ),
            "outcomes": {
                run.name: {
                    **outcome.known(),
                    **(
                        {"collapsed": True}
                        if closing.has_collapsed(task, rows[run.name])
                        else {}
                    ),
                    **({"kept_round": rows[run.name]["round"]} if kept.is_best else {}),
                }
                for run, outcome in zip(runs, outcomes, strict=True)
            },
            **({"last_rounds": ended} if ended else {}),
            **guarantees,
        }
    )
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
