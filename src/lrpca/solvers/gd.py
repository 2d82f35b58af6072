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
from lrpca.solvers.base import Solution
from lrpca.solvers.options import number
from lrpca.solvers.outlier_share import settle_share
from lrpca.solvers.residuals import first_factors, full_step, relative, residual_of
from lrpca.solvers.run import Run

OPTIONS = {
    "alpha": number(least=0, below=1),
    "gamma": number(least=1),
    "init": number(least=0, below=1),
    "step": number(above=0),
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
    result, reason = None, "max_iter"
    try:
        alpha, share = settle_share(run, alpha, gamma, residual.observed)
        L, R = first_factors(run, residual, (alpha, share), init)
        for _ in run.iterations():
            result = residual.sparsified(L, R, share)
            size, kept = relative(residual, result)
            # σ_1 of the present X: the start, with its largest entries removed, has less.
            largest = _leading_value(L) * _leading_value(R) or 1.0
            eta = step or full_step(kept)
            tilt_L, tilt_R = balancing(L, R)
            dL = result.CA / residual.observed - balance * tilt_L
            dR = result.CtB / residual.observed - balance * tilt_R
            if not (np.isfinite(dL).all() and np.isfinite(dR).all()):
                reason = "runaway"
                break
            L, R = L + eta / largest * dL, R + eta / largest * dR
            if incoherence is not None:
                limit = 4 * incoherence * run.rank * largest
                L, R = _shortened(L, limit), _shortened(R, limit)
            verdict = run.record(L, R, step=eta, residual=size, kept=kept)
            if verdict is not None:
                reason = verdict
                break
    finally:
        residual.close()
    return run.end(L, R, reason, result.kept if result and (sample or 1.0) == 1.0 else None)


def balancing(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
) -> tuple[Any, Any]:
    """Return L (Lᵀ L - Rᵀ R) and R (Rᵀ R - Lᵀ L), the gradient of ‖L^H L - Rᵀ R̄‖² / 4 in either factor."""
    tilt = gram(L).conj() - gram(R)
    return L @ tilt, -R @ tilt.conj()


def _leading_value(
    M: Any,  # (n, r)
) -> float:
    return float(np.sqrt(max(0.0, np.linalg.eigvalsh(gram(M))[-1])))


def _shortened(
    M: Any,  # (n, r)
    limit: float,
) -> Any:
    """Return the factor with rows of at most the length √(limit / n)."""
    length = np.linalg.norm(M, axis=1, keepdims=True)
    most = np.sqrt(limit / len(M))
    return M * (most / np.maximum(length, most)) if most else M * 0
