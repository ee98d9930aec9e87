"""Figures 3 to 10 of the FedSS paper, drawn from our own runs.

Each function draws one figure as a PNG from whatever cells there are, or raises
`NothingToDraw` with the reason. A method has the same color in all of them. Lines are
means over seeds and shades their standard deviation. Finished runs are drawn; a cell
without one is drawn as far as all its runs have come.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from experiments.common import plots
from experiments.fedss import paper_values
from experiments.fedss.table_results import (
    DRAW_NEGATIVES,
    METHOD_TITLES,
    Cell,
    Results,
    Run,
    Setting,
    common_rounds,
)
from tff_fedss import algorithms, metrics, models, tasks, training
from tff_fedss.errors import InvalidInputError

# Okabe and Ito's colors, which color-blind people can tell apart too.
METHOD_COLORS = {
    "fedss": "#0072B2",
    "neg_only": "#D55E00",
    "pos_only": "#009E73",
    "fedaws": "#CC79A7",
    "full_softmax": "#000000",
    "centralized": "#999999",
}

# What each figure shows, for captions.
CAPTIONS = {
    3: "learning curves by method, at the middle |S_k|",
    4: "convergence of FedSS by |S_k|",
    5: "metric against transmitted classifier parameters",
    6: "FedSS and NegOnly with equally many classes that push",
    7: "confusion matrices of one client's P_k",
    8: "share of the last layer in all parameters",
    9: "gradient noise against |N_k|",
    10: "metric against transmitted classifier parameters",
}

_NOISE_BATCH = 32  # |D| of A.3

LoadTask = Callable[[Mapping[str, str]], tasks.Task]


class NothingToDraw(Exception):
    """There are no data for a figure; the message says which are missing."""


def draw(
    number: int,
    path: pathlib.Path,
    results: Results | None = None,
    load_task: LoadTask | None = None,
) -> None:
    """Draws a figure.

    Args:
        number: As the paper counts them, a key of `CAPTIONS`.
        path: The PNG.
        results: The runs; only figure 8 needs none.
        load_task: Figures 7 and 9 look at the data with this. By default the data set
            of the runs is loaded from where they had it.

    Raises:
        NothingToDraw: If the runs do not serve for this figure.
        InvalidInputError: If a run's weights are damaged.
    """
    if number == 8:
        figure8(path)
        return
    if results is None:
        raise NothingToDraw("it needs the results of runs")
    if number == 7:
        figure7(results, path, load_task or load_task_of_flags)
    elif number == 9:
        _figure9_of_results(results, path, load_task or load_task_of_flags)
    else:
        by_number = {3: figure3, 4: figure4, 5: figure5, 6: figure6, 10: figure5}
        by_number[number](results, path)


def load_task_of_flags(flags: Mapping[str, str]) -> tasks.Task:
    """Loads the task that a run had.

    Args:
        flags: Of the run, all of them.

    Raises:
        NothingToDraw: If the data are not there.
        InvalidInputError: If a flag that must be a number is none.
    """

    def number(name, kind):
        try:
            return kind(flags[name]) if name in flags else None
        except ValueError as error:
            raise InvalidInputError(
                f"a run has --{name}={flags[name]} in its flags.txt, expected a number."
            ) from error

    integer = functools.partial(number, kind=int)
    options = {
        "data_dir": flags.get("data_dir"),
        "kind": flags["task"],
        "partition": flags.get("partition"),
        "image_size": integer("image_size"),
        "resize_size": integer("resize_size"),
        "num_classes": integer("num_classes"),
        "num_clients": integer("num_clients"),
        "clients_csv": flags.get("clients_csv"),
    }
    if "dirichlet_alpha" in flags:
        options["dirichlet_alpha"] = number("dirichlet_alpha", float)
    if "num_public_classes" in flags:
        options["num_public_classes"] = integer("num_public_classes")
    try:
        dataset = tasks.FAMILIES[flags["dataset"]].load(tasks.DataOptions(**options))
    except InvalidInputError as error:
        raise NothingToDraw(f"the data of the runs: {error}") from error
    return tasks.KINDS[flags["task"]](
        dataset,
        functools.partial(
            models.FEATURE_EXTRACTORS[flags["model"]],
            dataset.image_shape,
            integer("embedding_dim"),
            seed=integer("seed"),
        ),
    )


# --- Curves over rounds -----------------------------------------------------------


def _runs_to_draw(cell: Cell) -> list[Run]:
    return cell.finished or [run for run in cell.runs if run.rows]


def mean_curve(
    cell: Cell, metric: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Averages the learning curves of a cell.

    Args:
        cell: The cell.
        metric: A column of metrics.csv that holds shares.

    Returns:
        Rounds, mean and sample standard deviation over seeds (zero for a single one) in
        percent, each [points]; None if nothing was measured.
    """
    runs = _runs_to_draw(cell)
    rounds = common_rounds(runs, metric)
    if not rounds:
        return None
    values = np.array([[dict(run.curve(metric))[r] for r in rounds] for run in runs])
    return np.array(rounds), values.mean(0), _std(values)


def _std(values: np.ndarray) -> np.ndarray:
    """The sample standard deviation over the first axis; zero for one sample."""
    if len(values) < 2:
        return np.zeros(values.shape[1:])
    return values.std(axis=0, ddof=1)


def _plot_curve(axes, cell: Cell | None, metric: str, label: str, **style) -> bool:
    curve = None if cell is None else mean_curve(cell, metric)
    if curve is None:
        return False
    rounds, mean, std = curve
    (line,) = axes.plot(rounds, mean, label=label, **style)
    axes.fill_between(
        rounds, mean - std, mean + std, color=line.get_color(), alpha=0.2, linewidth=0
    )
    return True


def _finish(axes, results: Results, xlabel: str, **legend: Any) -> None:
    axes.set(
        xlabel=xlabel,
        ylabel=f"{results.task.metric_title} on held-out images (%)",
    )
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(fontsize="small", **legend)


def _style(setting: Setting) -> dict[str, str]:
    return {
        "color": METHOD_COLORS[setting.method],
        "linestyle": "-" if setting.is_corrected else "--",
    }


def _single(method: str) -> Setting:
    return Setting(method)


def figure3(results: Results, path: pathlib.Path) -> None:
    """Draws learning curves by method, FedSS and NegOnly at the middle |S_k|.

    Args:
        results: The runs.
        path: The PNG.

    Raises:
        NothingToDraw: If no run has been evaluated.
    """
    sizes = results.num_negatives("fedss") or results.num_negatives("neg_only")
    middle = sizes[len(sizes) // 2] if sizes else None
    with plots.png(path) as (_, axes):
        drawn = [
            _plot_curve(
                axes,
                results.cells.get(setting),
                results.task.metric,
                str(setting),
                **_style(setting),
            )
            for method in METHOD_TITLES
            for setting in (
                [Setting(method, middle, corrected) for corrected in (True, False)]
                if method in DRAW_NEGATIVES
                else [_single(method)]
            )
        ]
        if not any(drawn):
            raise NothingToDraw("no run has been evaluated")
        _finish(axes, results, "round")
        axes.set_title(f"{results.dataset_title}: learning curves")


def figure4(results: Results, path: pathlib.Path) -> None:
    """Draws the convergence of FedSS by |S_k|, with FullSoftmax.

    Both readings of the logit correction get a panel, if both were run.

    Args:
        results: The runs.
        path: The PNG.

    Raises:
        NothingToDraw: If no run of FedSS has been evaluated.
    """
    readings = sorted(
        {s.is_corrected for s in results.cells if s.method == "fedss"}, reverse=True
    )
    if not readings:
        raise NothingToDraw("there is no cell of FedSS")
    sizes = results.num_negatives("fedss")
    colors = plt.get_cmap("viridis")(np.linspace(0.9, 0.1, len(sizes)))
    width = 6 * len(readings)
    with plots.png(
        path, 1, len(readings), figsize=(width, 4), sharey=True, squeeze=False
    ) as (figure, panels):
        drawn = False
        for axes, corrected in zip(panels[0], readings, strict=True):
            for m, color in zip(sizes, colors, strict=True):
                setting = Setting("fedss", m, corrected)
                size = results.class_set_size(setting)
                label = f"m = {m}" if size is None else f"|S_k| = {size}"
                cell = results.cells.get(setting)
                drawn |= _plot_curve(
                    axes, cell, results.task.metric, label, color=color
                )
            full = _single("full_softmax")
            _plot_curve(
                axes,
                results.cells.get(full),
                results.task.metric,
                full.title,
                **_style(full),
            )
            axes.set_title(Setting("fedss", None, corrected).title)
            if axes.has_data():
                _finish(axes, results, "round")
        if not drawn:
            raise NothingToDraw("no run of FedSS has been evaluated")
        figure.suptitle(f"{results.dataset_title}: convergence by |S_k|")


# --- Results of finished runs -----------------------------------------------------


def _final(cell: Cell | None, metric: str) -> tuple[float, float] | None:
    """Mean and standard deviation over the finished runs, in percent."""
    if cell is None or not cell.finished:
        return None
    values = np.array([run.final(metric) for run in cell.finished])
    return float(values.mean()), float(_std(values))


def transmitted_parameters(cell: Cell) -> float | None:
    """Returns the classifier parameters that a client gets, and sends, per round.

    Args:
        cell: The cell.

    Returns:
        A mean over clients, rounds and runs; None where there are no clients.
    """
    sizes = [run.mean("classes_per_client") for run in cell.runs]
    known = [size for size in sizes if size is not None]
    if not known:
        return None
    embedding_dim = int(cell.runs[0].flags["embedding_dim"])
    return metrics.classifier_traffic(
        float(np.mean(known)),
        embedding_dim,
        asks_by_id=cell.setting.method != "full_softmax",
    ).parameters


def figure5(results: Results, path: pathlib.Path) -> None:
    """Draws the metric against transmitted classifier parameters (Figures 5 and 10).

    Args:
        results: The runs.
        path: The PNG.

    Raises:
        NothingToDraw: If no run with clients is finished.
    """
    by_line: dict[tuple[str, bool], list[tuple[float, float, float]]] = {}
    for setting, cell in results.cells.items():
        final = _final(cell, results.task.metric)
        parameters = transmitted_parameters(cell)
        if final is not None and parameters is not None:
            line = by_line.setdefault((setting.method, setting.is_corrected), [])
            line.append((parameters, *final))
    if not by_line:
        raise NothingToDraw("no run of a method with clients is finished")
    with plots.png(path) as (_, axes):
        for method in METHOD_TITLES:
            for corrected in (True, False):
                if (method, corrected) in by_line:
                    setting = Setting(method, None, corrected)
                    x, mean, std = zip(*sorted(by_line[method, corrected]), strict=True)
                    axes.errorbar(
                        x,
                        mean,
                        std,
                        marker="o",
                        capsize=3,
                        label=setting.title,
                        **_style(setting),
                    )
        centralized = _final(
            results.cells.get(_single("centralized")), results.task.metric
        )
        if centralized is not None:
            axes.axhline(
                centralized[0],
                color=METHOD_COLORS["centralized"],
                linestyle=":",
                label="Centralized (nothing is transmitted)",
            )
        axes.set_xscale("log")
        _finish(axes, results, "classifier parameters to and from a client, per round")
        axes.set_title(
            f"{results.dataset_title}: {results.task.metric_title} against traffic"
        )


def compositions(results: Results) -> list[tuple[Cell, Cell]]:
    """Pairs FedSS with m negatives and NegOnly with m + |P_k| - 1 (section 4.4).

    The paper's NegOnly draws exactly as many more classes as a client has; ours draws a
    number that is fixed for all clients, so the nearest one is taken, within 5 %.

    Args:
        results: The runs; FedSS in both readings if both are there.
    """
    sizes = results.num_negatives("fedss")
    # NegOnly with the m of FedSS belongs to the table.
    candidates = [m for m in results.num_negatives("neg_only") if m not in sizes]
    pairs = []
    for setting, cell in results.cells.items():
        if setting.method != "fedss" or results.mean_positives is None:
            continue
        wanted = setting.num_negatives + results.mean_positives - 1
        near = [m for m in candidates if abs(m - wanted) <= max(1, 0.05 * wanted)]
        if near:
            nearest = min(near, key=lambda m: abs(m - wanted))
            for corrected in (setting.is_corrected, True):
                other = results.cells.get(Setting("neg_only", nearest, corrected))
                if other is not None:
                    pairs.append((cell, other))
                    break
    return sorted(
        pairs,
        key=lambda pair: (
            pair[0].setting.num_negatives,
            not pair[0].setting.is_corrected,
        ),
    )


def figure6(results: Results, path: pathlib.Path) -> None:
    """Draws FedSS beside NegOnly with equally many classes that push (section 4.4).

    Args:
        results: The runs of experiments/figure6, and FedSS.
        path: The PNG.

    Raises:
        NothingToDraw: If no pair of FedSS with m and NegOnly with m + |P_k| - 1
            negatives is finished.
    """
    pairs = [pair for pair in compositions(results) if all(c.finished for c in pair)]
    if not pairs:
        raise NothingToDraw(
            "no pair of FedSS with m and NegOnly with m + |P_k| - 1 negatives is "
            "finished"
        )
    with plots.png(path, figsize=(max(5, 1.6 * len(pairs)), 4)) as (_, axes):
        labels = []
        seen = set()
        for i, (ours, other) in enumerate(pairs):
            for cell, offset in ((ours, -0.2), (other, 0.2)):
                mean, std = _final(cell, results.task.metric)
                title = cell.setting.title
                axes.bar(
                    i + offset,
                    mean,
                    0.38,
                    yerr=std,
                    capsize=3,
                    color=METHOD_COLORS[cell.setting.method],
                    hatch=None if cell.setting.is_corrected else "//",
                    edgecolor="white",
                    label="_" if title in seen else title,
                )
                seen.add(title)
            labels.append(
                f"{other.setting.num_negatives}\n"
                f"(FedSS: m = {ours.setting.num_negatives})"
            )
        axes.set_xticks(range(len(pairs)), labels, fontsize="small")
        beside = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
        _finish(axes, results, "classes that push an input", **beside)
        axes.set_title(f"{results.dataset_title}: composition of the negatives")


# --- Models at work on data -------------------------------------------------------


def _load_weights(run: Run) -> list[np.ndarray]:
    """Reads [*phi, W]."""
    path = run.path / f"{run.setting.method}.npz"
    if not path.exists():
        raise NothingToDraw(f"{path} is missing")
    arrays = training.read_arrays(path)
    if "W" not in arrays:
        raise InvalidInputError(f"{path} is damaged: it has no W.")
    return [
        *(arrays[name] for name in sorted(arrays) if name.startswith("phi_")),
        arrays["W"],
    ]


def figure7(
    results: Results,
    path: pathlib.Path,
    load_task: LoadTask,
    client_id: str | None = None,
) -> dict[str, np.ndarray]:
    """Draws what FedSS and NegOnly confuse among one client's classes.

    Both have the smallest m that both were run with, and the same seed. The images are
    the client's own.

    Args:
        results: The runs.
        path: The PNG.
        load_task: Loads the task that the flags of a run stand for.
        client_id: The client; by default the first one.

    Returns:
        By method the counts, int64[|P_k|, |P_k|]; rows are true classes.

    Raises:
        NothingToDraw: If there is no such pair of finished runs, or no data.
        InvalidInputError: If the weights of a run are damaged.
    """
    runs = _smallest_pair(results)
    weights = {method: _load_weights(run) for method, run in runs.items()}
    task = load_task(runs["fedss"].flags)
    dataset = task.dataset
    client_id = client_id or dataset.train.client_ids[0]
    positives = np.asarray(dataset.positives(client_id))
    examples = dataset.client_examples(client_id, np.array([0, 0], np.int32))
    (batch,) = examples.batch(dataset.num_examples(client_id))
    labels = batch["label"].numpy()
    matrices = {}
    model = task.feature_extractor_fn()
    for method, (*phi, classifier) in weights.items():
        theirs = [np.shape(array) for array in (*phi, classifier)]
        dim = model.output_shape[-1]
        ours = [
            *(tuple(v.shape) for v in model.trainable_variables),
            (dataset.num_classes, dim),
        ]
        if theirs != ours:
            raise InvalidInputError(
                f"{runs[method].path / method}.npz has {len(phi)} arrays of phi and W "
                f"of shape {theirs[-1]}; they do not fit the model, which has "
                f"{len(ours) - 1} and {ours[-1]}."
            )
        for variable, value in zip(model.trainable_variables, phi, strict=True):
            variable.assign(value)
        features = model(tf.cast(batch["image"], tf.float32), training=False).numpy()
        matrices[method] = metrics.client_confusion_matrix(
            features, labels, classifier, positives
        )
    m = runs["fedss"].setting.num_negatives
    with plots.png(path, 1, 2, figsize=(9, 4.4)) as (figure, panels):
        for axes, (method, matrix) in zip(panels, matrices.items(), strict=True):
            rates = 100 * matrix / matrix.sum(1, keepdims=True)
            image = axes.imshow(rates, cmap="Blues", vmin=0, vmax=100)
            right = 100 * np.trace(matrix) / matrix.sum()
            axes.set(
                xlabel="predicted class (place in P_k)",
                ylabel="true class (place in P_k)",
                title=f"{METHOD_TITLES[method]}: {right:.0f} % right",
            )
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(plt.MaxNLocator(integer=True))
        figure.colorbar(image, ax=panels, label="part of the true class's images (%)")
        figure.suptitle(
            f"{results.dataset_title}: {client_id}'s own images, |P_k| = "
            f"{len(positives)}, |S_k| = {len(positives) + m}"
        )
    return matrices


def _smallest_pair(results: Results) -> dict[str, Run]:
    for m in results.num_negatives("fedss"):
        for corrected in (True, False):
            finished = {}
            for method in ("fedss", "neg_only"):
                cell = results.cells.get(Setting(method, m, corrected))
                # The correction of NegOnly need not have been varied.
                cell = cell or results.cells.get(Setting(method, m))
                finished[method] = {r.seed: r for r in cell.finished} if cell else {}
            seeds = sorted({*finished["fedss"]} & {*finished["neg_only"]})
            if seeds:
                return {method: runs[seeds[0]] for method, runs in finished.items()}
    raise NothingToDraw("no FedSS and NegOnly with the same m and seed are finished")


def figure8(path: pathlib.Path) -> dict[int, np.ndarray]:
    """Draws the share of the last layer in MobileNetV3 by n, for d = 64 and 1280 (A.1).

    Takes about 15 seconds, to build the networks and count.

    Args:
        path: The PNG.

    Returns:
        For each d the shares in percent at the points of the curve.
    """
    num_classes = np.unique(np.geomspace(10, 1e6, 200).astype(int))
    shares = {}
    with plots.png(path) as (_, axes):
        for dim, color in ((64, METHOD_COLORS["fedss"]), (1280, "#D55E00")):
            model = models.paper_feature_extractor(embedding_dim=dim)
            num_phi = model.count_params()
            shares[dim] = np.array(
                [100 * models.last_layer_share(num_phi, n, dim) for n in num_classes]
            )
            axes.plot(num_classes, shares[dim], color=color, label=f"d = {dim}")
        for share in paper_values.LAST_LAYER_SHARES:
            axes.plot(share.num_classes, share.percent, "k.", markersize=8)
            axes.annotate(
                f"{share.short_title}: {share.percent:g} % (paper)",
                (share.num_classes, share.percent),
                xytext=(-8, 6),
                ha="right",
                textcoords="offset points",
                fontsize="small",
            )
        axes.set_xscale("log")
        axes.set(
            xlabel="classes n",
            ylabel="share of the last layer in all parameters (%)",
            title="MobileNetV3: the last layer comes to dominate",
            ylim=(0, 100),
        )
        axes.grid(alpha=0.3)
        axes.legend()
    return shares


def figure9(
    task: tasks.Task,
    path: pathlib.Path,
    *,
    num_negatives: Sequence[int] = (5, 10, 20, 40, 80),
    num_batches: int = 4,
    cohort_size: int = 8,
    client_learning_rate: float = 0.1,
    logit_correction: str = "inclusion",
    weights: tff.learning.models.ModelWeights | None = None,
    weights_title: str = "initial weights",
    seed: int = 0,
) -> dict[int, metrics.GradientNoise]:
    """Measures and draws the gradient noise of FedSS against |N_k| (A.3).

    A batch D holds up to 32 images of one client. All K clients of a round have the
    same D and different negatives. The paper does not say K, nor of which model the
    gradients are.

    Args:
        task: The task; D is taken from its clients.
        path: The PNG.
        num_negatives: The values of |N_k|; those above n - |P_k| are left out.
        num_batches: How many D to average over.
        cohort_size: K.
        client_learning_rate: eta: the noise is that of the model's change.
        logit_correction: Of FedSS, see `algorithms.build_fedss`.
        weights: Where the rounds start, [*phi, W]; by default a new model.
        weights_title: What to call these in the title.
        seed: Of the choice of clients and of their draws.

    Returns:
        The noise by |N_k|.

    Raises:
        NothingToDraw: If every |N_k| is above n - |P_k|.
    """
    dataset = task.dataset
    clients = training.cohort(
        seed, 0, dataset.train.client_ids, min(num_batches, dataset.num_clients)
    )
    batches = []
    for client_id in clients:
        examples = task.client(client_id, np.array([seed, 0], np.int32))["data"]
        batches.append(next(iter(examples.batch(_NOISE_BATCH))))
    max_positives = max(len(np.unique(batch["label"])) for batch in batches)
    most = dataset.num_classes - max_positives
    sizes = sorted({m for m in num_negatives if m <= most})
    if not sizes:
        raise NothingToDraw(
            f"every |N_k| of {list(num_negatives)} is above n - |P_k| = {most}"
        )
    build = functools.partial(
        algorithms.build_fedss,
        task.feature_extractor_fn,
        dataset.num_classes,
        max_positives,
        client_optimizer=tff.learning.optimizers.build_sgdm(client_learning_rate),
        server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
        seed=seed,
    )
    full = build(method="full_softmax")
    if weights is None:
        weights = full.get_model_weights(full.initialize())
    noises = {
        m: metrics.gradient_noise(
            full,
            build(method="fedss", num_negatives=m, logit_correction=logit_correction),
            weights,
            [tf.data.Dataset.from_tensor_slices(dict(batch)) for batch in batches],
            cohort_size,
            seed,
        )
        for m in tqdm.tqdm(sizes, desc="gradient noise", unit="|N_k|", disable=None)
    }
    parts = {
        "model": ("all parameters", METHOD_COLORS["fedss"]),
        "feature_extractor": ("phi", METHOD_COLORS["pos_only"]),
        "classifier": ("W", METHOD_COLORS["neg_only"]),
    }
    with plots.png(path) as (_, axes):
        for part, (label, color) in parts.items():
            values = np.array([getattr(noises[m], part) for m in sizes]).T
            mean, std = values.mean(0), _std(values)
            axes.plot(sizes, mean, marker="o", color=color, label=label)
            axes.fill_between(
                sizes, mean - std, mean + std, color=color, alpha=0.2, linewidth=0
            )
        axes.set_xscale("log")
        axes.set_xticks(sizes, map(str, sizes))
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set(
            xlabel="|N_k| (classes)",
            ylabel="mean |g_FedAvg - g_FedSS| per parameter",
            title=f"{dataset.name}: gradient noise at {weights_title}\n"
            f"K = {cohort_size}, {len(batches)} batches of {_NOISE_BATCH} images",
        )
        axes.grid(alpha=0.3)
        axes.legend()
    return noises


def _figure9_of_results(
    results: Results, path: pathlib.Path, load_task: LoadTask
) -> None:
    """Starts from what FullSoftmax has learned, or else from a new model."""
    cell = results.cells.get(_single("full_softmax"))
    run = cell.finished[0] if cell and cell.finished else results.runs[0]
    options = {}
    if run.is_done and run.setting.method == "full_softmax":
        options["weights"] = tff.learning.models.ModelWeights(_load_weights(run), [])
        options["weights_title"] = f"FullSoftmax after round {run.flags['rounds']}"
    sizes = results.num_negatives("fedss")
    if sizes:
        options["num_negatives"] = sizes
    figure9(
        load_task(run.flags),
        path,
        client_learning_rate=float(run.flags["client_learning_rate"]),
        seed=run.seed,
        **options,
    )
