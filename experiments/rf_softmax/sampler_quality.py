"""How well the samplers stand for the softmax: the bias of the gradient, and e^o.

    ./run.sh sampler_quality --output_dir=DIR [--images=t10k-images-idx3-ubyte.gz]

Writes into DIR:

- bias.md, .csv, .png and .pdf: how far the mean of the sampled gradient (in the
  logits) is from the full softmax's, for every sampler, by m and by D;
- mse.md and mse.csv: the RF-softmax poster's Table 1, the mean squared error of
  estimates of e^o by random Fourier, quadratic and random Maclaurin features.

The poster does not name the vectors of its Table 1, but their dimension is 256, like
that of digits of 16 x 16 pixels: --images takes MNIST's, which are shrunk to it. Random
directions are measured in any case. About 3 minutes on 2 cores.
"""

import dataclasses
import gzip
import math
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
import tqdm

from experiments.common import config, output_files, plots, program
from experiments.common.table import as_markdown
from tff_fedss import files, samplers
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    output_dir: str = config.flag(
        None, "Where to write.", needed="DIR is needed, for the tables."
    )
    images: str | None = config.flag(
        None, "A gzipped IDX file of images, for Table 1 on real vectors."
    )
    num_draws: int = config.flag(10_000, "Sampled gradients for each mean.", low=100)


# The bias is measured here; logits are as wide as those of a model in training.
_CLASSES, _DIM, _SCALE, _EXAMPLES = 500, 32, 10.0, 4
_NUM_NEGATIVES = (5, 20, 80)
# D and nu.
_FEATURES = ((50, 4.0), (200, 4.0), (1000, 4.0), (4000, 4.0), (200, 1.0))

# Table 1.
_TABLE_DIM, _PAIRS, _TAU = 256, 1000, 1.0
_LARGEST = _TABLE_DIM**2
_POSTER = {
    ("quadratic", _LARGEST): 2.8e-3,
    ("random Fourier", 100): 2.6e-3,
    ("random Fourier", 1000): 2.7e-4,
    ("random Fourier", _LARGEST): 5.5e-6,
    ("random Maclaurin", _LARGEST): 8.8e-2,
}


def main(config: Config) -> None:
    """Measures and writes."""
    vectors = {"random directions": _random_directions(2 * _PAIRS)}
    if config.images:
        vectors["MNIST at 16 x 16"] = _digits(config.images, 2 * _PAIRS)
    folder = output_files.create_folder(config.output_dir)
    _bias(folder, config.num_draws)
    _table1(folder, vectors)
    print(f"Written to {folder}/")


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def _write(folder: pathlib.Path, name: str, rows: Sequence[dict], text: str) -> None:
    output_files.write_csv(folder / f"{name}.csv", rows)
    output_files.write_text(folder / f"{name}.md", text)
    print(text)


# --- Bias -------------------------------------------------------------------------


def _samplers_to_compare() -> Iterator[tuple[str, samplers.ClassSampler]]:
    options = samplers.SamplerOptions(_CLASSES, _DIM, _SCALE)
    for name in ("uniform", "log_uniform", "quadratic"):
        yield name, samplers.SAMPLERS[name](options)
    for frequencies, nu in _FEATURES:
        yield (
            f"rff, D = {frequencies:,}, nu = {nu:g}",
            samplers.SAMPLERS["rff"](
                options._replace(num_frequencies=frequencies, nu=nu)
            ),
        )
    yield "exp", samplers.SAMPLERS["exp"](options)


def _bias(folder: pathlib.Path, num_draws: int) -> None:
    generator = _generator(0)
    classes = _unit(generator.standard_normal((_CLASSES, _DIM)))
    targets = np.arange(_EXAMPLES)
    # Near their targets, as after some training, and of all others somewhat.
    queries = _unit(
        classes[targets] + _unit(generator.standard_normal((_EXAMPLES, _DIM)))
    )
    rows = []
    for name, sampler in tqdm.tqdm(list(_samplers_to_compare()), desc="bias"):
        sampler.rebuild(classes)
        for m in _NUM_NEGATIVES:
            bias, noise = zip(
                *(
                    _bias_of(
                        sampler, classes, queries[i], targets[i], m, num_draws // 2
                    )
                    for i in range(_EXAMPLES)
                ),
                strict=True,
            )
            rows.append(
                {
                    "sampler": name,
                    "num_negatives": m,
                    "bias": np.mean(bias),
                    "noise": np.mean(noise),
                    "clipped_share": sampler.num_clipped
                    / max(sampler.num_estimates, 1),
                }
            )
    _plot(rows, folder / "bias.png")
    table_rows = []
    for name, own in _by_sampler(rows).items():
        cells = [f"{row['bias']:.4f} ({row['noise']:.4f})" for row in own]
        table_rows.append([name, *cells, f"{own[-1]['clipped_share']:.1%}"])
    header = ["sampler", *(f"m = {m}" for m in _NUM_NEGATIVES), "clipped"]
    text = (
        f"n = {_CLASSES}, d = {_DIM}, tau = {_SCALE:g}; the mean over "
        f"{_EXAMPLES} examples of |mean of {num_draws:,} sampled gradients - "
        "full gradient|_1, in the logits. In brackets: what of it the noise of the "
        f"measurement alone would give.\n\n{as_markdown(header, table_rows)}\n"
    )
    _write(folder, "bias", rows, text)


def _by_sampler(rows: Sequence[dict]) -> dict[str, list[dict]]:
    names = dict.fromkeys(row["sampler"] for row in rows)
    return {name: [row for row in rows if row["sampler"] == name] for name in names}


def _plot(rows: Sequence[dict], path: pathlib.Path) -> None:
    """Draws the bias by m, and the noise below which it cannot be told."""
    by_sampler = _by_sampler(rows)
    curves = [
        plots.Curve(name, _NUM_NEGATIVES, [r["bias"] for r in own], plots.style(i))
        for i, (name, own) in enumerate(by_sampler.items())
    ]
    noise = [row["noise"] for row in by_sampler["exp"]]
    look = plots.REFERENCE._replace(linestyle=":")
    curves.append(plots.Curve("noise (exp)", _NUM_NEGATIVES, noise, look))
    panel = plots.Panel(curves, "m", "bias of the gradient, $L_1$", log="xy")
    plots.write_curves(path, [panel])


def _bias_of(
    sampler: samplers.ClassSampler,
    classes: np.ndarray,
    query: np.ndarray,
    target: int,
    m: int,
    num_draws: int,
) -> tuple[float, float]:
    """The bias of one example's gradient, and the noise in the measurement of it."""
    logits = _SCALE * np.float64(classes) @ query
    full = np.exp(logits - logits.max())
    full /= full.sum()
    halves = []
    for half in range(2):
        # All draws for one example: they are independent.
        ids, log_q = sampler.draw(
            query[np.newaxis], [target], num_draws * m, _generator(1, half, m)
        )
        ids, log_q = ids.reshape(-1, m), log_q.reshape(-1, m)
        weights = np.exp(logits[ids] - log_q - math.log(m) - logits[target])
        shares = weights / (1 + weights.sum(1, keepdims=True))
        mean = np.bincount(ids.reshape(-1), shares.reshape(-1), _CLASSES) / num_draws
        mean[target] = 1 - mean.sum()
        halves.append(mean)
    bias = np.abs(np.mean(halves, 0) - full).sum()
    return bias, np.abs(halves[0] - halves[1]).sum() / 2


# --- Table 1 ----------------------------------------------------------------------


def _table1(folder: pathlib.Path, vectors: dict[str, np.ndarray]) -> None:
    rows = []
    for data, points in vectors.items():
        h, c = points[:_PAIRS], points[_PAIRS:]
        o = _TAU * np.sum(np.float64(h) * c, 1)
        measured = {}
        # The best that alpha o^2 + 1 can do, times the best factor.
        design = np.stack([o**2, np.ones_like(o)], 1)
        fit, *_ = np.linalg.lstsq(design, np.exp(o), rcond=None)
        measured["quadratic", _LARGEST] = np.mean((design @ fit - np.exp(o)) ** 2)
        for frequencies, repeats in ((100, 20), (1000, 10), (_LARGEST, 1)):
            errors = [
                np.mean((_fourier(h, c, frequencies, seed) - np.exp(o)) ** 2)
                for seed in tqdm.trange(repeats, desc=f"Fourier, D = {frequencies:,}")
            ]
            measured["random Fourier", frequencies] = np.mean(errors)
        estimate = _maclaurin(h, c, _LARGEST)
        measured["random Maclaurin", _LARGEST] = np.mean((estimate - np.exp(o)) ** 2)
        for (method, features), error in measured.items():
            rows.append(
                {
                    "vectors": data,
                    "method": method,
                    "D": features,
                    "mse": error,
                    "poster": _POSTER[method, features],
                    "mean_cosine": np.mean(o) / _TAU,
                }
            )
    cosines = {row["vectors"]: row["mean_cosine"] for row in rows}
    header = ["method", "D", "poster"]
    header += [f"{data} (mean cosine {cosine:.2f})" for data, cosine in cosines.items()]
    table_rows = [
        [method, f"{features:,}", f"{poster:.1e}"]
        + [
            f"{row['mse']:.1e}"
            for row in rows
            if (row["method"], row["D"]) == (method, features)
        ]
        for (method, features), poster in _POSTER.items()
    ]
    text = (
        f"Mean squared error of estimates of e^o, d = {_TABLE_DIM}, tau = {_TAU:g}, "
        f"{_PAIRS:,} pairs. The poster says neither its vectors nor its tau.\n\n"
        f"{as_markdown(header, table_rows)}\n"
    )
    _write(folder, "mse", rows, text)


def _fourier(h: np.ndarray, c: np.ndarray, frequencies: int, seed: int) -> np.ndarray:
    """e^tau times the estimate of the Gaussian kernel with nu = tau."""
    kernel = samplers.RandomFourierKernel(_TABLE_DIM, frequencies, _TAU, seed)
    chunk = max(2**24 // kernel.num_features, 1)
    products = [
        np.einsum(
            "ij,ij->i",
            kernel.features(h[i : i + chunk]),
            kernel.features(c[i : i + chunk]),
        )
        for i in range(0, len(h), chunk)
    ]
    return math.exp(_TAU) * np.concatenate(products)


def _maclaurin(h: np.ndarray, c: np.ndarray, num_features: int) -> np.ndarray:
    """Random Maclaurin features of exp (Kar and Karnick, 2012), with p = 2.

    A feature has a degree k with probability 2^-(k+1), and is the product of k random
    signs' products with the vector, times sqrt(2^(k+1) tau^k / k!).
    """
    generator = _generator(2)
    degrees = generator.geometric(0.5, num_features) - 1
    total = np.zeros(len(h))
    for degree, count in zip(*np.unique(degrees, return_counts=True), strict=True):
        products = np.ones((len(h), count))
        for _ in range(degree):
            signs = generator.choice(np.float32([-1, 1]), (_TABLE_DIM, count))
            products *= (h @ signs) * (c @ signs)
        factor = 2.0 ** (degree + 1) * _TAU**degree / math.factorial(degree)
        total += factor * products.sum(1)
    return total / num_features


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / norms).astype(np.float32)


def _random_directions(count: int) -> np.ndarray:
    return _unit(_generator(3).standard_normal((count, _TABLE_DIM)))


def _digits(path: str | os.PathLike, count: int) -> np.ndarray:
    """Images of an IDX file at 16 x 16, as vectors of length 1, in random order."""
    source = f"--images={path}"
    try:
        content = gzip.decompress(files.read(path))
    except (OSError, EOFError) as error:
        raise InvalidInputError(f"{source} cannot be read: {error}.") from error
    header = np.frombuffer(content[:16], ">i4")
    if len(header) < 4 or header[0] != 2051 or len(content) != 16 + header[1:].prod():
        raise InvalidInputError(f"{source} is no whole IDX file of images.")
    images = np.frombuffer(content, np.uint8, offset=16).reshape(*header[1:], 1)
    if len(images) < count:
        raise InvalidInputError(
            f"{source} has {len(images)} images, {count} are needed."
        )
    chosen = images[_generator(4).permutation(len(images))[:count]]
    side = math.isqrt(_TABLE_DIM)
    return _unit(
        tf.image.resize(chosen, [side, side], "area").numpy().reshape(count, -1)
    )


if __name__ == "__main__":
    program.run(main, Config())
