"""How likely rows are under a fit, by a Gaussian model with heavier tails: outliers cost, but none decides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.matrices.dense import DenseMatrix

# From this many noise levels on, a residual costs a row's likelihood by its logarithm instead of its square.
_TAIL = 3.0
_BLOCK = 1 << 18


def log_likelihood(
    matrix: DenseMatrix,  # (m, n2)
    scores: Any,  # (m, k)
    mean: Any,  # (n2,)
    components: Any,  # (k, n2)
    variances: Any,  # (k,)
    noise_variance: float,
) -> Any:
    """Return the log-likelihood of rows (m,): that of probabilistic PCA where no residual is beyond three σ."""
    n2, k = len(mean), len(components)
    # Without noise, what is left is rounding; taken from the fit, so that a row is rated by itself.
    largest = float(np.abs(mean).max(initial=0.0)) + math.sqrt(float(np.max(variances, initial=0.0)))
    rounding = float(np.finfo(float).eps) * largest
    variance = max(noise_variance, rounding**2, float(np.finfo(float).tiny))
    along = np.maximum(variances, variance)
    constant = n2 * math.log(2 * math.pi) + float(np.log(along).sum()) + (n2 - k) * math.log(variance)
    # A row beyond all squares is infinitely unlikely.
    with np.errstate(over="ignore"):
        distance = (scores**2 / along).sum(axis=1)
    for start, block, mask in matrix.blocks(max(1, _BLOCK // n2)):
        rows = slice(start, start + len(block))
        size = np.abs(block - mean - scores[rows] @ components) / math.sqrt(variance)
        observed = size == size if mask is None else (size == size) & mask
        size = np.where(observed, size, 0.0)
        tail = _TAIL**2 * (1 + 2 * np.log(np.maximum(size, _TAIL) / _TAIL))
        cost = np.where(size > _TAIL, tail, np.minimum(size, _TAIL) ** 2).sum(axis=1)
        count = observed.sum(axis=1)
        # Of a row without entries, the usual is expected.
        distance[rows] += np.where(count > 0, cost * n2 / np.maximum(count, 1), float(n2))
    return -0.5 * (constant + distance)
