"""GoDec: alternate the best matrix of rank r and the k largest entries [1]_.

    min ‖Y - X - S‖²,  rank X <= r,  card S <= k:   X = SVD_r(Y - S),   S = the k largest entries of Y - X.

S is never formed: with ζ the k-th largest residual, Y - S is ``X + C``, C being the residual where it is at most ζ. The
paper's bilateral random projections with power steps are a randomised SVD; ours starts from the last singular vectors,
so that one step is enough. An iteration is one read of Y for the exact ζ, and two per step.

References
----------
.. [1] T. Zhou, D. Tao, "GoDec: Randomized Low-rank & Sparse Matrix Decomposition in Noisy Case", ICML 2011.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.kernels.scale import outlier_threshold, rounding_level
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.base import Solution
from lrpca.solvers.hard import thresholded_svd
from lrpca.solvers.options import flag, integer, number
from lrpca.solvers.outlier_share import estimate_outlier_fraction
from lrpca.solvers.partial_svd import OVERSAMPLING, random_basis, widened
from lrpca.solvers.run import Run

# Entries this many times larger than the median of |Y| would decide the first X.
_GROSS = 12.0
# Steps of the SVD that starts from nothing.
_COLD_STEPS = 3
# The k-th largest residual is searched within so many standard deviations of the sample's quantile.
_DEVIATIONS = 5.0
# X fitted to few observed entries can grow without bounds, and ‖Y - X - S‖ / ‖Y‖ beyond this.
_RUNAWAY, _SETTLING = 100.0, 5
# Residuals that are held at a time.
_BLOCK = 1 << 18
# An estimated share is off by a few per cent. The first number of outliers is rather too small (one too large rejects
# whole rows); they are counted again every so many iterations, within these bounds.
_LEAST, _SURPLUS = 0.97, 4.0
_RECOUNT = 15
_RAMP = 0.7
# Sides of the block that the estimate comes from, and how far above the outlier threshold an outlier is counted: the
# error of X is not the same in all rows.
_SIDE, _CLEARLY = 400, 2.0

OPTIONS = {
    "alpha": number(least=0, below=1),
    "ramp": number(least=0, below=1),
    "power_steps": integer(1),
    "warm": flag(),
}


def solve(
    run: Run, *, alpha: float | None = None, ramp: float | None = None, power_steps: int = 1, warm: bool = True
) -> Solution:
    """Run the go decomposition.

    Parameters
    ----------
    run : Run
    alpha : float, optional
        Share of the observed entries that are outliers, k over their number. One per cent too few leave an error of
        2e-5 at a share of 0.1; too many, and rows that were taken for outliers come back slowly. If not given, it is
        estimated from a block of Y, and corrected as X improves.
    ramp : float, optional
        The j-th S has ``k (1 - ramp^j)`` entries: while X is poor, the k largest residuals are whole rows of it, which
        never recover (the error at 30% outliers ten times the signal stays at 5e-3 with 0, the paper's). 0.7 if
        not given, and not used with a start.
    power_steps : int
        Steps of the randomised SVD in every iteration, two reads of Y each.
    warm : bool
        Start each SVD from the last singular vectors, as opposed to a fresh random basis as in the paper.
    """
    matrix, counts = run.matrix, run.counts
    observed = int(counts.observed_by_row.sum())
    if run.start is None:
        ramp = _RAMP if ramp is None else ramp
        run.settle(ramp=ramp)
    else:
        # Given factors are better than a first guess: k is there from the start.
        run.refuse("with a start", ramp=ramp)
    cardinality = _Cardinality(run, alpha, ramp or 0.0, observed)
    width, n2 = min(run.rank + OVERSAMPLING, *matrix.shape), matrix.shape[1]
    wide = np.promote_types(matrix.arithmetic, np.float64)
    L, R = run.start or (np.zeros((n, run.rank), wide) for n in matrix.shape)
    basis = random_basis(n2, width, run.rng) if run.start is None else widened(R.conj(), width, run.rng)
    last, stop = None, None
    for k in run.iterations():
        cold = k == 1 and run.start is None
        if cold:
            # The paper takes all entries into the first SVD.
            threshold = _GROSS * run.sample.typical or math.inf
        else:
            threshold = _threshold(run, L, R, cardinality.at(k, L, R), observed)
        steps = _COLD_STEPS if cold else power_steps
        svd, last = thresholded_svd(matrix, (L, R), threshold, counts.observed, basis, steps=steps)
        basis = svd.V if warm else random_basis(n2, width, run.rng)
        L, R = svd.cut(run.rank).factors()
        residual, kept = counts.relative(last)
        stop = "runaway" if k > _SETTLING and residual > _RUNAWAY else None
        stop = run.record(L, R, threshold=threshold, residual=residual, kept=kept) or stop
        if stop is not None:
            break
    cardinality.settle()
    return run.end(L, R, stop or "max_iter", last.kept if last else None)


class _Cardinality:
    """The number k of outliers: as given, or estimated."""

    def __init__(self, run: Run, alpha: float | None, ramp: float, observed: int) -> None:
        self._run, self._observed, self._given = run, observed, alpha is not None
        self._ramp = ramp
        share = estimate_outlier_fraction(run) if alpha is None else alpha
        entries = math.prod(run.matrix.shape)
        block = math.prod(min(_SIDE, n) for n in run.matrix.shape)
        deviation = math.sqrt(share * (1 - share) * (1 / block - 1 / entries))
        self._most = min(observed - 1, math.ceil((share + _SURPLUS * deviation) * observed))
        self._count = min(observed - 1, round((1.0 if self._given else _LEAST) * share * observed))

    def at(self, k: int, L: Any, R: Any) -> int:
        """Return the number for the k-th iteration."""
        if not self._given and (k % _RECOUNT == 0 or (k == 1 and self._run.start is not None)):
            run = self._run
            rounding = _rounding(run)
            level = _CLEARLY * outlier_threshold(run.sample.core(L, R, rounding).sigma, run.matrix.stored, rounding)
            above, _ = _residuals(run.matrix, L, R, level, level)
            self._count = max(self._count, min(above, self._most))
        return round(self._count * (1 - self._ramp ** (k - 1))) if self._ramp else self._count

    def settle(self) -> None:
        """Store the share that was used last."""
        if not self._given:
            self._run.settle(estimated=True, alpha=self._count / self._observed)


def _threshold(run: Run, L: Any, R: Any, count: int, observed: int) -> float:
    """Return ζ such that `count` of the `observed` residuals are larger.

    One read, and a partition of the residuals that may be it by what the sample says.
    """
    if count == 0:
        return math.inf
    share = count / observed
    sizes = np.sort(run.sample.residuals(L, R))
    spare = _DEVIATIONS * math.sqrt(share * (1 - share) * len(sizes)) + 1
    low, high = (sizes[min(max(round(len(sizes) * (1 - share) + d), 0), len(sizes) - 1)] for d in (-spare, spare))
    above, between = _residuals(run.matrix, L, R, low, high)
    if not above <= count < above + len(between):
        # The sample was wrong: take all of them.
        above, between = _residuals(run.matrix, L, R, -1.0, math.inf)
    place = len(between) - 1 - (count - above)
    # Two ways to compute a residual differ by rounding.
    return max(float(np.partition(between, place)[place]), _rounding(run))


def _rounding(run: Run) -> float:
    """Return the residual below which there is nothing but rounding."""
    sizes = np.abs(run.sample.values)
    return rounding_level(run.matrix.result, float(np.median(sizes) or sizes.max(initial=0.0)))


def _residuals(matrix: DenseMatrix, L: Any, R: Any, low: float, high: float) -> tuple[int, Any]:
    """Return how many |Y - L Rᵀ| are above `high`, and those from `low` to `high`: one read of Y."""
    matrix.reads += 1
    L, Rt = L.astype(matrix.arithmetic), np.ascontiguousarray(R.T, matrix.arithmetic)
    above, between = 0, []
    for start, block, mask in matrix.blocks(max(1, _BLOCK // matrix.shape[1])):
        size = np.abs(block - L[start : start + len(block)] @ Rt)
        size = size if mask is None else size[mask]
        # Comparisons with NaN are False: missing entries are in neither.
        above += int(np.count_nonzero(size > high))
        between.append(size[(size >= low) & (size <= high)])
    return above, np.concatenate(between)
