"""What a `KernelSampler` draws from, by recursion in float64: slow and obvious."""

import numpy as np

from tff_fedss.samplers import QuadraticKernel

FAN_OUT = 4


def kernel_values(kernel, query, embeddings):
    """phi(h) . phi(c_i) of all classes, by the poster's equations."""
    query, embeddings = np.float64(query), np.float64(embeddings)
    if isinstance(kernel, QuadraticKernel):
        return float(kernel._alpha) * (embeddings @ query) ** 2 + 1
    w = np.float64(kernel.frequencies)
    h = query / np.linalg.norm(query)
    c = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    # cos a cos b + sin a sin b = cos(a - b)
    return np.cos((h - c) @ w).mean(1)


def unclipped(kernel, query, embeddings, target):
    """q_i = K_i / sum K over [n] without the target."""
    weights = kernel_values(kernel, query, embeddings)
    weights[target] = 0
    return weights / weights.sum()


def probabilities(kernel, query, embeddings, target, leaf_size):
    """q over [n], how many estimates are below their bound, and which q rest on one."""
    values = kernel_values(kernel, query, embeddings)
    n = len(values)
    is_open = np.arange(n) != target
    q = np.zeros(n)
    low = 0
    is_clipped = np.zeros(n, bool)

    def weight_of(ids):
        nonlocal low
        ids = ids[is_open[ids]]
        bound = kernel.lower_bound * len(ids)
        if values[ids].sum() < bound:
            low += 1
            is_clipped[ids] = True
        return max(values[ids].sum(), bound)

    def visit(ids, span, probability):
        if not is_open[ids].any():
            return
        width = 1 if span == leaf_size else span // FAN_OUT
        parts = [ids[i : i + width] for i in range(0, len(ids), width)]
        weights = np.array([weight_of(part) for part in parts])
        for part, share in zip(parts, weights / weights.sum()):
            if width > 1 or span > leaf_size > 1:
                visit(part, width, probability * share)
            else:
                q[part] = probability * share

    span = leaf_size * FAN_OUT
    while span < n:
        span *= FAN_OUT
    visit(np.arange(n), span, 1.0)
    return q, low, is_clipped
