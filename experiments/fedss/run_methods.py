"""One federated run, from its flags to its results folder."""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tqdm

from experiments.common import output_files, run_encoder, runtime_config
from experiments.fedss import (
    defences_config,
    dp_config,
    run_config,
    run_parts,
    starting_point,
)
from experiments.fedss import outcomes as outcomes_lib
from experiments.fedss.methods import METHODS
from experiments.fedss.run_config import RunConfig
from tff_fedss import models, tasks, training

# reg_sp(W) of a round of FedAwS, before it pushes.
_SPREADOUT = "spreadout_loss"
# Of metrics.csv, of every run.
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


def train_methods(config: RunConfig, methods: Sequence[str]) -> str:
    """Runs methods side by side, from the data to the files in --results_dir.

    Resumes from the folder's checkpoints, if there are any. If the folder is of a
    finished run, nothing is run again.

    Args:
        config: What the user asks for.
        methods: Of `METHODS`.

    Returns:
        The table of what came of each method, for the terminal.

    Raises:
        InvalidInputError: Before anything is written, if the flags or data are bad.
    """
    config = run_config.with_defaults(config)
    options = config.chosen("dataset").options
    folder = training.ResultsFolder(
        config.results_dir,
        config.deciding(),
        (
            *COLUMNS,
            *defences_config.columns(config),
            *dp_config.columns(config),
            *([tasks.UNSEEN_METRIC] if options.get("num_unseen_classes") else []),
            *([_SPREADOUT] if "fedaws" in methods else []),
        ),
    )
    if (summary := folder.summary("table")) is not None:
        return summary
    check_placement = runtime_config.install(config)
    config, task, chosen = run_parts.load_task(config, methods)
    model, loaded = starting_point.initial(config, task)
    num_w = task.dataset.num_classes * config.embedding_dim
    share = models.last_layer_share(
        model.count_params(), task.dataset.num_classes, config.embedding_dim
    )
    facts = [
        task.dataset.summary(),
        *chosen,
        f"phi: {config.model}, {model.count_params():,} parameters; W: {num_w:,} "
        f"({100 * share:.1f} % of all)",
    ]
    if loaded:
        facts.append(str(loaded))
    elif config.spec.settings[config.task].starts_pretrained:
        facts.append(
            "Note: the paper starts phi from ImageNet-1k; without --pretrained this "
            "run starts from scratch."
        )
    print("\n".join(facts), flush=True)
    inputs = {"data": task.fingerprint(), **starting_point.fingerprint(config)}
    folder.open(inputs)
    with contextlib.closing(folder):
        return _train_in(config, folder, task, methods, inputs, check_placement)


def _train_in(
    config: RunConfig,
    folder: training.ResultsFolder,
    task: tasks.FederatedTask,
    methods: Sequence[str],
    inputs: Mapping[str, Any],
    check_placement: Callable[[], None],
) -> str:
    """Does what `train_methods` does once the folder is open."""
    client_fn = run_parts.client_fn(config, task, inputs["data"])
    runs = [run_parts.build_run(config, method, task, client_fn) for method in methods]
    checkpoints = folder.resume(runs)
    if not all(run.round_num for run in runs):
        phi = starting_point.trained(config, task, inputs)
        for run in runs:
            if not run.round_num:
                run.set_feature_extractor(phi)

    collapsed = {m["method"] for m in folder.rows if _has_collapsed(task, m)}

    def release(metrics: training.Metrics, speed: training.Metrics) -> None:
        method = metrics["method"]
        if metrics["round"] and METHODS[method].has_clients:
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
            config.rounds,
            config.rounds_per_evaluation,
            release,
            checkpoints,
            config.rounds_per_checkpoint,
            config.train_top1,
        )
    for run in runs:
        folder.write_weights(f"{run.name}.npz", run.weights)
    dataset = config.chosen("dataset")
    image_input = run_encoder.federated_input(
        dataset.name, config.image_size, dataset.options.get("resize_size")
    )
    encoder = run_encoder.Encoder(config.model, config.embedding_dim, image_input)
    run_encoder.write(folder, encoder)
    outcomes = [outcomes_lib.outcome(run, folder.rows) for run in runs]
    folder.write_text("table.csv", outcomes_lib.as_csv(outcomes, task.metric))
    table = outcomes_lib.as_text(
        outcomes, task.metric_title, task.dataset.num_classes, task.chance
    )
    guarantees = dp_config.record(runs)
    table += dp_config.as_text(guarantees)
    table += _tell_spreadout(config, folder.rows)
    last_rows = {row["method"]: row for row in folder.rows}
    for method in (run.name for run in runs if run.name in collapsed):
        table += "\n" + _explain_collapse(method, last_rows[method])
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
                    **({"collapsed": True} if run.name in collapsed else {}),
                }
                for run, outcome in zip(runs, outcomes, strict=True)
            },
            **guarantees,
        }
    )
    return table


def _tell_spreadout(config: RunConfig, rows: Sequence[training.Metrics]) -> str:
    """Says if FedAwS' regularizer had nothing to do, which no accuracy shows."""
    losses = [row[_SPREADOUT] for row in rows if _SPREADOUT in row]
    idle = losses.count(0)
    if not losses or idle < len(losses) / 2:
        return ""
    return (
        f"\nFedAwS: in {idle} of {len(losses)} rounds no two classes were within "
        f"--spreadout_margin={config.spreadout_margin:g}, and the regularizer did "
        "nothing: such a round is one of pos_only. See --help of --spreadout_margin."
    )


def _has_collapsed(task: tasks.FederatedTask, metrics: training.Metrics) -> bool:
    """Whether an evaluation, if the row has one, found phi collapsed by training."""
    is_trained = metrics["round"] > 0
    return is_trained and "mean_cosine" in metrics and task.has_collapsed(metrics)


def _explain_collapse(method: str, metrics: training.Metrics) -> str:
    return (
        f"{method}: the features have collapsed: after round {metrics['round']} all "
        f"images look alike to phi (mean cosine {metrics['mean_cosine']:.3f}) and it "
        "knows hardly more than chance. Small federated runs from scratch do that. "
        "What helps: --warm_start_epochs, --pretrained, a smaller "
        "--client_learning_rate."
    )
