"""Fits to few entries, of which the one that explains the most is taken.

Least absolute deviations give in where half of a row's entries are outliers, or fewer that have leverage: short rows
get there by chance. A fit to as many entries as there are components is right if none of them is an outlier, and what
is right explains all the others that are clean.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.core.factors import solve_each, thin_svd
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.rows import LeastSquares

# Fits that are tried for a row: so many that, where this share is clean, one row in a thousand has no clean one.
_CLEAN, _MISSES, _LEAST_TRIES, _MOST_TRIES = 0.7, 1e-3, 64, 512
# Entries of a row that judge them, and steps of least squares on what the best one explains.
_ENTRIES, _STEPS = 256, 4
# Components this much smaller than the largest are not there.
_ABSENT = 1e-10
_PIECE = 1 << 18


def consensus(
    part: DenseMatrix,  # (m, n) some rows
    among: Any,  # (n, r)
    cutoff: float,
) -> Any:
    """Return the coefficients (m, r) that leave the most entries of each row within the cutoff; nothing is random."""
    wide = np.promote_types(np.promote_types(part.arithmetic, among.dtype), np.float64)
    U, sizes, Vh = thin_svd(among.astype(wide))
    there = sizes > _ABSENT * sizes.max(initial=0.0)
    found = np.zeros((part.shape[0], among.shape[1]), wide)
    if not there.any():
        return found
    Q, back = U[:, there], Vh[there].conj() / sizes[there, None]
    trials = _Trials(Q)
    for start, block, mask in part.blocks(max(1, _PIECE // trials.size)):
        values = np.asarray(block, wide)
        seen = values == values if mask is None else (values == values) & mask
        found[start : start + len(values)] = trials.best(np.where(seen, values, 0.0), seen, cutoff) @ back
    return found


class _Trials:
    """The entries that rows are fitted to in turn: drawn by chance and leverage, the same for all rows."""

    def __init__(
        self,
        Q: Any,  # (n, r) orthonormal
    ) -> None:
        n, rank = Q.shape
        rng = np.random.default_rng(0)
        chance = 0.5 / n + 0.5 * np.sum(np.abs(Q) ** 2, axis=1) / rank
        self._Q, self._squares = Q, LeastSquares(Q)
        self._judges = np.argsort(rng.exponential(size=n) / chance)[:_ENTRIES]
        tries = min(_MOST_TRIES, max(_LEAST_TRIES, math.ceil(math.log(_MISSES) / math.log1p(-(_CLEAN**rank)))))
        keys = rng.exponential(size=(tries, len(self._judges))) / chance[self._judges]
        self._orders = np.argsort(keys, axis=1)  # (t, k)

    @property
    def size(self) -> int:
        """How many numbers are held for a row."""
        return self._orders.size

    def best(
        self,
        values: Any,  # (m, n), 0 where missing
        seen: Any,  # (m, n) bool
        cutoff: float,
    ) -> Any:
        """Return the coefficients of each row, in the orthonormal components."""
        Q, rank = self._Q[self._judges], self._Q.shape[1]
        some, there = values[:, self._judges], seen[:, self._judges]
        (m, _), tries = some.shape, len(self._orders)
        # The first ones of each order that the row has.
        rows = np.arange(m)[:, None]
        so_far = np.cumsum(there[:, self._orders], axis=2, dtype=np.int32)  # (m, t, k)
        grams, sides = np.zeros((m, tries, rank, rank), Q.dtype), np.zeros((m, tries, rank), Q.dtype)
        for k in range(rank):
            at = self._orders[np.arange(tries), np.argmax(so_far > k, axis=2)]  # (m, t)
            vectors = np.where(there[rows, at][..., None], Q[at], 0.0)
            grams += vectors.conj()[..., :, None] * vectors[..., None, :]
            sides += vectors.conj() * some[rows, at][..., None]
        fits = solve_each(grams.reshape(-1, rank, rank), sides.reshape(-1, rank)).reshape(m, tries, rank)
        within = (np.abs(some[:, None, :] - fits @ Q.T) <= cutoff) & there[:, None, :]
        coefficients = fits[rows[:, 0], within.sum(axis=2).argmax(axis=1)]
        for _ in range(_STEPS):
            kept = (np.abs(values - coefficients @ self._Q.T) <= cutoff) & seen
            coefficients = self._squares.coefficients(values, kept.astype(float))
        return coefficients
