"""What the default is compared with on real data: a truncated SVD and PCP, both helped over their missing entries.

Neither takes missing entries. They get them filled in by the best they can do themselves: first by the median of their
column, then, again and again, by their own low-rank part.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

SVD_ROUNDS = 20
PCP_ROUNDS = 3
# Subspace iterations per round; each starts from the subspace of the round before.
_SUBSPACE_STEPS = 2
_OVERSAMPLING = 5
# pyrpca takes seconds for the part of a clip that it is given.
_PCP_LIMIT = 120.0
# Singular values of PCP's answer below this share of the first are its zeros.
_ZERO = 1e-6


@dataclass(frozen=True)
class Pursuit:
    """What PCP answers: the low-rank part by its singular vectors, and how sparse the rest is."""

    U: Any  # (n1, k)
    values: Any  # (k,)
    Vt: Any  # (k, n2)
    outlier_fraction: float

    @property
    def rank(self) -> int:
        """Number of its singular values that are not zero."""
        return int((self.values > _ZERO * self.values[0]).sum())

    def cut(self, rank: int) -> Any:
        """Return the best approximation of that rank (n1, n2)."""
        return (self.U[:, :rank] * self.values[:rank]) @ self.Vt[:rank]


def filled_by_medians(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2) bool
) -> Any:
    """Return a floating-point copy in which each missing entry is the median of its column, 0 where that is empty."""
    wide: Any = np.float32 if Y.dtype.kind in "iu" else np.float64
    F = np.where(observed, Y, np.nan).astype(wide)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice")
        medians = np.nan_to_num(np.nanmedian(F, axis=0))
    return np.where(observed, F, medians)


def truncated_svd(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2) bool
    rank: int,
    *,
    rounds: int = SVD_ROUNDS,
) -> tuple[Any, Any]:
    """Return factors L (n1, r), R (n2, r) of the SVD of Y whose missing entries are those of the answer itself.

    Each round takes the SVD of the filled matrix, by subspace iteration, and fills the missing entries with it.
    """
    F = filled_by_medians(Y, observed)
    i, j = np.nonzero(~observed)
    width = min(rank + _OVERSAMPLING, *F.shape)
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((F.shape[1], width)))[0].astype(F.dtype)
    for _ in range(rounds):
        for _ in range(_SUBSPACE_STEPS):
            Q = np.linalg.qr(F.T @ np.linalg.qr(F @ Q)[0])[0]
        U, values, Vt = np.linalg.svd(F @ Q, full_matrices=False)
        L, R = U[:, :rank] * values[:rank], (Q @ Vt.T)[:, :rank]
        F[i, j] = np.einsum("mk,mk->m", L[i], R[j])
    return L, R


def pcp(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2) bool
    *,
    rounds: int = PCP_ROUNDS,
) -> Pursuit:
    """Return the answer of PCP (pyrpca, λ = 1/√max(n1, n2)) whose missing entries are those of its low-rank part."""
    from grid_solvers import PCP, solver

    F = filled_by_medians(Y, observed).astype(np.float64)
    solve = solver(PCP, _PCP_LIMIT)
    for _ in range(rounds):
        low_rank = solve(F, 0).low_rank
        F = np.where(observed, F, low_rank)
    S = np.where(observed, F - low_rank, 0.0)
    sparse = np.abs(S) > _ZERO * np.abs(F).max()
    U, values, Vt = np.linalg.svd(low_rank, full_matrices=False)
    return Pursuit(U, values, Vt, float(sparse.sum() / observed.sum()))
