"""PG-RMC: projected gradient for robust matrix completion [1]_.

    S = hard(P_Ω(Y - X), ζ),   X = SVD_q(X + P_Ω(Y - X - S) / p),   ζ = C σ_{q+1} / √(n1 n2),

Ω being the entries that count, a share p of all. The rank q grows from 1 to r whenever the residual no longer falls;
at rank r it is C, at first μ r, that is lowered. The matrix in the SVD, sparse plus low rank, is known by its products.
Three things are added. The first threshold is found without gross outliers. Then it falls by no more than a factor per
iteration: σ_{q+1} falls faster than the error of the worst row, which would be rejected for ever. And it never falls
below 2.5 times the root mean square of the residual that is left, so that noise is not taken for outliers.

References
----------
.. [1] Y. Cherapanamjeri, K. Gupta, P. Jain, "Nearly Optimal Robust Matrix Completion", ICML 2017.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from lrpca.core.influence import levels
from lrpca.core.passes import Pass
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.base import Solution
from lrpca.solvers.hard import clean_spread
from lrpca.solvers.options import number
from lrpca.solvers.partial_svd import OVERSAMPLING, PartialSVD, leading_svd, random_basis, widened
from lrpca.solvers.residuals import listed_residual_of
from lrpca.solvers.run import Run

OPTIONS = {"mu": number(above=0), "decay": number(least=0, below=1), "sample": number(above=0, most=1)}

# The first SVD starts from nothing, later ones from the last.
_FIRST_STEPS, _STEPS, _RTOL = 4, 1, 1e-2
_FIRST_THRESHOLDS = 30
# The first threshold at a given start, in units of what it leaves.
_MARGIN = 10.0
# The residual falls if it falls by a tenth; else C is lowered to nine tenths, where the rank is reached.
_FALLING, _LOWER = 0.9, 0.9
# No threshold below so many root mean squares of the residual.
_LEAST = 2.5


class BelowThreshold(Protocol):
    """E = Y - X where it is below a threshold, 0 elsewhere and outside Ω."""

    norm: float  # ‖Y‖ on Ω
    observed: float  # p

    def hold_below(self, L: Any, R: Any, threshold: float) -> None:
        """Take X = L Rᵀ and the threshold for the products that follow."""
        ...

    def times(self, A: Any) -> Any:
        """Return E A."""
        ...

    def adjoint_times(self, B: Any) -> Any:
        """Return E^H B."""
        ...

    def kept(self) -> Pass:
        """Return ‖E‖ and how many entries of each row and column are kept, once a product was taken."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


def solve(run: Run, *, mu: float = 5.0, decay: float = 0.65, sample: float | None = None) -> Solution:
    """Run projected gradient for robust matrix completion.

    Parameters
    ----------
    run : Run
    mu : float
        Incoherence μ of X: the threshold's constant C starts from μ r. Too small a one rejects large entries of X.
    decay : float
        By what factor the threshold may fall in an iteration, in [0, 1): larger is slower, and tolerates more outliers
        in single rows and columns. 0 is the paper's rule.
    sample : float, optional
        Use only a random share of the entries, as the paper does for robust PCA. All observed ones if not given.
    """
    data = _data(run, sample)
    try:
        return _iterate(run, data, mu * run.rank, decay, known=sample is None)
    finally:
        data.close()


def _iterate(run: Run, data: BelowThreshold, constant: float, decay: float, *, known: bool) -> Solution:
    n1, n2 = run.matrix.shape
    side, entries = math.sqrt(n1 * n2), data.observed * n1 * n2
    L, R = run.start or (np.zeros((n1, 0)), np.zeros((n2, 0)))
    rank = run.rank if run.start else 1
    threshold, svd = _first_threshold(run, data, L, R, rank, constant / side)
    before, reason, last = math.inf, "max_iter", None
    for _ in run.iterations():
        basis = widened(svd.V, min(rank + 1 + OVERSAMPLING, n1, n2), run.rng)
        svd = _svd(data, L, R, threshold, basis, steps=_STEPS)
        last = data.kept()
        if not np.isfinite(svd.values).all():
            reason = "runaway"
            break
        L, R = svd.cut(rank).factors()
        size, kept = last.norm_C, int(last.kept_by_row.sum())
        verdict = run.record(
            L,
            R,
            threshold=threshold,
            residual=size / data.norm if data.norm else 0.0,
            kept=kept / max(1.0, entries),
        )
        if verdict is not None:
            reason = verdict
            break
        if size > _FALLING * before:
            if rank < run.rank:
                rank += 1
            else:
                constant *= _LOWER
        before = size
        least = max(decay * threshold, _LEAST * size / math.sqrt(max(1, kept)))
        threshold = max(constant * svd.value(rank) / side, least)
    return run.end(L, R, reason, last.kept if last and known else None)


def _first_threshold(
    run: Run, data: BelowThreshold, L: Any, R: Any, rank: int, scale: float
) -> tuple[float, PartialSVD]:
    """Return ζ = C σ / √(n1 n2) of what lies below ζ itself, and the triplets for that.

    σ is the first that X does not have. With gross outliers, that of all of Y is no measure of X, which would fit them.
    """
    n1, n2 = run.matrix.shape
    basis = random_basis(n2, min(rank + 1 + OVERSAMPLING, n1, n2), run.rng)
    svd = _svd(data, L, R, math.inf, basis, steps=_FIRST_STEPS)
    threshold = scale * svd.value(L.shape[1])
    for _ in range(_FIRST_THRESHOLDS):
        svd = _svd(data, L, R, threshold, svd.V, steps=_STEPS)
        higher, threshold = threshold, min(threshold, scale * svd.value(L.shape[1]))
        if threshold > _FALLING * higher:
            break
    if run.start is not None:
        # A good start leaves no σ to speak of; and near a solution some rows are worse than others.
        threshold = _MARGIN * max(threshold, clean_spread(run.sample, L, R))
    return threshold, svd


def _svd(data: BelowThreshold, L: Any, R: Any, threshold: float, basis: Any, *, steps: int) -> PartialSVD:
    """Return the leading triplets of X + E / p."""
    data.hold_below(L, R, threshold)

    def times(A: Any) -> Any:
        return L @ (R.T @ A) + data.times(A) / data.observed

    def adjoint_times(B: Any) -> Any:
        return (R @ (L.T @ B.conj())).conj() + data.adjoint_times(B) / data.observed

    return leading_svd(times, adjoint_times, basis, steps=steps, rtol=_RTOL)


def _data(run: Run, sample: float | None) -> BelowThreshold:
    listed = listed_residual_of(run, sample)
    return _Dense(run.matrix, run.survey.norm, run.survey.observed) if listed is None else listed


class _Dense:
    """E of a dense matrix: every product is a pass over Y."""

    def __init__(self, matrix: DenseMatrix, norm: float, observed: float) -> None:
        self._matrix, self.norm, self.observed = matrix, norm, observed

    def hold_below(self, L: Any, R: Any, threshold: float) -> None:
        """Take X = L Rᵀ and the threshold for the products that follow."""
        self._L, self._R, self._level = L, R, levels("hard", threshold)

    def times(self, A: Any) -> Any:
        """Return E A."""
        none = np.zeros((self._matrix.shape[0], 0))
        self._last = self._matrix.run_pass(self._L, self._R, self._level, A=A, B=none)
        return self._last.CA

    def adjoint_times(self, B: Any) -> Any:
        """Return E^H B."""
        none = np.zeros((self._matrix.shape[1], 0))
        self._last = self._matrix.run_pass(self._L, self._R, self._level, A=none, B=B.conj())
        return self._last.CtB.conj()

    def kept(self) -> Pass:
        """Return ‖E‖ and how many entries of each row and column are kept, once a product was taken."""
        return self._last

    def close(self) -> None:
        """Nothing to end: the threads are the matrix's own."""
