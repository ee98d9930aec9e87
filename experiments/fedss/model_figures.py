"""Figures 7 to 9 of the FedSS paper: models at work on data, and their sizes."""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from experiments.common import plots
from experiments.fedss.methods import METHODS
from experiments.fedss.result_figures import NothingToDraw
from experiments.fedss.run_config import RunConfig
from experiments.fedss.table_results import Results, Run, Setting
from tff_fedss import algorithms, metrics, models, tasks, training
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError

_NOISE_BATCH = 32  # |D| of A.3
_CONFUSED_PAIRS = 6  # that are shown as pictures
_COUNTED_CLIENTS = 20  # of figure 7's means


class _Share(NamedTuple):
    """A share of the parameters that section 4.3 prints.

    Attributes:
        short_title: The data set.
        num_classes: n.
        percent: The last layer's part of all parameters, at d = 64.
    """

    short_title: str
    num_classes: int
    percent: float


_LAST_LAYER_SHARES = (_Share("SOP", 11_318, 16.0), _Share("Landmarks", 2028, 3.4))

LoadTask = Callable[[Mapping[str, str]], tasks.FederatedTask]


def load_task_of_flags(flags: Mapping[str, str]) -> tasks.FederatedTask:
    """Loads the task that a run had.

    Args:
        flags: Of the run, all of them.

    Raises:
        NothingToDraw: If the data are not there.
        InvalidInputError: If a flag that must be a number is none.
    """
    options = {
        field.name: _option(flags, field.name)
        for field in dataclasses.fields(tasks.DataOptions)
        if field.name in flags
    }
    needed = {"data_dir": None, "partition": None, "image_size": None}
    try:
        dataset = tasks.FAMILIES[flags["dataset"]].load(
            tasks.DataOptions(kind=flags["task"], **{**needed, **options})
        )
    except InvalidInputError as error:
        raise NothingToDraw(f"the data of the runs: {error}") from error
    return tasks.KINDS[flags["task"]](
        dataset,
        functools.partial(
            models.FEATURE_EXTRACTORS[flags["model"]],
            dataset.image_shape,
            _number(flags, "embedding_dim", int),
            seed=_number(flags, "seed", int),
        ),
    )


def _option(flags: Mapping[str, str], name: str) -> Any:
    """Reads an option of the data as the flag that it is."""
    kind = RunConfig.flags()[name].kind
    if kind is bool:
        return flags[name] == "true"
    return _number(flags, name, kind) if kind in (int, float) else flags[name]


def _number(flags: Mapping[str, str], name: str, kind: type) -> int | float:
    try:
        return kind(flags[name])
    except ValueError as error:
        raise InvalidInputError(
            f"a run has --{name}={flags[name]} in its flags.txt, expected a number."
        ) from error


def load_weights(run: Run) -> list[np.ndarray]:
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
    the client's own. Below are pictures of what is confused most often; above, how many
    images are right, and how many of P_k are predicted at all, in the mean over
    20 clients: representations that collapse onto one are predicted as one
    (Section 3.4).

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
    task = load_task(runs["fedss"].flags)
    dataset = task.dataset
    client_id = client_id or dataset.train.client_ids[0]
    counted = dataset.train.client_ids[:_COUNTED_CLIENTS]
    positives = np.asarray(dataset.positives(client_id))
    images = _images_of(dataset, client_id)["image"].numpy()
    matrices, predictions, means = {}, {}, {}
    for method, run in runs.items():
        predict = _predictor(task, run)
        predictions[method] = predict(client_id)
        matrices[method] = metrics.confusion_matrix(
            *predictions[method], len(positives)
        )
        of_clients = [
            predict(one)
            for one in tqdm.tqdm(counted, desc=METHODS[method].title, unit="clients")
        ]
        right = np.mean([np.mean(true == found) for true, found in of_clients])
        num_found = np.mean([len(np.unique(found)) for _, found in of_clients])
        means[method] = f"{100 * right:.0f} % right, {num_found:.1f} classes predicted"
    m = runs["fedss"].setting.num_negatives
    with plots.figure(path, 2, 2, figsize=(9, 6.8), height_ratios=(2.4, 1)) as (
        figure,
        (panels, below),
    ):
        for axes, method in zip(below, matrices, strict=True):
            _draw_confused(axes, images, *predictions[method])
        for axes, (method, matrix) in zip(panels, matrices.items(), strict=True):
            rates = 100 * matrix / matrix.sum(1, keepdims=True)
            image = axes.imshow(rates, cmap="Blues", vmin=0, vmax=100)
            right = 100 * np.trace(matrix) / matrix.sum()
            axes.set(
                xlabel="predicted class (place in P_k)",
                ylabel="true class (place in P_k)",
                title=f"{METHODS[method].title}: {right:.0f} % right\n"
                f"mean of {len(counted)} clients: {means[method]}",
            )
            axes.title.set_fontsize("small")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(plt.MaxNLocator(integer=True))
            axes.grid(visible=False)
        figure.colorbar(image, ax=panels, label="part of the true class's images (%)")
        figure.suptitle(
            f"{results.dataset_title}: {client_id}'s own images, |P_k| = "
            f"{len(positives)}, |S_k| = {len(positives) + m}"
        )
    return matrices


def _images_of(dataset: FederatedDataset, client_id: str) -> Mapping[str, tf.Tensor]:
    examples = dataset.client_examples(client_id, np.array([0, 0], np.int32))
    (batch,) = examples.batch(dataset.num_examples(client_id))
    return batch


def _predictor(
    task: tasks.FederatedTask, run: Run
) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
    """Returns what gives the true and predicted places in P_k of a client's images."""
    *phi, classifier = load_weights(run)
    model = task.feature_extractor_fn()
    theirs = [np.shape(array) for array in (*phi, classifier)]
    ours = [
        *(tuple(v.shape) for v in model.trainable_variables),
        (task.dataset.num_classes, model.output_shape[-1]),
    ]
    if theirs != ours:
        raise InvalidInputError(
            f"{run.path / run.setting.method}.npz has {len(phi)} arrays of phi and W "
            f"of shape {theirs[-1]}; they do not fit the model, which has "
            f"{len(ours) - 1} and {ours[-1]}."
        )
    for variable, value in zip(model.trainable_variables, phi, strict=True):
        variable.assign(value)

    def predict(client_id: str) -> tuple[np.ndarray, np.ndarray]:
        batch = _images_of(task.dataset, client_id)
        return metrics.client_predictions(
            model(tf.cast(batch["image"], tf.float32), training=False).numpy(),
            batch["label"].numpy(),
            classifier,
            np.asarray(task.dataset.positives(client_id)),
        )

    return predict


def _draw_confused(
    axes: plt.Axes, images: np.ndarray, true: np.ndarray, predicted: np.ndarray
) -> None:
    """Draws images of the pairs of classes that are confused most often.

    Args:
        axes: Where.
        images: uint8[examples, h, w, c].
        true: int64[examples], their classes.
        predicted: Likewise, what they are taken for.
    """
    axes.set_axis_off()
    wrong = np.flatnonzero(true != predicted)
    pairs = collections.Counter(zip(true[wrong], predicted[wrong], strict=True))
    if not pairs:
        axes.set_title("nothing is confused", fontsize="small")
        return
    shown = pairs.most_common(_CONFUSED_PAIRS)
    height, width, channels = images.shape[1:]
    step = width + 2  # A margin between pictures.
    canvas = np.full([2 * height + 2, _CONFUSED_PAIRS * step, channels], 255, np.uint8)
    for i, ((theirs, taken_for), count) in enumerate(shown):
        first = wrong[(true[wrong] == theirs) & (predicted[wrong] == taken_for)][0]
        like = np.flatnonzero(true == taken_for)[0]
        for top, number in ((0, first), (height + 2, like)):
            canvas[top : top + height, i * step : i * step + width] = images[number]
        label = f"{theirs} as {taken_for}\n{count}x"
        axes.text(i * step + width / 2, -2, label, ha="center", fontsize="x-small")
    axes.imshow(canvas, cmap="gray", vmin=0, vmax=255)
    axes.text(
        0.5,
        -0.02,
        "above: an image; below: one of the class that it is taken for",
        transform=axes.transAxes,
        ha="center",
        va="top",
        fontsize="x-small",
    )


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
    curves = []
    for i, dim in enumerate((64, 1280)):
        model = models.paper_feature_extractor(embedding_dim=dim)
        num_phi = model.count_params()
        shares[dim] = np.array(
            [100 * models.last_layer_share(num_phi, n, dim) for n in num_classes]
        )
        look = plots.style(i)._replace(marker="")
        curves.append(plots.Curve(f"d = {dim}", num_classes, shares[dim], look))
    with plots.figure(path) as (_, axes):
        panel = plots.Panel(
            curves,
            "classes n",
            "share of the last layer in all parameters (%)",
            "MobileNetV3: the last layer comes to dominate",
            log="x",
        )
        plots.draw_panel(axes, panel)
        for share in _LAST_LAYER_SHARES:
            axes.plot(share.num_classes, share.percent, "ko", mfc="black", ms=4)
            axes.annotate(
                f"{share.short_title}: {share.percent:g} % (paper)",
                (share.num_classes, share.percent),
                xytext=(8, -4),
                textcoords="offset points",
                fontsize="small",
            )
        axes.set_ylim(0, 100)
        axes.legend()
    return shares


def figure9(
    task: tasks.FederatedTask,
    path: pathlib.Path,
    *,
    num_negatives: Sequence[int] = (5, 10, 20, 40, 80),
    num_batches: int = 4,
    cohort_size: int = 8,
    client_learning_rate: float = 0.1,
    logit_correction: str = "inclusion",
    initial_norm: float = models.INITIAL_NORM,
    weights: tff.learning.models.ModelWeights | None = None,
    weights_title: str = "initial weights",
    seed: int = 0,
) -> dict[int, metrics.GradientNoise]:
    """Measures and draws the gradient noise of FedSS against |N_k| (A.3).

    A batch D holds up to 32 images of one client. All K clients of a round have the
    same D and different negatives. The paper does not say K, nor of which model the
    gradients are. It calls the fall exponential: the title says how well e^(-b m) and
    m^-b fit the mean of all parameters, by the R^2 of the logarithms.

    Args:
        task: The task; D is taken from its clients.
        path: The PNG.
        num_negatives: The values of |N_k|; those above n - |P_k| are left out.
        num_batches: How many D to average over.
        cohort_size: K.
        client_learning_rate: eta: the noise is that of the model's change.
        logit_correction: Of FedSS, see `algorithms.build_fedss`.
        initial_norm: Of the rows of a new model's W.
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

    def build(method, num_negatives=0):
        sgd = tff.learning.optimizers.build_sgdm
        return algorithms.build_fedss(
            task.feature_extractor_fn,
            dataset.num_classes,
            algorithms.ClassSets(max_positives, num_negatives, logit_correction),
            algorithms.ClientTraining(sgd(client_learning_rate)),
            algorithms.ServerUpdate(sgd(1.0)),
            method=method,
            seed=seed,
            initial_norm=initial_norm,
        )

    full = build("full_softmax")
    if weights is None:
        weights = full.get_model_weights(full.initialize())
    noises = {
        m: metrics.gradient_noise(
            full,
            build("fedss", m),
            weights,
            [tf.data.Dataset.from_tensor_slices(dict(batch)) for batch in batches],
            cohort_size,
            seed,
        )
        for m in tqdm.tqdm(sizes, desc="gradient noise", unit="|N_k|", disable=None)
    }
    curves = []
    parts = {"model": "all parameters", "feature_extractor": "phi", "classifier": "W"}
    for i, (part, label) in enumerate(parts.items()):
        values = np.array([getattr(noises[m], part) for m in sizes]).T
        look = plots.style(i)
        curves.append(
            plots.Curve(label, sizes, values.mean(0), look, plots.std_of(values))
        )
    title = f"{dataset.name}: gradient noise at {weights_title}"
    if len(sizes) > 2 and curves[0].y.min() > 0:
        fits = laws(sizes, curves[0].y)
        title += "\nR$^2$ of " + ", ".join(
            f"{law}: {fit.r_squared:.3f}" for law, fit in fits.items()
        )
    panel = plots.Panel(
        curves,
        "|N_k| (classes)",
        "mean |g_FedAvg - g_FedSS| per parameter",
        title,
        log="x",
        from_zero=True,
    )
    with plots.figure(path) as (figure, axes):
        plots.draw_panel(axes, panel)
        axes.set_xticks(sizes, map(str, sizes))
        axes.legend()
        figure.supxlabel(
            f"K = {cohort_size}; lines: mean of {len(batches)} batches of "
            f"{_NOISE_BATCH} images; bands: ± their standard deviation",
            fontsize="small",
        )
    return noises


class Law(NamedTuple):
    """A law of decrease, fitted to logarithms by least squares.

    Attributes:
        rate: b.
        r_squared: The share of the variance of the logarithms that it explains.
    """

    rate: float
    r_squared: float


def laws(sizes: Sequence[int], noise: Sequence[float]) -> dict[str, Law]:
    """Fits a e^(-b m), "exponentially" as A.3 has it, and a m^-b to gradient noise.

    Args:
        sizes: m, at least three, all different.
        noise: Positive, of each.

    Returns:
        By the law's formula.
    """
    m, y = np.asarray(sizes, float), np.log(np.asarray(noise, float))
    found = {}
    for name, x in (("$e^{-bm}$", m), ("$m^{-b}$", np.log(m))):
        slope, intercept = np.polyfit(x, y, 1)
        rest = np.sum((y - slope * x - intercept) ** 2)
        total = np.sum((y - y.mean()) ** 2)
        found[name] = Law(-float(slope), float(1 - rest / total) if total else 1.0)
    return found


def figure9_of_results(
    results: Results, path: pathlib.Path, load_task: LoadTask, **options: Any
) -> None:
    """Draws `figure9` of what FullSoftmax has learned, or else of a new model.

    It is of a new model if no such run is finished, or its weights are not there, as of
    packed runs.

    Args:
        results: The runs.
        path: The PNG.
        load_task: Loads the task that the flags of a run stand for.
        **options: Of `figure9`, in the place of the run's own.

    Raises:
        NothingToDraw: As `figure9`.
        InvalidInputError: If the weights of a run are damaged.
    """
    cell = results.cells.get(Setting("full_softmax"))
    run = cell.finished[0] if cell and cell.finished else results.runs[0]
    sizes = results.num_negatives("fedss")
    if sizes:
        options.setdefault("num_negatives", sizes)
    is_trained = (run.path / "full_softmax.npz").exists()
    figure9_of_run(run, path, load_task, is_trained, **options)


def figure9_of_run(
    run: Run, path: pathlib.Path, load_task: LoadTask, is_trained: bool, **options: Any
) -> dict[int, metrics.GradientNoise]:
    """Draws `figure9` with the K, the learning rate and the seed of a run.

    Args:
        run: The run.
        path: The PNG.
        load_task: Loads the task that the flags of a run stand for.
        is_trained: Whether at the weights with which it ended, or at a new model's.
        **options: Of `figure9`, in the place of the run's own.

    Returns:
        As `figure9`.

    Raises:
        NothingToDraw: As `figure9`, or if the run's weights are missing.
        InvalidInputError: If they are damaged.
    """
    own = {"client_learning_rate": float(run.flags["client_learning_rate"])}
    if is_trained:
        own["weights"] = tff.learning.models.ModelWeights(load_weights(run), [])
        own["weights_title"] = f"{run.setting} after round {run.num_rounds}"
    if "clients_per_round" in run.flags:
        own["cohort_size"] = _number(run.flags, "clients_per_round", int)
    if "initial_norm" in run.flags:
        own["initial_norm"] = _number(run.flags, "initial_norm", float)
    own["seed"] = run.seed
    return figure9(load_task(run.flags), path, **{**own, **options})
