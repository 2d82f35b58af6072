"""Principal component pursuit [1]_: the convex program, which needs no rank.

    min ‖X‖_* + λ ‖S‖_1   subject to   X + S = Y (on observed entries),      λ = 1/√max(n1, n2)

by the inexact augmented Lagrangian [2]_ (penalty μ growing by ρ) or by alternating directions with a fixed μ [1]_:

    X = shrink(Y - S + Λ/μ, 1/μ),   S = soft(Y - X + Λ/μ, λ/μ),   Λ += μ (Y - X - S).

The new dual is ``Λ = clip(μ (Y - X) + Λ, λ)``: S is never stored, and an iteration is one elementwise sweep and one
partial SVD that starts from the last. Where an entry is missing S costs nothing, so that Λ is 0.

References
----------
.. [1] E. J. Candès, X. Li, Y. Ma, J. Wright, "Robust Principal Component Analysis?", Journal of the ACM 58, 2011.
.. [2] Z. Lin, M. Chen, Y. Ma, "The Augmented Lagrange Multiplier Method for Exact Recovery of Corrupted Low-Rank
   Matrices", arXiv:1009.5055, 2010.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.solvers.base import Solution
from lrpca.solvers.options import choice, number
from lrpca.solvers.run import Run
from lrpca.solvers.shrinkage import Shrinkage

OPTIONS = {
    "algorithm": choice("ialm", "admm"),
    "weight": number(above=0),
    "mu": number(above=0),
    "growth": number(least=1, most=10),
}

# Error of the SVD, in units of ‖Y - X - S‖.
_SVD_ACCURACY = 1e-4
# The penalty's start in units of 1/σ_1(Y), and how far it may grow.
_FIRST_PENALTY, _MOST_GROWN = 1.25, 1e7


def solve(
    run: Run,
    *,
    algorithm: str = "ialm",
    weight: float | None = None,
    mu: float | None = None,
    growth: float | None = None,
) -> Solution:
    """Run principal component pursuit.

    Parameters
    ----------
    run : Run
    algorithm : {"ialm", "admm"}
        Growing or fixed penalty.
    weight : float, optional
        λ, the weight of S; ``1/√(p max(n1, n2))`` if not given, p being the observed share.
    mu : float, optional
        First penalty; ``1.25/σ_1(Y)``, with "admm" ``n1 n2 / (4 ‖Y‖_1)``, if not given.
    growth : float
        ρ, by what factor the penalty grows; ``1 + p²/2`` if not given: 1.5 where nothing is missing, and less where
        the program is harder, so that the penalty does not outrun it. 1 with "admm", which is slow: a residual of 1e-6
        takes hundreds of iterations.
    """
    p = run.counts.observed
    state = _State(run, weight or 1 / math.sqrt(p * max(run.matrix.shape)))
    if state.sigma == 0:
        return run.end(*_nothing(run.matrix.shape), "tol")
    if mu is None:
        mu = _FIRST_PENALTY / state.sigma if algorithm == "ialm" else state.count / (4 * state.absolute_sum)
    if algorithm == "admm":
        run.refuse("by algorithm='admm'", growth=growth)
    growth = (growth or 1 + p**2 / 2) if algorithm == "ialm" else 1.0
    most = mu * _MOST_GROWN
    run.settle(weight=state.weight, mu=mu, growth=growth)
    state.begin(mu)
    reason: str | None = None
    L, R = _nothing(run.matrix.shape)
    moved = mu * run.counts.norm
    for _ in run.iterations():
        svd = state.shrinkage.apply(state.M, 1 / mu, _SVD_ACCURACY * moved / mu)
        next_mu = min(mu * growth, most)
        moved = state.update(svd.U * svd.values, svd.V.conj(), mu, next_mu)
        # What is smaller than Y - X - S belongs to that.
        L, R = svd.cut(max(1, int(np.count_nonzero(svd.values > moved / mu)))).factors()
        residual = moved / (mu * run.counts.norm)
        reason = run.record(L, R, threshold=state.weight / mu, step=mu, residual=residual)
        if reason is not None:
            break
        mu = next_mu
    return run.end(L, R, reason or "max_iter")


class _State:
    """The two matrices of the method: the dual Λ, and M = Y - S + Λ/μ."""

    def __init__(self, run: Run, weight: float) -> None:
        matrix = run.matrix
        self.weight = weight
        self._matrix = matrix
        self._missing = run.counts.observed < 1
        self.count = float(run.counts.observed_by_row.sum())
        self.M = np.zeros(matrix.shape, matrix.arithmetic)

        def fill(rows: slice, block: Any, observed: Any) -> tuple[float, float]:
            np.copyto(self.M[rows], block, where=True if observed is None else observed)
            sums = np.abs(self.M[rows]).sum(axis=1, dtype=np.float64)
            return float(sums.max()), float(sums.sum())

        found = matrix.map_rows(fill, missing=self._missing)
        self._largest_row, self.absolute_sum = max(row for row, _ in found), math.fsum(total for _, total in found)
        self.shrinkage = Shrinkage(matrix.shape, run.rng)
        self.sigma = self.shrinkage.largest(self.M)
        self._dual = np.zeros((0, 0))

    def begin(self, mu: float) -> None:
        """Set Λ to a feasible multiple of Y, and M = Y + Λ/μ.

        That of [2]_ is Y / max(σ_1, max|Y| / λ). With the largest row sum in place of max|Y|, the iterates are those of
        other implementations.
        """
        scale = 1 / max(self.sigma, self._largest_row / self.weight)
        self._dual = self.M * self.M.real.dtype.type(scale)
        self.M *= self.M.real.dtype.type(1 + scale / mu)

    def update(self, U: Any, V: Any, mu: float, next_mu: float) -> float:
        """Take X = U Vᵀ into Λ and M; return ‖Λ' - Λ‖ = μ ‖Y - X - S‖."""
        from lrpca.kernels.clipping import dual_step

        np.matmul(U.astype(self.M.dtype), V.T.astype(self.M.dtype), out=self.M)
        numbers = [self.M.real.dtype.type(number) for number in (mu, next_mu, self.weight)]

        def work(rows: slice, block: Any, observed: Any) -> float:
            return float(dual_step(block, observed, self._dual[rows], self.M[rows], *numbers))

        return math.sqrt(math.fsum(self._matrix.map_rows(work, missing=self._missing)))


def _nothing(shape: tuple[int, int]) -> tuple[Any, Any]:
    return np.zeros((shape[0], 0)), np.zeros((shape[1], 0))
