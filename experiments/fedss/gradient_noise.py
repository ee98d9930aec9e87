"""Figure 9 (A.3) of one finished run: the noise that sampled negatives bring.

    ./run.sh gradient_noise --run=results/table2_mini/omniglot_full_softmax/seed0 \
        --num_negatives=5,10,20,40,80,160,320 --clients_per_round=32

measures |g_FedAvg - g_FedSS| at the weights with which the run ended, on its own data,
and writes figure9.png and .pdf and gradient_noise.csv: a row for each |N_k|, the mean
over the batches of all parameters, of phi's and of W's. It says how well an exponential
and a power of |N_k| fit. No training; half a minute for each |N_k| on 2 cores, at mini
size and 16 batches.
"""

import dataclasses
import pathlib
from collections.abc import Mapping

import numpy as np

from experiments.common import config, output_files, program, results, table
from experiments.fedss import model_figures, table_results
from tff_fedss.errors import InvalidInputError

_PARTS = {"model": "all parameters", "feature_extractor": "phi", "classifier": "W"}


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    run: str = config.flag(
        None,
        "The results folder of a finished run of `./run.sh train`, with its weights. "
        "The paper compares with FullSoftmax.",
        needed="DIR is needed.",
    )
    data_dir: str | None = config.flag(
        None, "Where its data set is now. Default: where the run had it."
    )
    output_dir: str | None = config.flag(
        None, "Where to write. Default: gradient_noise in the run's folder."
    )
    num_negatives: tuple[str, ...] = config.flag(
        ("5", "10", "20", "40", "80"), "The values of |N_k|."
    )
    clients_per_round: int | None = config.flag(
        None,
        "K: so many clients hold the same 32 images and draw their own negatives. "
        "Default: the run's. The paper does not say its; its runs on SOP have 32.",
        low=1,
    )
    num_batches: int = config.flag(
        4, "So many times 32 images, of a client each, are averaged over.", low=1
    )


def main(config: Config) -> None:
    """Measures and writes."""
    sizes = sorted({_size(text) for text in config.num_negatives})
    run = results.read_run(
        results.RunFolder(pathlib.Path(config.run)),
        table_results.KIND,
        table_results.Run,
    )
    if not run.is_done:
        raise InvalidInputError(f"--run={config.run} is not finished.")
    moved = {} if config.data_dir is None else {"data_dir": config.data_dir}
    options = {}
    if config.clients_per_round is not None:
        options["cohort_size"] = config.clients_per_round
    folder = output_files.create_folder(
        config.output_dir or pathlib.Path(config.run) / "gradient_noise"
    )
    try:
        noises = model_figures.figure9_of_run(
            run,
            folder / "figure9.png",
            lambda flags: model_figures.load_task_of_flags({**flags, **moved}),
            is_trained=True,
            num_negatives=sizes,
            num_batches=config.num_batches,
            **options,
        )
    except model_figures.NothingToDraw as reason:
        raise InvalidInputError(f"--run={config.run}: {reason}.") from reason
    means = {
        m: {part: float(np.mean(getattr(noise, part))) for part in _PARTS}
        for m, noise in noises.items()
    }
    output_files.write_csv(
        folder / "gradient_noise.csv",
        [{"num_negatives": m, **row} for m, row in means.items()],
    )
    print(f"{_as_text(means)}\nWritten to {folder}/: figure9.png, gradient_noise.csv")


def _size(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise InvalidInputError(
            f"--num_negatives has {text!r}, expected whole numbers above 0."
        )
    return int(text)


def _as_text(means: Mapping[int, Mapping[str, float]]) -> str:
    """The means, and how well the laws fit each part."""
    header = ["|N_k|", *_PARTS.values()]
    rows = [[str(m), *(f"{row[p]:.3g}" for p in _PARTS)] for m, row in means.items()]
    text = table.as_text(header, rows)
    if len(means) < 3 or not all(row["model"] > 0 for row in means.values()):
        return text
    for part, title in _PARTS.items():
        fits = model_figures.laws(list(means), [row[part] for row in means.values()])
        told = ", ".join(
            f"{law.strip('$')} with b = {fit.rate:.3g}: {fit.r_squared:.3f}"
            for law, fit in fits.items()
        )
        text += f"\nR^2 of the logarithm, {title}: {told}"
    return text


if __name__ == "__main__":
    program.run(main, Config())
