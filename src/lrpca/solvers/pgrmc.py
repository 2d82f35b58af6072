"""PG-RMC: projected gradient for robust matrix completion [1]_.

    S = hard(P_Ω(Y - X), ζ),   X = SVD_q(X + P_Ω(Y - X - S) / p),   ζ = C σ_{q+1} / √(n1 n2),

Ω being the entries that count, a share p of all. The rank q grows from 1 to r whenever the residual no longer falls;
at rank r it is C, at first μ r, that is lowered. The matrix in the SVD, sparse plus low rank, is known by its products.
Three things are added. The first threshold is found without gross outliers. Then it falls by no more than a factor per
iteration: σ_{q+1} falls faster than the error of the worst row, which would never be accepted again. And it never falls
below 2.5 times the root mean square of the residual that is left, so that noise is not taken for outliers.

References
----------
.. [1] Y. Cherapanamjeri, K. Gupta, P. Jain, "Nearly Optimal Robust Matrix Completion", ICML 2017.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.passes import Pass
from lrpca.solvers.base import Solution
from lrpca.solvers.hard import Data, clean_spread, thresholded_svd
from lrpca.solvers.initialise import ObservationCounts
from lrpca.solvers.listed import ListedResidual
from lrpca.solvers.options import number
from lrpca.solvers.partial_svd import OVERSAMPLING, PartialSVD, random_basis, widened
from lrpca.solvers.residuals import listed_residual_of
from lrpca.solvers.run import Factors, Run

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
    listed = listed_residual_of(run, sample)
    try:
        data = _Counted(run.matrix, run.counts) if listed is None else _Counted(listed, listed)
        return _iterate(run, data, mu * run.rank, decay, known=sample is None)
    finally:
        if listed is not None:
            listed.close()


class _Counted(NamedTuple):
    """The entries Ω that count."""

    source: Data
    counts: ObservationCounts | ListedResidual  # with ‖Y‖ on Ω and the share p

    def svd(self, X: Factors, threshold: float, basis: Any, *, steps: int = _STEPS) -> tuple[PartialSVD, Pass]:
        """Return the leading triplets of X + E / p, E being Y - X where it is below a threshold, and the last pass."""
        return thresholded_svd(self.source, X, threshold, self.counts.observed, basis, steps=steps, rtol=_RTOL)


def _iterate(run: Run, data: _Counted, constant: float, decay: float, *, known: bool) -> Solution:
    n1, n2 = run.matrix.shape
    side, entries = math.sqrt(n1 * n2), data.counts.observed * n1 * n2
    L, R = run.start or (np.zeros((n1, 0)), np.zeros((n2, 0)))
    rank = run.rank if run.start else 1
    threshold, svd = _first_threshold(run, data, (L, R), rank, constant / side)
    before, reason, last = math.inf, None, None
    for _ in run.iterations():
        basis = widened(svd.V, min(rank + 1 + OVERSAMPLING, n1, n2), run.rng)
        svd, last = data.svd((L, R), threshold, basis)
        if not np.isfinite(svd.values).all():
            reason = "runaway"
            break
        L, R = svd.cut(rank).factors()
        size, kept = last.norm_C, int(last.kept_by_row.sum())
        residual = size / data.counts.norm if data.counts.norm else 0.0
        reason = run.record(L, R, threshold=threshold, residual=residual, kept=kept / max(1.0, entries))
        if reason is not None:
            break
        if size > _FALLING * before:
            if rank < run.rank:
                rank += 1
            else:
                constant *= _LOWER
        before = size
        least = max(decay * threshold, _LEAST * size / math.sqrt(max(1, kept)))
        threshold = max(constant * svd.value(rank) / side, least)
    return run.end(L, R, reason or "max_iter", last.kept if last and known else None)


def _first_threshold(run: Run, data: _Counted, X: Factors, rank: int, scale: float) -> tuple[float, PartialSVD]:
    """Return ζ = C σ / √(n1 n2) of what lies below ζ itself, and the triplets for that.

    σ is the first that X does not have. With gross outliers, σ of all of Y would be far too large.
    """
    (n1, n2), width = run.matrix.shape, X[0].shape[1]
    basis = random_basis(n2, min(rank + 1 + OVERSAMPLING, n1, n2), run.rng)
    svd, _ = data.svd(X, math.inf, basis, steps=_FIRST_STEPS)
    threshold = scale * svd.value(width)
    for _ in range(_FIRST_THRESHOLDS):
        svd, _ = data.svd(X, threshold, svd.V)
        higher, threshold = threshold, min(threshold, scale * svd.value(width))
        if threshold > _FALLING * higher:
            break
    if run.start is not None:
        # A good start leaves a small σ; and near a solution some rows are worse than others.
        threshold = _MARGIN * max(threshold, clean_spread(run.sample, *X))
    return threshold, svd
