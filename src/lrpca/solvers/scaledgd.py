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
from typing import Any

import numpy as np

from lrpca.core import factors as iteration
from lrpca.core.passes import Pass
from lrpca.solvers import residuals
from lrpca.solvers.base import Solution
from lrpca.solvers.options import number
from lrpca.solvers.residuals import Residual, descend, residual_of
from lrpca.solvers.run import Factors, Run
from lrpca.solvers.sparsify import DenseResidual
from lrpca.solvers.stationarity import SparseThreshold, StationarityTest

OPTIONS = {
    **residuals.OPTIONS,
    "change": number(least=1e-6, below=1),
}

# Roundings of the largest entry of Y.
_ROUNDINGS = 8.0


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
        fails from α = 0.2 on; a share below that of the fullest row never removes all outliers.
    init : float, optional
        Share of every row and column that is rejected before the SVD of the start; as in `lrpca.solvers.gd`.
    step : float, optional
        Length η of the step; 0.9 over the share of entries that were kept if not given (the authors: 0.5).
    change : float, optional
        Also stop when the relative changes of X and S are both below this (`lrpca.solvers.stationarity`), and with
        ``tol=0`` only then. Not where less than 0.3 of the entries are observed.
    """
    residual = residual_of(run)
    test = StationarityTest(run.matrix, run.sample, change)
    if not isinstance(residual, DenseResidual):
        run.refuse("where few entries are observed", change=change)

    def update(L: Any, R: Any, result: Pass, eta: float) -> Factors:
        dL, dR = iteration.scaled_directions(L, R, result)
        return L + eta / residual.observed * dL, R + eta / residual.observed * dR

    def is_stationary(before: Factors, after: Factors) -> bool:
        return change is not None and test.reached(before, _sparse_threshold(residual, run), after)

    return descend(run, residual, (alpha, gamma, init, step), update, is_stationary)


def _sparse_threshold(residual: Residual, run: Run) -> SparseThreshold:
    """Return the threshold of the last iteration, lowered by rounding: its levels are entries of D, computed anew."""
    assert isinstance(residual, DenseResidual)
    real = np.zeros(0, run.matrix.arithmetic).real.dtype
    rounding = _ROUNDINGS * float(np.finfo(real).eps) * float(np.abs(run.sample.values).max())
    rows, columns = (np.maximum(levels - rounding, 0.0) for levels in residual.levels)
    return SparseThreshold(math.inf, rows, columns)
