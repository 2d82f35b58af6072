"""Robust regression of rows on fixed components: what `transform` means for corrupted rows.

Each row is on its own: least absolute deviations first (which a minority of gross outliers cannot move), then a few
redescending steps at the row's own noise level, with the Gram of the row's own kept entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.iteration import solve_each, thin_svd
from lrpca.matrices.dense import DenseMatrix

_BLOCK = 1 << 18
# Products of two components of one entry that are held at a time.
_PAIRS = 1 << 20
_ABSOLUTE_STEPS = 15
_REDESCENDING_STEPS = 25
_HIGH, _FALL = 0.9, 0.25
# Kept entries of the redescending steps, in units of the row's noise level.
_KEEP_SIGMAS = 4.0
_TINY = float(np.finfo(float).tiny)
# Components this much smaller than the largest are not there (a rank that was too large).
_ABSENT = 1e-10


def robust_coefficients(
    matrix: DenseMatrix,  # (m, n2)
    R: Any,  # (n2, r)
    noise: float,
    *,
    annealed: bool = False,
) -> Any:
    """Return coefficients (m, r) with which R explains the observed, uncorrupted entries of each row.

    `noise` is the fitted noise level: a row's own level is never taken below it. An `annealed` fit lets the level start
    high and fall: for rows where a coefficient that only some entries depend on may be wrong, while all the others are
    fitted exactly and the row's own level is zero. It needs a majority without gross outliers.
    """
    wide = np.promote_types(np.promote_types(matrix.arithmetic, R.dtype), np.float64)
    R = R.astype(wide)
    # Orthonormal columns make every Gram well scaled whatever the singular values; absent components get zeros.
    U, sizes, Vh = thin_svd(R)
    there = sizes > _ABSENT * sizes.max(initial=0.0)
    if not there.any():
        return np.zeros((matrix.shape[0], R.shape[1]), wide)
    Q, back = U[:, there], (Vh[there].conj() / sizes[there, None]).conj()
    coefficients = np.zeros((matrix.shape[0], R.shape[1]), wide)
    for start, block, mask in matrix.blocks(max(1, _BLOCK // matrix.shape[1])):
        values = np.asarray(block, wide)
        observed = values == values
        if mask is not None:
            observed &= mask
        if np.isinf(values[observed]).any():
            raise ValueError("Y contains inf; mark missing entries with NaN")
        values = np.where(observed, values, 0.0)
        rows = slice(start, start + len(values))
        coefficients[rows] = _regress(values, observed, Q, noise, annealed) @ back.conj()
    return coefficients


def _regress(
    values: Any,  # (m, n2), 0 where missing
    observed: Any,  # (m, n2) bool
    Q: Any,  # (n2, r)
    noise: float,
    annealed: bool,
) -> Any:
    size = np.where(observed, np.abs(values), np.nan)
    # Gross outliers must not decide the start: beyond five times the row's median an entry counts like one there.
    typical = 5 * row_quantile(size, 0.5)[:, None]
    weights = np.where(observed, np.minimum(1.0, typical / np.maximum(np.abs(values), typical + _TINY)), 0.0)
    weights[~weights.any(axis=1)] = observed[~weights.any(axis=1)]
    # Too few entries to tell outliers from the others: all count.
    enough = (observed.sum(axis=1) > 2 * Q.shape[1])[:, None]
    # Residuals below rounding are all the same.
    floor = np.maximum(noise, 64 * np.finfo(float).eps * typical[:, 0])
    coefficients = _weighted(values, weights, Q)
    for step in range(_ABSOLUTE_STEPS):
        size = np.where(observed, np.abs(values - coefficients @ Q.T), np.nan)
        scale = row_quantile(size, 0.5)
        # Weights 1 / |d|, bounded; the bound falls as the fit settles.
        bound = np.maximum(scale * 10.0 ** (-step / 3), _TINY)[:, None]
        weights = np.where(observed, bound / np.maximum(np.nan_to_num(size), bound), 0.0)
        coefficients = _weighted(values, weights, Q)
    size = np.where(observed, np.abs(values - coefficients @ Q.T), np.nan)
    ceiling = row_quantile(size, _HIGH) if annealed else np.zeros(len(size))
    for step in range(_REDESCENDING_STEPS):
        size = np.where(observed, np.abs(values - coefficients @ Q.T), np.nan)
        # 35% of |N(0, 1)| lie below 0.4538; a low quantile, since outliers may fill the upper half.
        level = np.maximum(row_quantile(size, 0.35) / 0.4538, np.maximum(floor, ceiling * _FALL**step))
        kept = np.nan_to_num(size, nan=np.inf) <= _KEEP_SIGMAS * level[:, None]
        weights = np.where(enough, kept, observed).astype(float)
        coefficients = _weighted(values, weights, Q)
    return coefficients


def _weighted(values: Any, weights: Any, Q: Any) -> Any:
    """Return the weighted least-squares coefficients of every row."""
    rank = Q.shape[1]
    grams = np.zeros((len(values), rank * rank), Q.dtype)
    tile = max(1, _PAIRS // max(1, rank * rank))
    for start in range(0, len(Q), tile):
        part = Q[start : start + tile]
        pairs = (part.conj()[:, :, None] * part[:, None, :]).reshape(len(part), rank * rank)
        grams += weights[:, start : start + tile] @ pairs
    return solve_each(grams.reshape(-1, rank, rank), (weights * values) @ Q.conj())


def row_quantile(
    size: Any,  # (m, n2), NaN where missing
    share: float,
) -> Any:
    """Return a quantile of the observed residuals of each row; 0 for rows without any."""
    count = np.sum(size == size, axis=1)
    place = np.minimum((share * count).astype(int), np.maximum(count - 1, 0))
    # NaN sorts last, so one partition serves rows with the same number of observed entries.
    ordered = np.partition(size, np.unique(place), axis=1)
    return np.nan_to_num(ordered[np.arange(len(size)), place])
