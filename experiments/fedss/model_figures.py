"""Figures 7 and 8 of the FedSS paper: models' predictions, and their sizes."""

import collections
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tqdm
from absl import flags as absl_flags

from experiments.common import cells, config, plots
from experiments.fedss import run_parts
from experiments.fedss.methods import METHODS
from experiments.fedss.result_figures import NothingToDraw
from experiments.fedss.run_config import RunConfig
from experiments.fedss.table_results import Results, Run, Setting
from tff_fedss import metrics, models, tasks, training
from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.errors import InvalidInputError

_CONFUSED_PAIRS = 6  # that are shown as pictures
_COUNTED_CLIENTS = 20  # of figure 7's means


class _Share(NamedTuple):
    """A share of the parameters printed in section 4.3.

    Attributes:
        short_title: The data set.
        num_classes: n.
        percent: The last layer's percentage of all parameters, at d = 64.
    """

    short_title: str
    num_classes: int
    percent: float


_LAST_LAYER_SHARES = (_Share("SOP", 11_318, 16.0), _Share("Landmarks", 2028, 3.4))

LoadTask = Callable[[Mapping[str, str]], tasks.FederatedTask]


def load_task_of_flags(flags: Mapping[str, str]) -> tasks.FederatedTask:
    """Loads the task of a run.

    Raises:
        NothingToDraw: If the data are missing.
        InvalidInputError: If a flag that must be a number is not one.
    """
    known = RunConfig().flags()
    own = {name: text for name, text in flags.items() if name in known}
    try:
        # Nothing is written, but the folder is required.
        run = config.parse(RunConfig(results_dir="."), *cells.as_arguments(own))
        dataset = run_parts.load_dataset(run)
    except absl_flags.Error as error:
        raise InvalidInputError(f"the flags.txt of a run: {error}") from error
    except InvalidInputError as error:
        raise NothingToDraw(f"the data of the runs: {error}") from error
    return tasks.KINDS[run.task](
        dataset,
        functools.partial(
            models.FEATURE_EXTRACTORS[run.model],
            dataset.image_shape,
            run.embedding_dim,
            seed=run.seed,
        ),
    )


def number_of(flags: Mapping[str, str], name: str, kind: type) -> int | float:
    """Reads a number from the flags of a run.

    Raises:
        InvalidInputError: If it is not a number.
    """
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
    results: Results, path: pathlib.Path, load_task: LoadTask
) -> dict[str, np.ndarray]:
    """Draws confusion matrices of FedSS and NegOnly on the first client's classes.

    Both have the smallest m that both were run with, and the same seed. The images are
    the client's own. Below are pictures of the most frequent confusions; above, the
    share of correct images, and the number of classes of P_k that are predicted at all,
    averaged over 20 clients: classes with collapsed representations are predicted as
    one (Section 3.4).

    Args:
        results: The runs.
        path: The PNG.
        load_task: Loads the task of a run from its flags.

    Returns:
        The counts int64[|P_k|, |P_k|] by method; rows are true classes.

    Raises:
        NothingToDraw: If there is no such pair of finished runs, or no data.
        InvalidInputError: If the weights of a run are damaged.
    """
    runs = _smallest_pair(results)
    task = load_task(runs["fedss"].flags)
    dataset = task.dataset
    client_id = dataset.train.client_ids[0]
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
    """Returns a function to true and predicted positions in P_k of client images."""
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
        axes: The axes to draw on.
        images: uint8[examples, h, w, c].
        true: int64[examples], their classes.
        predicted: int64[examples], the classes that the model predicts.
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


def _smallest_pair(results: Results) -> dict[str, Run]:
    for m in results.num_negatives("fedss"):
        for corrected in (True, False):
            finished = {}
            for method in ("fedss", "neg_only"):
                cell = results.cells.get(Setting(method, m, corrected))
                # NegOnly may have been run with one correction only.
                cell = cell or results.cells.get(Setting(method, m))
                finished[method] = {r.seed: r for r in cell.finished} if cell else {}
            seeds = sorted({*finished["fedss"]} & {*finished["neg_only"]})
            if seeds:
                return {method: runs[seeds[0]] for method, runs in finished.items()}
    raise NothingToDraw("no FedSS and NegOnly with the same m and seed are finished")


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
