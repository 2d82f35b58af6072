"""AltProj: alternating projections in stages of growing rank [1]_, and the variant that is widely run in its place.

    S = hard(Y - X, ζ),   X = SVD_k(Y - S),   ζ = β (σ_{k+1} + 2^-t σ_k)      (t = 0, 1, ... within stage k = 1 ... r)

A component ten times the next would otherwise force a threshold under which weak ones hide. The practical variant
("ncrpca", after the name of its program) has ``ζ = C σ_{k+1} / (n1 n2)^¼``, never releases an entry once it is taken
for an outlier, and lowers C where it stops making progress at full rank. ``Y - S`` is never formed
(`lrpca.solvers.hard`); its SVD starts from the last one.

References
----------
.. [1] P. Netrapalli, U. N. Niranjan, S. Sanghavi, A. Anandkumar, P. Jain, "Non-convex Robust PCA", NeurIPS 2014.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.core.influence import levels
from lrpca.core.passes import Pass
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.base import Solution
from lrpca.solvers.hard import clean_spread, first_svd, thresholded_svd
from lrpca.solvers.options import choice, number
from lrpca.solvers.run import Run
from lrpca.solvers.stationarity import SparseThreshold, StationarityTest

OPTIONS = {
    "variant": choice("paper", "ncrpca"),
    "beta": number(above=0),
    "incoherence": number(above=0),
    "floor": number(least=0),
    "change": number(least=1e-6, below=1),
}

# A stage below full rank ends when its threshold falls by less than this per iteration.
_SETTLED = 0.95
# The practical variant: progress per iteration that counts as such, and what C is multiplied by without it.
_PROGRESS, _LOWER = 0.9, 0.9
_BLOCK = 1 << 20


def solve(
    run: Run,
    *,
    variant: str = "paper",
    beta: float | None = None,
    incoherence: float | None = None,
    floor: float = 3.0,
    change: float | None = None,
) -> Solution:
    """Run alternating projections.

    Parameters
    ----------
    run : Run
    variant : {"paper", "ncrpca"}
        The staged algorithm, or the practical variant.
    beta : float, optional
        Threshold of the paper's form in units of singular values; ``1 / (2 (n1 n2)^¼)`` if not given.
    incoherence : float, optional
        C of the practical variant's threshold; 1 if not given.
    floor : float
        The threshold is held above so many times the spread of clean residuals: in noise it would otherwise fall until
        S takes in everything. 0 lets it, as in the paper.
    change : float, optional
        Also stop when the relative changes of X and S are both below this at full rank (`lrpca.solvers.stationarity`),
        and with ``tol=0`` only then. Not for the practical variant.
    """
    if variant == "ncrpca":
        run.refuse("by variant='ncrpca'", beta=beta, change=change)
        incoherence = incoherence or 1.0
        run.settle(incoherence=incoherence)
        return _practical(run, incoherence, floor)
    run.refuse("by variant='paper'", incoherence=incoherence)
    n1, n2 = run.matrix.shape
    beta = beta or 0.5 / (n1 * n2) ** 0.25
    run.settle(beta=beta)
    svd, threshold = first_svd(run, run.rank + 1, beta)
    L, R = np.zeros((n1, 0)), np.zeros((n2, 0))
    last: Pass | None = None
    reason: str | None = None
    test = StationarityTest(run.matrix, run.sample, change)
    k, t = 1, 0
    for _ in run.iterations():
        svd, last = thresholded_svd(run.matrix, (L, R), threshold, run.counts.observed, svd.V)
        entering, (L, R) = (L, R), svd.cut(k).factors()
        reason = _record(run, L, R, k, threshold, last)
        if reason is not None:
            break
        if test.reached(entering, SparseThreshold.of(levels("hard", threshold)), (L, R)) and k == run.rank:
            reason = "tol"
            break
        wanted = beta * (svd.value(k) + 0.5**t * float(svd.values[k - 1]))
        before, threshold = threshold, max(wanted, min(threshold, floor * clean_spread(run.sample, L, R)))
        t += 1
        if k < run.rank and t > 1 and threshold > _SETTLED * before:
            k, t = k + 1, 0
    return run.end(L, R, reason or "max_iter", last.kept if last else None)


def _practical(run: Run, incoherence: float, floor: float) -> Solution:
    n1, n2 = run.matrix.shape
    unit = incoherence / (n1 * n2) ** 0.25
    svd, threshold = first_svd(run, run.rank + 1, unit)
    L, R = np.zeros((n1, 0)), np.zeros((n2, 0))
    clean = np.ones((n1, n2), bool) if run.matrix.mask is None else run.matrix.mask.copy()
    last: Pass | None = None
    reason: str | None = None
    k, residual = 1, np.inf
    for _ in run.iterations():
        _take_outliers(run.matrix, L, R, threshold, clean)
        rest = run.matrix.with_mask(clean)
        try:
            svd, last = thresholded_svd(rest, (L, R), np.inf, run.counts.observed, svd.V)
        finally:
            run.matrix.reads += rest.reads
            rest.close()
        L, R = svd.cut(k).factors()
        reason = _record(run, L, R, k, threshold, last)
        if reason is not None:
            break
        before, residual = residual, run.history[-1].residual or 0.0
        if residual > _PROGRESS * before:
            if k < run.rank:
                # What is flagged is flagged for good: never by a threshold for more components than X has.
                k = _widest_gap(svd.values, k, run.rank)
                L, R = svd.cut(k).factors()
            else:
                unit *= _LOWER
        threshold = max(unit * svd.value(k), min(threshold, floor * clean_spread(run.sample, L, R)))
    return run.end(L, R, reason or "max_iter", last.kept if last else None)


def _take_outliers(matrix: DenseMatrix, L: Any, R: Any, threshold: float, clean: Any) -> None:
    """Mark entries beyond the threshold as outliers, once and for all."""
    matrix.reads += 1
    for first, block, _ in matrix.blocks(max(1, _BLOCK // matrix.shape[1])):
        rows = slice(first, first + len(block))
        D = np.asarray(block, matrix.arithmetic) - (L[rows] @ R.T).astype(matrix.arithmetic)
        clean[rows] &= np.abs(D) <= threshold


def _widest_gap(values: Any, k: int, rank: int) -> int:
    """Return the rank above k, up to `rank`, after which the singular values fall most."""
    above = np.maximum(values, np.finfo(float).tiny)
    ranks = range(k + 1, rank + 1)
    return max(ranks, key=lambda j: above[j - 1] / above[min(j, len(above) - 1)])


def _record(run: Run, L: Any, R: Any, k: int, threshold: float, last: Pass) -> str | None:
    """Record an iteration of stage k; a stationary X ends the run only in the last stage."""
    residual, kept = run.counts.relative(last)
    reason = run.record(L, R, threshold=threshold, residual=residual, kept=kept)
    return reason if k == run.rank or reason not in ("noise_floor", "stalled") else None
