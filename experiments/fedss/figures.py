"""Figures 7 to 9 of the FedSS paper; `./run.sh table` draws the others.

    ./run.sh python -m experiments.fedss.figures --figure=7 \
        --runs=DIR/omniglot_fedss_m5/seed0,DIR/omniglot_neg_only_m5/seed0
    ./run.sh python -m experiments.fedss.figures --figure=8
    ./run.sh python -m experiments.fedss.figures --figure=9 \
        --runs=DIR/omniglot_full_softmax/seed0

Figure 7 shows confusion matrices at the weights of runs. Figure 8 needs no run.
Figure 9 shows the gradient noise at the weights of a run or, without these, of a new
model. The data are those of the runs.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import sklearn.metrics
import tensorflow as tf
import tensorflow_federated as tff
from absl import flags as absl_flags

from experiments.common import cells, config, plots, program, results
from experiments.fedss import pages, run_config, run_methods, run_parts
from experiments.fedss.methods import METHODS
from experiments.fedss.run_config import RunConfig
from tff_fedss import algorithms, files, metrics, models, progress, tasks, training
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError

_CONFUSED_PAIRS = 6  # that are shown as pictures
_COUNTED_CLIENTS = 20  # of figure 7's means
_NOISE_BATCH = 32  # |D| of A.3
# Data set, n, and the last layer's percentage of all parameters at d = 64 (4.3).
_LAST_LAYER_SHARES = (("SOP", 11_318, 16.0), ("Landmarks", 2028, 3.4))


def load(
    runs: Sequence[results.Run], **given: Any
) -> tuple[RunConfig, tasks.FederatedTask]:
    """Loads the data of runs.

    Args:
        runs: Runs of the same data.
        given: Flags that replace those of the first run.

    Returns:
        The flags of the first run, none unset, and its task.

    Raises:
        InvalidInputError: If the data are missing, damaged or not those of all runs.
    """
    name, flags = runs[0].name, runs[0].flags
    known = RunConfig().flags()
    own = {flag: text for flag, text in flags.items() if flag in known}
    # Nothing is written, but the folder is required.
    try:
        run_flags = config.parse(RunConfig(results_dir="."), *cells.as_arguments(own))
    except absl_flags.Error as error:
        where = runs[0].source.at("flags.txt")
        raise InvalidInputError(f"{where}: {error}.") from error
    run_flags = run_config.with_defaults(dataclasses.replace(run_flags, **given))
    run_flags, dataset, *_ = run_methods.load(run_flags)
    run_flags, task, _ = run_parts.make_task(run_flags, [name], dataset)
    fingerprint = task.fingerprint()
    for run in runs:
        if (run.origin or {}).get("data", fingerprint) != fingerprint:
            raise InvalidInputError(
                f"{run.path} is a run on other data than those at "
                f"--data_dir={run_flags.data_dir}."
            )
    rate = run_flags.learning_rate(name)
    return dataclasses.replace(run_flags, client_learning_rate=rate), task


# --- Figure 7 ---------------------------------------------------------------------


def figure7(
    runs: Sequence[results.Run],
    task: tasks.FederatedTask,
    path: pathlib.Path,
    num_negatives: int,
) -> list[np.ndarray]:
    """Draws the confusion matrices of runs on the first client's classes.

    The images are the client's own. Below are pictures of the most frequent confusions;
    above, the share of correct images, and the number of classes of P_k that are
    predicted at all, averaged over 20 clients: classes with collapsed representations
    are predicted as one (Section 3.4).

    Args:
        runs: Runs of the same data; the paper's are of FedSS and NegOnly.
        task: Their task.
        path: The PNG.
        num_negatives: m of the first run, for the title if it draws negatives.

    Returns:
        The counts int64[|P_k|, |P_k|] of each run; rows are true classes.

    Raises:
        InvalidInputError: If the weights of a run are missing or damaged.
    """
    dataset = task.dataset
    client_id = dataset.train.client_ids[0]
    counted = dataset.train.client_ids[:_COUNTED_CLIENTS]
    positives = np.asarray(dataset.positives(client_id))
    images = _images_of(dataset, client_id)["image"].numpy()
    matrices = []
    options = {"figsize": (4.5 * len(runs), 6.8), "height_ratios": (2.4, 1)}
    with plots.figure(path, 2, len(runs), squeeze=False, **options) as (figure, grid):
        for run, axes, below in zip(runs, *grid, strict=True):
            predict, title = _predictor(task, run), METHODS[run.name].title
            true, predicted = predict(client_id)
            of_clients = [
                predict(one)
                for one in progress.bar(title, unit="clients", items=counted)
            ]
            rates = [100 * np.mean(right == found) for right, found in of_clients]
            num_found = np.mean([len(np.unique(found)) for _, found in of_clients])
            matrix = sklearn.metrics.confusion_matrix(
                true, predicted, labels=np.arange(len(positives))
            )
            matrices.append(matrix)
            shares = 100 * matrix / matrix.sum(1, keepdims=True)
            image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
            axes.set(
                xlabel="predicted class (place in P_k)",
                ylabel="true class (place in P_k)",
            )
            axes.set_title(
                f"{title}: {100 * np.trace(matrix) / matrix.sum():.0f} % right\n"
                f"mean of {len(counted)} clients: {np.mean(rates):.0f} % right, "
                f"{num_found:.1f} classes predicted",
                fontsize="small",
            )
            axes.locator_params(integer=True)
            axes.grid(visible=False)
            _draw_confused(below, images, true, predicted)
        label = "part of the true class's images (%)"
        figure.colorbar(image, ax=list(grid[0]), label=label)
        sizes = f"|P_k| = {len(positives)}"
        if METHODS[runs[0].name].draws_negatives:
            sampled = min(len(positives) + num_negatives, dataset.num_classes)
            sizes += f", |S_k| = {sampled}"
        title = f"{dataset.name}: {client_id}'s own images, {sizes}"
        figure.suptitle(title, parse_math=False)
    return matrices


def _images_of(dataset: FederatedDataset, client_id: str) -> Mapping[str, tf.Tensor]:
    examples = dataset.client_examples(client_id, np.array([0, 0], np.int32))
    (batch,) = examples.batch(dataset.num_examples(client_id))
    return batch


def _predictor(
    task: tasks.FederatedTask, run: results.Run
) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
    """Returns a function to true and predicted positions in P_k of client images."""
    path = run.path / f"{run.name}.npz"
    model = task.feature_extractor_fn()
    models.load_pretrained(model, path)
    classifier = training.read_arrays(path)["W"]

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

    Images are uint8[examples, h, w, c], classes int64[examples].
    """
    axes.set_axis_off()
    wrong = np.flatnonzero(true != predicted)
    pairs = collections.Counter(zip(true[wrong], predicted[wrong], strict=True))
    if not pairs:
        axes.set_title("nothing is confused", fontsize="small")
        return
    shown = pairs.most_common(_CONFUSED_PAIRS)
    height, width, channels = images.shape[1:]
    step = width + 2  # The margin between pictures.
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


# --- Figure 8 ---------------------------------------------------------------------


def figure8(path: pathlib.Path) -> dict[int, np.ndarray]:
    """Draws the share of the last layer in MobileNetV3 by n, for d = 64 and 1280 (A.1).

    It takes about 15 seconds, to build the networks and count parameters.

    Returns:
        For each d the shares in percent at the points of the curve.
    """
    num_classes = np.unique(np.geomspace(10, 1e6, 200).astype(int))
    shares = {}
    curves = []
    for i, dim in enumerate((64, 1280)):
        num_phi = models.paper_feature_extractor(embedding_dim=dim).count_params()
        shares[dim] = np.array(
            [100 * models.last_layer_share(num_phi, n, dim) for n in num_classes]
        )
        look = plots.style(i)._replace(marker="")
        curves.append(plots.Curve(f"d = {dim}", num_classes, shares[dim], look))
    panel = plots.Panel(
        curves,
        "classes n",
        "share of the last layer in all parameters (%)",
        "MobileNetV3: the last layer comes to dominate",
        log="x",
    )
    with plots.figure(path) as (_, axes):
        plots.draw_panel(axes, panel)
        for title, n, percent in _LAST_LAYER_SHARES:
            axes.plot(n, percent, "ko", mfc="black", ms=4)
            axes.annotate(
                f"{title}: {percent:g} % (paper)",
                (n, percent),
                xytext=(8, -4),
                textcoords="offset points",
                fontsize="small",
            )
        axes.set_ylim(0, 100)
        axes.legend()
    return shares


# --- Figure 9 ---------------------------------------------------------------------


def figure9(
    task: tasks.FederatedTask,
    path: pathlib.Path,
    num_negatives: Sequence[int],
    num_batches: int,
    flags: RunConfig,
    weights: tff.learning.models.ModelWeights | None = None,
    weights_title: str = "initial weights",
) -> dict[int, metrics.GradientNoise]:
    """Measures and draws the gradient noise of FedSS against |N_k| (A.3).

    A batch D holds up to 32 images of one client. All K clients of a round have the
    same D and different negatives. The paper does not state K, nor the model of the
    gradients. It calls the decrease exponential: the title has the R^2 of the
    logarithms for fits of e^(-b m) and m^-b to the mean of all parameters.

    Args:
        task: The task, whose clients have D.
        path: The PNG.
        num_negatives: The values of |N_k|; those above n - |P_k| are left out.
        num_batches: Number of D to average over.
        flags: Those of a run: K, the client learning rate (the noise is that of the
            model's change), the scale of logits, the norm of W's first rows, and the
            seed.
        weights: The initial weights of rounds, [*phi, W]; by default a new model.
        weights_title: Their name in the title.

    Returns:
        The noise by |N_k|.

    Raises:
        InvalidInputError: If every |N_k| is above n - |P_k|.
    """
    cohort_size, seed = flags.clients_per_round, flags.seed
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
        raise InvalidInputError(
            f"--num_negatives: every |N_k| of {list(num_negatives)} is above n - |P_k| "
            f"= {most}."
        )

    def build(method, num_negatives=0):
        sgd = tff.learning.optimizers.build_sgdm
        return algorithms.build_fedss(
            task.feature_extractor_fn,
            dataset.num_classes,
            algorithms.ClassSets(max_positives, num_negatives),
            algorithms.ClientTraining(
                sgd(flags.client_learning_rate), logit_scale=flags.logit_scale
            ),
            algorithms.ServerUpdate(sgd(1.0)),
            method=method,
            seed=seed,
            initial_norm=flags.initial_norm,
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
        for m in progress.bar("Gradient noise", unit="|N_k|", items=sizes)
    }
    curves = []
    parts = {"model": "all parameters", "feature_extractor": "phi", "classifier": "W"}
    for i, (part, label) in enumerate(parts.items()):
        values = np.array([getattr(noises[m], part) for m in sizes]).T
        look = plots.style(i)
        curves.append(
            plots.Curve(label, sizes, values.mean(0), look, plots.std_of(values))
        )
    name = dataset.name.replace("$", r"\$")  # Or it could be taken for a formula.
    title = f"{name}: gradient noise at {weights_title}"
    if len(sizes) > 2 and curves[0].y.min() > 0:
        fits = [f"{law}: {x:.3f}" for law, x in laws(sizes, curves[0].y).items()]
        title += f"\nR$^2$ of {', '.join(fits)}"
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


def laws(sizes: Sequence[int], noise: Sequence[float]) -> dict[str, float]:
    """Fits a e^(-b m), "exponentially" as in A.3, and a m^-b to gradient noise.

    Returns:
        By formula R^2, the share of the variance of the logarithms that it explains.
    """
    m, y = np.asarray(sizes, float), np.log(np.asarray(noise, float))
    laws_of = {"$e^{-bm}$": m, "$m^{-b}$": np.log(m)}
    return {law: float(np.corrcoef(x, y)[0, 1] ** 2) for law, x in laws_of.items()}


# --- The program ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """The flags of the program."""

    figure: str = config.flag("8", "The number of the figure.", choices=("7", "8", "9"))
    runs: tuple[str, ...] = config.flag(
        (), "The folders of the runs: two for figure 7, one for figure 9."
    )
    output_dir: str = config.flag("results/figures", "The output folder.")
    data_dir: str | None = config.flag(
        None, "The folder of the data set. Default: that of the runs."
    )
    num_negatives: tuple[int, ...] = config.flag(
        (5, 10, 20, 40, 80), "The values of |N_k| of figure 9.", low=1
    )
    clients_per_round: int | None = config.flag(
        None,
        "K of figure 9. Default: the run's. The paper's runs on SOP have 32.",
        low=1,
    )
    num_batches: int = config.flag(
        4,
        "The number of batches of 32 images, each of one client, that figure 9 "
        "averages over.",
        low=1,
    )


def main(config: Config) -> None:
    """Draws the figure and prints its path."""
    runs = [results.read_run(pathlib.Path(x), pages.KIND) for x in config.runs]
    if config.figure != "8" and not runs:
        raise InvalidInputError(f"--figure={config.figure} needs --runs.")
    folder = files.make_folder(config.output_dir, f"--output_dir={config.output_dir}")
    path = folder / f"figure{config.figure}.png"
    if config.figure == "8":
        figure8(path)
    else:
        given = {x: getattr(config, x) for x in ("data_dir", "clients_per_round")}
        given = {name: value for name, value in given.items() if value is not None}
        flags, task = load(runs, **given)
        if config.figure == "7":
            figure7(runs, task, path, flags.num_negatives)
        else:
            sizes, num_batches = config.num_negatives, config.num_batches
            figure9(task, path, sizes, num_batches, flags, *_start(runs[0]))
    print(f"Figure {config.figure}: {path}")


def _start(run: results.Run) -> tuple:
    """Returns the last two arguments of `figure9`, if the run has kept its weights."""
    path = run.path / f"{run.name}.npz"
    if not path.exists():
        return ()
    arrays = training.read_arrays(path)
    phi = [arrays[name] for name in sorted(arrays) if name.startswith("phi_")]
    weights = [*phi, arrays["W"]]
    kept = run.outcomes.get(run.name, {}).get("kept_round", run.rounds_done)
    title = f"{METHODS[run.name].title} after round {kept}"
    return tff.learning.models.ModelWeights(weights, []), title


if __name__ == "__main__":
    program.run(main, Config())
