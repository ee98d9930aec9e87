"""Figure 9 of the FedSS paper (A.3): the gradient noise of sampled negatives."""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from experiments.common import plots
from experiments.fedss.model_figures import LoadTask, load_weights, number_of
from experiments.fedss.result_figures import NothingToDraw
from experiments.fedss.table_results import Results, Setting
from tff_fedss import algorithms, metrics, models, tasks, training

_NOISE_BATCH = 32  # |D| of A.3


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
    same D and different negatives. The paper does not state K, nor the model of the
    gradients. It calls the decrease exponential: the title has the R^2 of the
    logarithms for fits of e^(-b m) and m^-b to the mean of all parameters.

    Args:
        task: The task, whose clients have D.
        path: The PNG.
        num_negatives: The values of |N_k|; those above n - |P_k| are left out.
        num_batches: Number of D to average over.
        cohort_size: K.
        client_learning_rate: eta: the noise is that of the model's change.
        logit_correction: Correction of FedSS, see `algorithms.build_fedss`.
        initial_norm: Norm of the rows of a new model's W.
        weights: The initial weights of rounds, [*phi, W]; by default a new model.
        weights_title: Their name in the title.
        seed: Seed of the choice of clients and of their draws.

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
    """Fits a e^(-b m), "exponentially" as in A.3, and a m^-b to gradient noise.

    Returns:
        The laws by formula.
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
) -> dict[int, metrics.GradientNoise]:
    """Draws `figure9` of FullSoftmax's trained model, or of a new one.

    The model is new if no such run is finished, or if its weights are missing, as in
    published runs. K, the learning rate and the seed are the run's.

    Args:
        results: The runs.
        path: The PNG.
        load_task: Loads the task of a run from its flags.
        **options: Options of `figure9`, instead of the run's own.

    Raises:
        NothingToDraw: See `figure9`.
        InvalidInputError: If the weights of a run are damaged.
    """
    cell = results.cells.get(Setting("full_softmax"))
    run = cell.finished[0] if cell and cell.finished else results.runs[0]
    own = {
        "client_learning_rate": float(run.flags["client_learning_rate"]),
        "seed": run.seed,
    }
    sizes = results.num_negatives("fedss")
    if sizes:
        own["num_negatives"] = sizes
    if (run.path / "full_softmax.npz").exists():
        own["weights"] = tff.learning.models.ModelWeights(load_weights(run), [])
        own["weights_title"] = f"{run.setting} after round {run.num_rounds}"
    if "clients_per_round" in run.flags:
        own["cohort_size"] = number_of(run.flags, "clients_per_round", int)
    if "initial_norm" in run.flags:
        own["initial_norm"] = number_of(run.flags, "initial_norm", float)
    return figure9(load_task(run.flags), path, **{**own, **options})
