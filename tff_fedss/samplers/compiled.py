"""The loops of the kernel samplers, compiled by Numba.

They give the same bits for the same values, whatever the number of rows in a call: a
tree that is updated class by class equals one that is built at once.
"""

import numba
import numpy as np


@numba.njit(cache=True)
def matmul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns x y, with every row summed in the same order, unlike a BLAS.

    Args:
        x: float32[rows, d].
        y: float32[d, columns].

    Returns:
        float32[rows, columns].
    """
    out = np.zeros((x.shape[0], y.shape[1]), np.float32)
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            factor = x[i, k]
            for j in range(y.shape[1]):
                out[i, j] += factor * y[k, j]
    return out


@numba.njit(cache=True)
def sum_groups(
    values: np.ndarray, groups: np.ndarray, out: np.ndarray, size: int
) -> None:
    """Sets out[g] = the sum of values[g * size : (g + 1) * size] for the given g.

    Args:
        values: float32[rows, F].
        groups: int64[k], the groups to sum.
        out: float32[at least max(groups) + 1, F].
        size: Number of rows in a group.
    """
    for g in groups:
        for j in range(values.shape[1]):
            out[g, j] = values[g * size, j]
        for r in range(g * size + 1, (g + 1) * size):
            for j in range(values.shape[1]):
                out[g, j] += values[r, j]


@numba.njit(fastmath=True, cache=True)
def _dot(a: np.ndarray, b: np.ndarray) -> np.float32:
    total = np.float32(0.0)
    for j in range(a.shape[0]):
        total += a[j] * b[j]
    return total


@numba.njit(cache=True)
def pair_products(
    left: np.ndarray, left_rows: np.ndarray, right: np.ndarray, right_rows: np.ndarray
) -> np.ndarray:
    """Computes products of chosen rows, without copying the rows.

    Args:
        left: float32[a, F].
        left_rows: int64[pairs].
        right: float32[b, F].
        right_rows: int64[pairs, L].

    Returns:
        float32[pairs, L], left[left_rows[i]] . right[right_rows[i, j]].
    """
    out = np.empty(right_rows.shape, np.float32)
    for i in range(right_rows.shape[0]):
        for j in range(right_rows.shape[1]):
            out[i, j] = _dot(left[left_rows[i]], right[right_rows[i, j]])
    return out


@numba.njit(cache=True)
def descend(
    sums: np.ndarray,
    offsets: np.ndarray,
    spans: np.ndarray,
    fan_out: int,
    num_classes: int,
    lower_bound: float,
    queries: np.ndarray,
    targets: np.ndarray,
    target_products: np.ndarray,
    uniforms: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Draws nodes of the bottom level of a tree, branch by branch from its top.

    Draws at the same node share its branch weights.

    Args:
        sums: float32[nodes, F], level after level, from the top.
        offsets: int64[levels], the first row of each level.
        spans: int64[levels], the number of classes under a node of each level.
        fan_out: Number of siblings of nodes.
        num_classes: n; nodes may include ids from n on, which do not exist.
        lower_bound: Lower bound of a class's kernel.
        queries: float32[examples, F], phi(h).
        targets: int64[examples]; negative: no target is left out.
        target_products: float32[examples], phi(h) . phi(c_t).
        uniforms: float64[examples, m, at least levels], in [0, 1).

    Returns:
        int64[examples, m], the drawn nodes of the bottom level; float64[examples, m],
        their log-probabilities; the number of estimated branches; the number of
        estimates below their bound, which were clipped.
    """
    num_levels = len(offsets)
    num_examples, num_samples = uniforms.shape[0], uniforms.shape[1]
    nodes = np.zeros((num_examples, num_samples), np.int64)
    log_q = np.zeros((num_examples, num_samples))
    ends = np.empty(fan_out)
    counts = np.empty(fan_out + 1, np.int64)
    branch_of = np.empty(num_samples, np.int64)
    # Draws are ordered such that those at the same node are neighbours.
    order = np.empty(num_samples, np.int64)
    next_order = np.empty(num_samples, np.int64)
    num_estimates = num_clipped = 0
    for e in range(num_examples):
        query, target = queries[e], targets[e]
        for s in range(num_samples):
            order[s] = s
        for level in range(num_levels):
            span = spans[level]
            begin = 0
            while begin < num_samples:
                parent = nodes[e, order[begin]]
                end = begin + 1
                while end < num_samples and nodes[e, order[end]] == parent:
                    end += 1
                total = 0.0
                for branch in range(fan_out):
                    node = parent * fan_out + branch
                    has_target = target // span == node
                    eligible = min(max(num_classes - node * span, 0), span)
                    eligible -= has_target
                    if eligible:
                        weight = float(_dot(sums[offsets[level] + node], query))
                        if has_target:
                            weight -= target_products[e]
                        num_estimates += 1
                        if weight < lower_bound * eligible:
                            num_clipped += 1
                            weight = lower_bound * eligible
                        total += weight
                    ends[branch] = total
                counts[:] = 0
                for i in range(begin, end):
                    s = order[i]
                    point = uniforms[e, s, level] * total
                    branch = 0
                    while branch < fan_out - 1 and ends[branch] <= point:
                        branch += 1
                    # Rounding may bring the point to the end, where there may be no
                    # class.
                    while branch and ends[branch] == ends[branch - 1]:
                        branch -= 1
                    weight = ends[branch] - (ends[branch - 1] if branch else 0.0)
                    log_q[e, s] += np.log(weight / total)
                    nodes[e, s] = parent * fan_out + branch
                    branch_of[s] = branch
                    counts[branch + 1] += 1
                for branch in range(fan_out):
                    counts[branch + 1] += counts[branch]
                for i in range(begin, end):
                    s = order[i]
                    next_order[begin + counts[branch_of[s]]] = s
                    counts[branch_of[s]] += 1
                begin = end
            order, next_order = next_order, order
    return nodes, log_q, num_estimates, num_clipped
