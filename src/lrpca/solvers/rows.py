"""Robust regression of rows on fixed components: what `transform` means for corrupted rows.

Each row is fitted by itself: first least absolute deviations on a sample of its entries (robust to a minority of gross
outliers), then a few redescending steps over all of them at the row's own noise level. Rows of which that explains too
little are fitted again from a larger sample. Real rows are compiled; complex ones use NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.core.factors import thin_svd
from lrpca.kernels.threads import Threads
from lrpca.matrices.dense import DenseMatrix, arithmetic_dtype, observed_entries
from lrpca.solvers.refit import RIDGE, least_absolute_rows, solve_rows

_BLOCK = 1 << 18
# Entries that all threads take at a time, and one of them.
_STRETCH = 1 << 21
_PIECE = 1 << 17
_LEAST_ROWS = 16
# Multiply-adds by entry and component, roughly.
_STEPS = 8.0
# A quick fit starts from so many entries of a row at least, and so many for each component; a thorough one from more.
_SAMPLE, _LONG_SAMPLE = (192, 20), (4000, 200)
# Of a row not much longer all entries are taken.
_NEARLY_ALL = 1.5
# The first and the last attempt, see `lrpca.kernels.regression`.
_QUICK, _THOROUGH = (0, 1), (1, 2)
_INFINITE = "Y contains inf; mark missing entries with NaN"
# For complex rows; roundings are of five times the row's median.
_REDESCENDING_STEPS, _ROUNDINGS = 25, 5 * 64
# Kept entries of the redescending steps, in units of the row's noise level.
_KEEP_SIGMAS = 4.0
# Components this much smaller than the largest are not there (a rank that was too large).
_ABSENT = 1e-10


def robust_coefficients(
    matrix: DenseMatrix, R: Any, noise: float, *, offset: Any = None
) -> Any:  # matrix (m, n2); offset (n2,)
    """Return coefficients (m, r) with which R explains the observed, uncorrupted entries of each row.

    `offset` is taken off every row first. `noise` is the fitted noise level, 0 where it is not known: a row's own level
    is never taken below it. The coefficients of a real row depend on that row alone, to the bit.
    """
    wide = np.promote_types(np.promote_types(matrix.arithmetic, R.dtype), np.float64)
    R = R.astype(wide)
    if offset is not None and np.shape(offset) != (len(R),):
        raise ValueError(f"offset.shape={np.shape(offset)} is not {(len(R),)}; pass one number for each column")
    # Orthonormal columns make every Gram well scaled whatever the singular values; absent components get zeros.
    U, sizes, Vh = thin_svd(R)
    there = sizes > _ABSENT * sizes.max(initial=0.0)
    if not there.any():
        return np.zeros((matrix.shape[0], R.shape[1]), wide)
    Q, back = U[:, there], Vh[there].conj() / sizes[there, None]
    back[:, ~R.any(axis=0)] = 0.0
    if wide.kind == "c":
        return _by_blocks(matrix, Q, back, noise, offset)
    return _by_rows(matrix, Q, back, noise, offset)


def _by_rows(matrix: DenseMatrix, Q: Any, back: Any, noise: float, offset: Any) -> Any:
    """Return the coefficients of real rows, compiled, by all threads."""
    from lrpca.kernels.regression import multiply_rows

    n1, n2 = matrix.shape
    coefficients = np.empty((n1, back.shape[1]))
    components = _Components(Q, offset, noise, float(np.finfo(arithmetic_dtype(matrix.stored)).eps))
    back = np.ascontiguousarray(back)
    threads = Threads()
    try:
        for start, block, mask in matrix.blocks(max(_LEAST_ROWS, _STRETCH // n2)):
            out = coefficients[start : start + len(block)]

            def work(rows: slice, out: Any = out, block: Any = block, mask: Any = mask) -> None:
                values = _readable(block[rows], None if mask is None else mask[rows])
                multiply_rows(components.fit(values), back, out[rows])

            count = max(_LEAST_ROWS // 2, _PIECE // n2)
            pieces = [slice(first, first + count) for first in range(0, len(block), count)]
            threads.map(work, pieces, work=_STEPS * block.size * Q.shape[1])
    finally:
        threads.close()
    return coefficients


class _Components:
    """Orthonormal components as the compiled code wants them, and the fits of rows by them."""

    def __init__(self, Q: Any, offset: Any, noise: float, rounding: float) -> None:
        from lrpca.kernels.regression import TILE

        n2, rank = Q.shape
        self.offset = np.zeros(0) if offset is None else np.ascontiguousarray(offset, float)
        self.noise, self.rounding = float(noise), rounding
        self.sample, self.long_sample = (
            n2 if n2 < _NEARLY_ALL * size else size
            for size in (max(least, each * rank) for least, each in (_SAMPLE, _LONG_SAMPLE))
        )
        self.order = _sampling_order(Q)
        # Memory is read in order.
        for part in (self.order[: self.sample], self.order[self.sample : self.long_sample]):
            part.sort()
        # An odd number of cache lines from one component to the next, so that they do not compete for the same places.
        self.Qt = np.zeros((rank, (n2 + 15) // 16 * 16 + 8))
        self.Qt[:, :n2] = Q.T
        parts = (Q[first : first + TILE] for first in range(0, n2, TILE))
        self.tile_grams = np.stack([part.T @ part for part in parts])

    def fit(self, values: Any) -> Any:
        """Return the coefficients (m, r) of some rows; unreliable ones are fitted twice."""
        from lrpca.kernels.regression import KEPT, LEVEL, SAME_LEVEL, TRUSTED

        c, summary = self._attempt(values, self.sample, _QUICK)
        unreliable = np.flatnonzero(summary[:, TRUSTED] == 0)
        if len(unreliable):
            again, found = self._attempt(_frozen(values[unreliable]), self.long_sample, _THOROUGH)
            before = summary[unreliable]
            level, old_level = found[:, LEVEL], before[:, LEVEL]
            more = found[:, KEPT] >= before[:, KEPT]
            better = (level < SAME_LEVEL * old_level) | ((SAME_LEVEL * level <= old_level) & more)
            better |= found[:, TRUSTED] > 0
            c[unreliable[better]] = again[better]
        return c

    def _attempt(self, values: Any, sample: int, attempts: tuple[int, int]) -> tuple[Any, Any]:
        from lrpca.kernels import regression as kernel

        rank = len(self.Qt)
        c, summary = np.zeros((len(values), rank)), np.zeros((len(values), kernel.SUMMARY))
        memory: tuple[Any, ...] = (
            np.zeros(sample, np.int64), np.zeros((rank, sample)), np.zeros((5, sample)),
            np.zeros((3, rank, rank)), np.zeros((4, rank)),
        )  # fmt: skip
        fine = kernel.fit_samples(
            values, self.offset, self.Qt, self.order, *attempts, self.noise, self.rounding, c, summary, *memory
        )
        if fine and not summary[:, kernel.SEEN_ALL].all():
            longest, group = max(sample, kernel.TILE), kernel.GROUP
            memory = (
                np.zeros(longest, np.int64), np.zeros((2, longest)), np.zeros((rank, kernel.TILE + kernel.PADDING)),
                np.zeros((2, rank)), np.zeros((rank, rank)),
                np.zeros((group, 5)), np.zeros((group, 2, rank)), np.zeros((group, rank, rank)),
            )  # fmt: skip
            fine = kernel.finish_fits(
                values, self.offset, self.Qt, self.tile_grams, self.order, sample, self.noise, c, summary, *memory
            )
        if not fine:
            raise ValueError(_INFINITE)
        return c, summary


def _readable(block: Any, mask: Any) -> Any:
    """Return rows as the compiled code reads them: C order, float32 or float64, read-only, NaN where missing."""
    values = np.ascontiguousarray(block, np.float32 if arithmetic_dtype(block.dtype) == np.float32 else np.float64)
    if mask is not None:
        values = np.where(mask, values, values.dtype.type(np.nan))
    return _frozen(values)


def _frozen(values: Any) -> Any:
    # Read-only, so that one compiled form serves all.
    values = values.view()
    values.flags.writeable = False
    return values


def _sampling_order(Q: Any) -> Any:
    """Return an order of the columns (n2,) of which every beginning is a fair sample.

    Half of the chance is even, half goes by leverage ‖Q_j‖²: components that live on few columns are sampled there.
    """
    n2, rank = Q.shape
    leverage = np.sum(Q * Q, axis=1)
    chance = 0.5 / n2 + 0.5 * leverage / rank
    return np.argsort(np.random.default_rng(0).exponential(size=n2) / chance)


def _by_blocks(matrix: DenseMatrix, Q: Any, back: Any, noise: float, offset: Any) -> Any:
    """Return the coefficients of rows with NumPy."""
    coefficients = np.zeros((matrix.shape[0], back.shape[1]), Q.dtype)
    for start, block, mask in matrix.blocks(max(1, _BLOCK // matrix.shape[1])):
        values = np.asarray(block, Q.dtype)
        if offset is not None:
            values = values - offset
        observed = observed_entries(values, mask)
        if np.isinf(values[observed]).any():
            raise ValueError(_INFINITE)
        values = np.where(observed, values, 0.0)
        coefficients[start : start + len(values)] = _regress(values, observed, Q, noise) @ back
    return coefficients


def _regress(values: Any, observed: Any, Q: Any, noise: float) -> Any:
    # Too few entries to tell outliers from the others: all count.
    enough = (observed.sum(axis=1) > 2 * Q.shape[1])[:, None]
    # Residuals below rounding are all the same.
    rounding = _ROUNDINGS * np.finfo(float).eps * row_quantile(np.where(observed, np.abs(values), np.nan), 0.5)
    coefficients = least_absolute_rows(values, observed, Q)
    for _ in range(_REDESCENDING_STEPS):
        size = np.where(observed, np.abs(values - coefficients @ Q.T), np.nan)
        # 35% of |N(0, 1)| lie below 0.4538; a low quantile, since outliers may fill the upper half.
        level = np.maximum(row_quantile(size, 0.35) / 0.4538, np.maximum(noise, rounding))
        kept = np.nan_to_num(size, nan=np.inf) <= _KEEP_SIGMAS * level[:, None]
        coefficients = solve_rows(values, np.where(enough, kept, observed).astype(float), Q, RIDGE, coefficients)
    return coefficients


def row_quantile(size: Any, share: float) -> Any:  # size (m, n2), NaN where missing
    """Return a quantile of the observed residuals of each row; 0 for rows without any."""
    count = np.sum(size == size, axis=1)
    place = np.minimum((share * count).astype(int), np.maximum(count - 1, 0))
    # NaN sorts last, so one partition serves rows with the same number of observed entries.
    ordered = np.partition(size, np.unique(place), axis=1)
    return np.nan_to_num(ordered[np.arange(len(size)), place])
