"""ScaledGD: scaled gradient descent [1]_.

    S = T_{γα}(Y - L Rᵀ),   L ← L + η E R (Rᵀ R)⁻¹ / p,   R ← R + η Eᵀ L (Lᵀ L)⁻¹ / p,   E = Y - L Rᵀ - S

from SVD_r(Y - T_α(Y)), both factors updated from the old ones. T_α keeps what is among the largest share α of the
observed entries of its row *and* of its column; p is the observed share.

References
----------
.. [1] T. Tong, C. Ma, Y. Chi, "Accelerating Ill-Conditioned Low-Rank Matrix Estimation via Scaled Gradient Descent",
   Journal of Machine Learning Research 22, 2021.
"""

from __future__ import annotations

import math

import numpy as np

from lrpca.core import factors as iteration
from lrpca.solvers.base import Solution
from lrpca.solvers.options import number
from lrpca.solvers.outlier_share import settle_share
from lrpca.solvers.residuals import Residual, first_factors, full_step, relative, residual_of
from lrpca.solvers.run import Run
from lrpca.solvers.sparsify import DenseResidual
from lrpca.solvers.stationarity import Cut, Standstill, below

OPTIONS = {
    "alpha": number(least=0, below=1),
    "gamma": number(least=1),
    "init": number(least=0, below=1),
    "step": number(above=0),
    "change": number(least=1e-6, below=1),
}


def solve(
    run: Run,
    *,
    alpha: float | None = None,
    gamma: float | None = None,
    init: float | None = None,
    step: float | None = None,
    change: float | None = None,
) -> Solution:
    """Run scaled gradient descent.

    Parameters
    ----------
    run : Run
    alpha : float, optional
        Share of outliers among the observed entries; estimated from a block of Y if not given.
    gamma : float, optional
        The iteration rejects the share γ α of every row and column. If not given, what the fullest of them has if
        outliers lie anywhere: 1.47 for α = 0.1 and 1000 entries. The authors' 2 rejects so many clean entries that it
        fails from α = 0.2 on; less than the fullest row has leaves outliers in for ever.
    init : float, optional
        Share of every row and column that is rejected before the SVD of the start. If not given, nothing, α (as in the
        paper) or γ α, by the median residual: T_α removes the largest entries of X where outliers are not larger.
    step : float, optional
        Length η of the step; 0.9 over the share of entries that were kept if not given (the authors: 0.5).
    change : float, optional
        Stop, too, when X and S have both changed by less than this part of themselves (`lrpca.solvers.stationarity`);
        with ``tol=0`` by nothing else. Not where less than 0.3 of the entries are observed.
    """
    residual = residual_of(run)
    result, reason = None, "max_iter"
    standstill = Standstill(run.matrix, run.sample, change)
    if not isinstance(residual, DenseResidual):
        run.refuse("where few entries are observed", change=change)
    try:
        alpha, share = settle_share(run, alpha, gamma, residual.observed)
        L, R = first_factors(run, residual, (alpha, share), init)
        for _ in run.iterations():
            result = residual.sparsified(L, R, share)
            size, kept = relative(residual, result)
            eta = step or full_step(kept)
            dL, dR = iteration.scaled_directions(L, R, result)
            if not (np.isfinite(dL).all() and np.isfinite(dR).all()):
                reason = "runaway"
                break
            before, (L, R) = (L, R), (L + eta / residual.observed * dL, R + eta / residual.observed * dR)
            verdict = run.record(L, R, step=eta, residual=size, kept=kept)
            if verdict is not None:
                reason = verdict
                break
            if change is not None and standstill.reached(before, _cut(residual, run), (L, R)):
                reason = "tol"
                break
    finally:
        residual.close()
    return run.end(L, R, reason, result.kept if result else None)


def _cut(residual: Residual, run: Run) -> Cut:
    """Return how the last iteration cut S out of the residual."""
    assert isinstance(residual, DenseResidual)
    largest = float(np.abs(run.sample.values).max())
    rows, columns = (below(levels, largest, run.matrix.arithmetic) for levels in residual.levels)
    return Cut(math.inf, rows, columns)
