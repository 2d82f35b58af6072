"""GD: gradient descent on the factors, "Fast RPCA" [1]_, on all entries or on a random part of them.

    S = T_{γα}(Y - L Rᵀ),   L ← L + η E R / p - η w L (Lᵀ L - Rᵀ R),   R ← R + η Eᵀ L / p - η w R (Rᵀ R - Lᵀ L),

E being Y - L Rᵀ - S on the entries that count, a share p of all, and η a constant over σ_1 of X. The start is
SVD_r((Y - T_α(Y)) / p). The last terms keep the factors balanced. The number of iterations grows with σ_1/σ_r.

References
----------
.. [1] X. Yi, D. Park, Y. Chen, C. Caramanis, "Fast Algorithms for Robust PCA via Gradient Descent", NeurIPS 2016.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.core.factors import gram
from lrpca.core.passes import Pass
from lrpca.solvers import residuals
from lrpca.solvers.base import Solution
from lrpca.solvers.options import number
from lrpca.solvers.residuals import descend, residual_of
from lrpca.solvers.run import Factors, Run

OPTIONS = {
    **residuals.OPTIONS,
    "balance": number(least=0),
    "sample": number(above=0, most=1),
    "incoherence": number(above=0),
}


def solve(
    run: Run,
    *,
    alpha: float | None = None,
    gamma: float | None = None,
    init: float | None = None,
    step: float | None = None,
    balance: float = 0.0625,
    sample: float | None = None,
    incoherence: float | None = None,
) -> Solution:
    """Run gradient descent.

    Parameters
    ----------
    run : Run
    alpha : float, optional
        Share of outliers among the observed entries; estimated from a block of Y if not given.
    gamma : float, optional
        The iteration rejects the share γ α of every row and column; if not given, what the fullest of them has if
        outliers lie anywhere. The paper: 2, and 3 if entries are missing; its code: 1, of 1.5 times the true α.
    init : float, optional
        Share of every row and column that is rejected before the SVD of the start. If not given, nothing, α (as in the
        paper) or γ α, by the median residual: T_α removes the largest entries of X where outliers are not larger.
    step : float, optional
        η σ_1; 0.9 over the share of entries that were kept if not given (the code: 0.5).
    balance : float
        Weight w of the balance; the paper's is 1/2, the code's 1/16.
    sample : float, optional
        Use only a random share of the entries ("partialGD"): the cost falls to that share, and fewer outliers are
        tolerated. All observed ones if not given.
    incoherence : float, optional
        Shorten rows of the factors to √(4 μ r σ_1 / n) with this μ, after every step; not done if not given.
    """
    residual = residual_of(run, sample)

    def update(L: Any, R: Any, result: Pass, eta: float) -> Factors:
        # σ_1 of the present X: the start, with its largest entries removed, has less.
        largest = _leading_value(L) * _leading_value(R) or 1.0
        tilt_L, tilt_R = balancing(L, R)
        L = L + eta / largest * (result.CA / residual.observed - balance * tilt_L)
        R = R + eta / largest * (result.CtB / residual.observed - balance * tilt_R)
        if incoherence is None:
            return L, R
        limit = 4 * incoherence * run.rank * largest
        return _shortened(L, limit), _shortened(R, limit)

    return descend(run, residual, (alpha, gamma, init, step), update)


def balancing(L: Any, R: Any) -> Factors:
    """Return L (Lᵀ L - Rᵀ R) and R (Rᵀ R - Lᵀ L), the gradient of ‖L^H L - Rᵀ R̄‖² / 4 in either factor."""
    tilt = gram(L).conj() - gram(R)
    return L @ tilt, -R @ tilt.conj()


def _leading_value(M: Any) -> float:
    return float(np.sqrt(max(0.0, np.linalg.eigvalsh(gram(M))[-1])))


def _shortened(M: Any, limit: float) -> Any:
    """Return the factor with rows of at most the length √(limit / n)."""
    length = np.linalg.norm(M, axis=1, keepdims=True)
    most = np.sqrt(limit / len(M))
    return M * (most / np.maximum(length, most)) if most else M * 0
