"""Proposal distributions over classes, and over training examples.

`sample_without_replacement` draws a client's negatives (FedSS). The `ClassSampler`s
draw the negatives of sampled softmax for each example (RF-softmax); `SAMPLERS` has them
by name. Those with kernels are in `kernel_sampler`, which is imported when one is made:
Numba, their compiler, takes 80 MB. `ShardSampler` draws the rows of W in shards
(Partial FC). `self_paced` selects the training examples of LEAP's two networks.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tff_fedss.samplers.class_sampler import (
    ClassSampler,
    Distribution,
    ExpSampler,
    FixedSampler,
    Negatives,
)
from tff_fedss.samplers.shards import SAMPLINGS, ShardSample, ShardSampler
from tff_fedss.samplers.uniform import sample_without_replacement


class SamplerOptions(NamedTuple):
    """The options of samplers.

    Attributes:
        num_classes: n.
        embedding_dim: d.
        scale: tau, of the logits (exp).
        alpha: alpha of the quadratic kernel.
        nu: nu of the Gaussian kernel (rff).
        num_frequencies: D (rff).
        leaf_size: B, the classes in a bucket of a tree; None: the sampler's own.
    """

    num_classes: int
    embedding_dim: int
    scale: float
    alpha: float = 100.0
    nu: float = 4.0
    num_frequencies: int = 1024
    leaf_size: int | None = None
    seed: int = 0


def _quadratic(options: SamplerOptions) -> ClassSampler:
    from tff_fedss.samplers import kernel_sampler, kernels

    kernel = kernels.QuadraticKernel(options.embedding_dim, options.alpha)
    # In a bucket a class costs d and not d^2 / 2: with d / 2 classes, bucket and node
    # cost the same (also the choice of Blanc and Rendle).
    leaf_size = options.leaf_size or max(options.embedding_dim // 2, 1)
    return kernel_sampler.KernelSampler(options.num_classes, kernel, leaf_size)


def _rff(options: SamplerOptions) -> ClassSampler:
    from tff_fedss.samplers import kernel_sampler, kernels

    kernel = kernels.RandomFourierKernel(
        options.embedding_dim, options.num_frequencies, options.nu, options.seed
    )
    return kernel_sampler.KernelSampler(options.num_classes, kernel, options.leaf_size)


SAMPLERS: dict[str, Callable[[SamplerOptions], ClassSampler]] = {
    "uniform": lambda options: FixedSampler(np.ones(options.num_classes)),
    # Zipf's law, q_i ~ log((i + 2) / (i + 1)): for classes sorted by decreasing
    # frequency, such as a vocabulary.
    "log_uniform": lambda options: FixedSampler(
        np.diff(np.log(np.arange(1.0, options.num_classes + 2)))
    ),
    "quadratic": _quadratic,
    "rff": _rff,
    "exp": lambda options: ExpSampler(options.num_classes, options.scale),
}
