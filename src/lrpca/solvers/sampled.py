"""Sampling: solve a small block of Y, regress everything else on it, and read all of Y only if that pays.

1. Some rows and columns are drawn, in groups of neighbours, and read once. The block where they cross is solved by the
   default method.
2. All other rows and columns are regressed on it, robustly, from their sampled entries (`lrpca.solvers.cross`).
3. The fit is tested on entries that it has not seen, and on the rows and columns themselves: they must be explained as
   well as the block is. Otherwise Y is solved by the full method.
4. Without noise the fit is exact. With noise of level σ it is off by about σ √(r/m), m being the sampled rows and
   columns, where the full method is off by σ √(r/n): one tangent pass over Y removes most of the difference, a second
   one the rest and shows it.

It is also the CUR-type initialisation for huge problems that the paper [1]_ suggests.

References
----------
.. [1] H. Cai, J. Liu, W. Yin, "Learned Robust PCA: A Scalable Deep Unfolding Approach for High-Dimensional Outlier
   Detection", NeurIPS 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lrpca.core.factors import product_norm
from lrpca.kernels.scale import residual_core, rounding_level
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import Sample, draw_sample, grouped, observed_share
from lrpca.schedule import default_schedule
from lrpca.solvers.adaptive import solve_adaptive
from lrpca.solvers.base import Solution, State
from lrpca.solvers.checks.low_inlier_rows import unexplained_rows
from lrpca.solvers.checks.other_fits import structure_of
from lrpca.solvers.checks.residual_structure import SUSPICIOUS, leading_over_edge
from lrpca.solvers.cross import Cross, Fit, Peak, cross_sides, read_cross, regress
from lrpca.solvers.options import integer
from lrpca.solvers.polish import Polish
from lrpca.solvers.problem import Problem
from lrpca.solvers.rules import RULES
from lrpca.solvers.run import Factors, Run, padded

# Passes over Y after which the full method solves Y, if X is not stationary.
_MOST_PASSES = 4
# The least number of sampled rows and columns for each component.
_LEAST_PER_COMPONENT = 4
# Entries that were not sampled must have a σ of at most this times the block's, and be clean as often but for this
# much and so many standard deviations of chance.
_LOUDER, _FEWER_CLEAN, _SURELY = 1.2, 0.03, 5.0
# Without noise σ is rounding, of products that are longer or shorter.
_LOUDER_ROUNDING = 6.0
# A row that keeps less than this part of what others keep is unexplained; below the second it is tested for structure.
_UNEXPLAINED, _LOW_INLIERS, _ENOUGH = 0.3, 0.7, 10
# The last convergence checks of the block run if its noise is so loud that it may be outliers, or if the residuals
# within so many σ have a singular value this much beyond that of noise.
_LAST_CHECKS = frozenset({"residual_structure", "other_fits", "refine_cutoff"})
_LOUD, _CLEAN, _LIKE_NOISE = 0.3, 4.0, 1.3
_AT_REST = ("tol", "noise_floor")
_TINY = 1e-300

OPTIONS = {"side": integer(8), "passes": integer(0)}


def solve(run: Run, *, side: int | None = None, passes: int | None = None) -> Solution:
    """Sample, regress, check, and pass over Y if it pays.

    Parameters
    ----------
    run : Run
    side : int, optional
        How many rows and how many columns are drawn: 400, or 32 for each component if that is more, divided by the
        observed share, unless given. Where that is more than half of Y, all of it is solved by the full method.
    passes : int, optional
        Most passes over the whole of Y; as many as it takes if not given (none without noise, mostly two with it).
        Where fewer are allowed than the noise calls for, the run has not converged.
    """
    shape = run.matrix.shape
    sides = cross_sides(shape, run.rank, 1.0, side)
    if sides is not None and side is None:
        sides = cross_sides(shape, run.rank, observed_share(run.matrix, run.rng))
    if sides is None:
        return _solve_fully(run)
    if min(sides) < _LEAST_PER_COMPONENT * run.rank:
        raise ValueError(
            f"options['side']={side} is too small for rank={run.rank}; give at least {_LEAST_PER_COMPONENT * run.rank}"
        )
    run.settle(side=max(sides))
    iterations = run.iterations()
    next(iterations)  # starts the clock
    fit = _sampled_fit(run, sides)
    if isinstance(fit, str):
        run.settle(fallback=fit)
        return _solve_fully(run)
    return _polished(run, fit, iterations, passes)


@dataclass(frozen=True)
class _SampledFit:
    """The solution of the block, and the regressions of all rows and columns on it."""

    run: Run
    cross: Cross
    block: Factors  # (m1, k), (m2, k)
    block_residuals: Any  # (m,) of sampled entries of the block
    peak: Peak
    by_row: Fit
    by_column: Fit

    @property
    def factors(self) -> Factors:
        """L (n1, k) and R (n2, k)."""
        return self.by_row.coefficients, self.by_column.coefficients

    def error(self) -> float:
        """Return the relative error that the noise is expected to cause."""
        entries, kept = math.sqrt(math.prod(self.run.matrix.shape)), max(self.peak.share, 0.1)
        # Every row and every column has its own error.
        variance = sum(factor.shape[1] / (kept * len(factor)) for factor in self.block)
        return self.peak.sigma * math.sqrt(variance) * entries / max(product_norm(*self.factors), _TINY)

    def numbers(self) -> dict[str, float | None]:
        """Return the numbers of the first record; without noise the change is that of the regressions."""
        row, column = self.by_row, self.by_column
        observed = int(row.observed.sum() + column.observed.sum())
        return {
            "threshold": max(row.threshold, column.threshold),
            "residual": math.hypot(row.residual, column.residual) / max(math.hypot(row.norm, column.norm), _TINY),
            "kept": int(row.kept.sum() + column.kept.sum()) / max(1, observed),
            "change": None if self.peak.is_noise else math.hypot(row.change, column.change),
        }

    def problem(self) -> str | None:
        """Return why the fit is unreliable, if it is."""
        cross, rank = self.cross, self.block[0].shape[1]
        for name, fit, band, known in (
            ("row", self.by_row, cross.columns, self.block[1]),
            ("column", self.by_column, cross.rows, self.block[0]),
        ):
            least = int(fit.observed.min())
            if least < _LEAST_PER_COMPONENT * rank:
                return f"a {name} has only {least} observed entries in the sample"
            if fit.lacking:
                return f"{fit.lacking} {name}(s) have no clean entry that tells of some component of the sampled block"
            shares = fit.kept_shares()
            unexplained = int(np.count_nonzero(shares < _UNEXPLAINED))
            if unexplained:
                return f"{unexplained} {name}(s) are not explained by the sampled block"
            low = np.flatnonzero(shares < _LOW_INLIERS)
            # Rows with more outliers than others, or with a component that the block does not have?
            if len(low) >= _ENOUGH and structure_of(band.part(low), known, fit.coefficients[low]) > SUSPICIOUS:
                return f"{len(low)} {name}s have structure that the sampled block does not have"
        return self._held_out_problem()

    def _held_out_problem(self) -> str | None:
        """Test the fit on entries outside the sampled rows and columns.

        Two numbers are enough: a component that a block of this size would show raises σ by far more.
        """
        matrix, peak = self.run.matrix, self.peak
        is_new = [np.ones(n, bool) for n in matrix.shape]
        is_new[0][self.cross.rows.indices] = is_new[1][self.cross.columns.indices] = False
        sample = self.run.sample.telling
        held_out = sample.only(is_new[0][sample.rows] & is_new[1][sample.columns])
        count = len(held_out.values)
        if count == 0:
            return "no entry outside the sampled rows and columns is observed"
        found = _peak_of(matrix, held_out, *self.factors)
        if peak.is_noise:
            # The block's fit has taken up part of its noise, and new entries have the error of their row and column.
            (m1, r), m2 = self.block[0].shape, len(self.block[1])
            fitted = min(0.5, r * (m1 + m2 - r) / (max(peak.share, 0.1) * m1 * m2))
            limit = _LOUDER * peak.sigma * math.sqrt((1 + fitted) / (1 - fitted))
        else:
            limit = _LOUDER_ROUNDING * max(peak.sigma, peak.rounding)
        if found.sigma > limit:
            return f"held-out entries have residuals of {found.sigma:.2g}, the sampled block of {peak.sigma:.2g}"
        both = held_out.residuals(*self.factors), self.block_residuals
        clean, expected = (float(np.mean(sizes <= _CLEAN * limit)) for sizes in both)
        chance = math.sqrt(expected * (1 - expected) * (1 / count + 1 / len(self.block_residuals)))
        if clean < expected - _FEWER_CLEAN - _SURELY * chance:
            return f"{100 * clean:.0f}% of held-out entries are explained, {100 * expected:.0f}% of the sampled block"
        return None


def _sampled_fit(run: Run, sides: tuple[int, int]) -> _SampledFit | str:
    """Return the fit to sampled rows and columns, or why it is unreliable."""
    # In groups of neighbours; which ones depends on shape, number and seed only.
    cross = read_cross(run.matrix, *(grouped(n, m, run.rng) for n, m in zip(run.matrix.shape, sides, strict=True)))
    try:
        sample = draw_sample(cross.core, run.rng, exact=True)
        cross.core.fit_range_to(sample.values)
        core = _solve_core(run, cross.core, sample)
        if core.reason not in _AT_REST:
            return f"the sampled block did not converge ({core.reason})"
        there = core.L.any(axis=0) & core.R.any(axis=0)
        L_I, R_J = core.L[:, there], core.R[:, there]
        peak = _peak_of(run.matrix, sample.telling, L_I, R_J)
        if not (peak.typical and there.any()):
            return "the sampled block is zero"
        tol = _tolerance(run)
        by_row, by_column = regress(cross.columns, R_J, peak, tol), regress(cross.rows, L_I, peak, tol)
        residuals = sample.telling.residuals(L_I, R_J)
        fit = _SampledFit(run, cross, (L_I, R_J), residuals, peak, by_row, by_column)
        return fit.problem() or fit
    finally:
        cross.close()


def _solve_core(run: Run, core: DenseMatrix, sample: Sample) -> Solution:
    """Solve the block, with the last checks, which cost more than all the rest, only if a quick test fails."""
    problem = Problem(core, run.rank, default_schedule(), sample, _tolerance(run), run.method.max_iter, run.rng)
    quick = solve_adaptive(problem, rules=frozenset(RULES) - _LAST_CHECKS)
    return quick if _is_plain(core, sample, quick) else solve_adaptive(problem)


def _is_plain(core: DenseMatrix, sample: Sample, solution: Solution) -> bool:
    """Tell whether a solution of the block is stationary, has no low-inlier rows, and leaves nothing but noise."""
    assert solution.counts is not None and solution.kept is not None
    if solution.reason not in _AT_REST or unexplained_rows(solution.kept, solution.counts):
        return False
    peak = _peak_of(core, sample.telling, solution.L, solution.R)
    if not peak.is_noise:
        return True
    residual = core.array - solution.L @ solution.R.T
    with np.errstate(invalid="ignore"):
        kept = np.abs(residual) <= _CLEAN * peak.sigma
    kept = kept if core.mask is None else kept & core.mask
    rng = np.random.default_rng(0)
    ratio = leading_over_edge(np.where(kept, residual, 0.0), float(np.mean(kept)), rng)
    return peak.sigma <= _LOUD * peak.typical and ratio <= _LIKE_NOISE


def _tolerance(run: Run) -> float:
    """Return the tolerance of the small problems: never a rough one, whose error would count as noise."""
    single = run.matrix.result in (np.float32, np.complex64)
    usual = max(run.method.tol, 1e-6) if single else run.method.tol
    return min(run.tol, usual) or usual


def _peak_of(matrix: DenseMatrix, sample: Sample, L: Any, R: Any) -> Peak:
    typical = sample.typical
    rounding = rounding_level(matrix.result, typical)
    found = residual_core(sample.residuals(L, R), rounding, is_complex=matrix.stored.kind == "c")
    return Peak(found.sigma, found.share, typical, rounding)


def _polished(run: Run, fit: _SampledFit, iterations: Iterator[int], passes: int | None) -> Solution:
    """Record the sampled fit, and pass over Y while that pays."""
    polish = Polish(run, *fit.factors)
    numbers = fit.numbers()
    stop = run.record(*polish.factors, **numbers)
    change = fit.error() if numbers["change"] is None else numbers["change"]
    if stop is None and run.tol and polish.is_small(change):
        stop = "tol"
    may_go_on = passes is None and len(run.history) < run.max_iter
    if stop is None and may_go_on and run.tol and fit.peak.is_noise and polish.rank < run.rank:
        # Weak components of the whole may be hidden in the noise of the block, and would be slow to grow from nothing.
        return _solve_fully(run)
    most = _MOST_PASSES if passes is None else passes
    while stop is None:
        if len(run.history) > most and (passes is not None or run.tol):
            if passes is None and len(run.history) < run.max_iter:
                return _solve_fully(run, padded(*polish.factors, run.rank))
            break
        if next(iterations, None) is None:
            break
        stop = polish.step()
    return polish.solution(stop or "max_iter")


def _solve_fully(run: Run, start: Factors | None = None) -> Solution:
    """Return the solution of the full method; its iterations are counted from those before."""
    before = list(run.history)
    callback = run.problem.callback

    def counted_on(state: State) -> object:
        assert callback is not None
        return callback(replace(state, iteration=len(before) + state.iteration))

    seen, left = None if callback is None else counted_on, run.max_iter - len(before)
    problem = replace(run.problem, schedule=default_schedule(), max_iter=left, callback=seen, start=start)
    solution = solve_adaptive(problem)
    history = [replace(record, iteration=len(before) + record.iteration) for record in solution.history]
    return replace(solution, history=before + history)
