"""Sampling: solve a small block of Y, regress everything else on it, and read all of Y only if that pays.

1. Some rows and columns are drawn, in groups of neighbours, and read once. The block where they cross is solved by the
   default method.
2. All other rows and columns are regressed on it, robustly, from their sampled entries (`lrpca.solvers.cross`).
3. The answer is held against entries that it has not seen, and against the rows and columns themselves: they must be
   explained as well as the block is. Otherwise Y is solved by the full method.
4. Without noise the answer is exact. With noise of level σ it is off by about σ √(r/m), m being the sampled rows and
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
from lrpca.matrices.sample import Sample, draw_sample, observed_share
from lrpca.schedule import default_schedule
from lrpca.solvers.adaptive import solve_adaptive
from lrpca.solvers.base import Solution, State
from lrpca.solvers.checks.low_inlier_rows import left_behind
from lrpca.solvers.checks.residual_structure import SUSPICIOUS, leading_over_edge, structure_left
from lrpca.solvers.cross import Cross, Fit, Peak, cross_sides, draw_cross, regress
from lrpca.solvers.options import integer
from lrpca.solvers.polish import Polish
from lrpca.solvers.problem import Problem
from lrpca.solvers.rules import RULES
from lrpca.solvers.run import Factors, Run

# Passes over Y after which the full method takes over, if X is still on its way.
_MOST_PASSES = 4
# Fewer sampled rows and columns than this for each component are refused.
_LEAST_PER_COMPONENT = 4
# Entries that were not sampled must have a σ of at most this times the block's, and be clean as often but for this
# much and so many standard deviations of chance.
_LOUDER, _FEWER_CLEAN, _SURELY = 1.2, 0.03, 5.0
# Without noise σ is rounding, of products that are longer or shorter.
_LOUDER_ROUNDING = 6.0
# A row that keeps less than this part of what others do is lost; the structure in those below the second is looked for.
_LOST, _BEHIND, _ENOUGH = 0.3, 0.7, 10
# The block's last questions are asked where its noise is so loud that it may be outliers, or where the residuals within
# so many σ have a singular value this much beyond that of noise.
_LAST_QUESTIONS = frozenset({"doubts", "second_start", "sharpening"})
_LOUD, _CLEAN, _LIKE_NOISE = 0.3, 4.0, 1.3
_AT_REST = ("tol", "noise_floor")
_TINY = 1e-300

OPTIONS = {
    "side": integer(8),
    "passes": integer(0),
}


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
    next(iterations)  # its clock runs
    answer = _sampled_answer(run, sides)
    if isinstance(answer, str):
        run.settle(fallback=answer)
        return _solve_fully(run)
    return _polished(run, answer, iterations, passes)


@dataclass(frozen=True)
class _Answer:
    """What the sampled rows and columns tell."""

    factors: Factors  # (n1, k), (n2, k)
    peak: Peak
    error: float  # relative, that the noise is expected to cause
    threshold: float
    residual: float
    kept: float
    change: float | None


def _sampled_answer(run: Run, sides: tuple[int, int]) -> _Answer | str:
    """Return the factors found from sampled rows and columns, or why they are not to be believed."""
    cross = draw_cross(run.matrix, sides, run.rng)
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
        answer = _joined(run, by_row, by_column, (L_I, R_J), peak)
        in_block = sample.telling.residuals(L_I, R_J)
        return _trouble(run, cross, by_row, by_column, (L_I, R_J), peak, in_block) or answer
    finally:
        cross.close()


def _solve_core(run: Run, core: DenseMatrix, sample: Sample) -> Solution:
    """Solve the block: without its last questions, which cost more than all the rest, unless there is reason to ask."""
    problem = Problem(core, run.rank, default_schedule(), sample, _tolerance(run), run.method.max_iter, run.rng)
    quick = solve_adaptive(problem, rules=frozenset(RULES) - _LAST_QUESTIONS)
    return quick if _is_plain(core, sample, quick) else solve_adaptive(problem)


def _is_plain(core: DenseMatrix, sample: Sample, outcome: Solution) -> bool:
    """Tell whether a solution of the block has come to rest, has everyone on board, and leaves nothing but noise."""
    assert outcome.survey is not None and outcome.kept is not None
    if outcome.reason not in _AT_REST or left_behind(outcome.kept, outcome.survey):
        return False
    peak = _peak_of(core, sample.telling, outcome.L, outcome.R)
    if not peak.is_noise:
        return True
    residual = core.array - outcome.L @ outcome.R.T
    with np.errstate(invalid="ignore"):
        kept = np.abs(residual) <= _CLEAN * peak.sigma
    kept = kept if core.mask is None else kept & core.mask
    rng = np.random.default_rng(0)
    ratio = leading_over_edge(np.where(kept, residual, 0.0), float(np.mean(kept)), rng)
    return peak.sigma <= _LOUD * peak.typical and ratio <= _LIKE_NOISE


def _tolerance(run: Run) -> float:
    """Return the tolerance of the small problems: never a rough one, which would pass for noise."""
    single = run.matrix.result in (np.float32, np.complex64)
    usual = max(run.method.tol, 1e-6) if single else run.method.tol
    return min(run.tol, usual) or usual


def _peak_of(matrix: DenseMatrix, sample: Sample, L: Any, R: Any) -> Peak:
    typical = sample.typical
    rounding = rounding_level(matrix.result, typical)
    found = residual_core(sample.residuals(L, R), rounding, is_complex=matrix.stored.kind == "c")
    return Peak(found.sigma, found.share, typical, rounding)


def _joined(run: Run, by_row: Fit, by_column: Fit, block: Factors, peak: Peak) -> _Answer:
    L, R = by_row.coefficients, by_column.coefficients
    size, entries = product_norm(L, R), math.sqrt(math.prod(run.matrix.shape))
    # Every row and every column has its own error.
    kept = max(peak.share, 0.1)
    variance = sum(block[0].shape[1] / (kept * len(factor)) for factor in block)
    observed = int(by_row.observed.sum() + by_column.observed.sum())
    return _Answer(
        factors=(L, R),
        peak=peak,
        error=peak.sigma * math.sqrt(variance) * entries / max(size, _TINY),
        threshold=max(by_row.threshold, by_column.threshold),
        residual=math.hypot(by_row.residual, by_column.residual) / max(math.hypot(by_row.norm, by_column.norm), _TINY),
        kept=int(by_row.kept.sum() + by_column.kept.sum()) / max(1, observed),
        change=None if peak.is_noise else math.hypot(by_row.change, by_column.change),
    )


def _trouble(
    run: Run, cross: Cross, by_row: Fit, by_column: Fit, block: Factors, peak: Peak, in_block: Any
) -> str | None:
    """Return why the answer is not to be believed, if so."""
    rank = block[0].shape[1]
    for name, fit, band, known in (
        ("row", by_row, cross.columns, block[1]),
        ("column", by_column, cross.rows, block[0]),
    ):
        least = int(fit.observed.min())
        if least < _LEAST_PER_COMPONENT * rank:
            return f"a {name} has only {least} observed entries in the sample"
        if fit.lacking:
            return f"{fit.lacking} {name}(s) have no clean entry that tells of some component of the sampled block"
        shares = fit.kept_shares()
        lost = int(np.count_nonzero(shares < _LOST))
        if lost:
            return f"{lost} {name}(s) are not explained by the sampled block"
        behind = np.flatnonzero(shares < _BEHIND)
        if len(behind) >= _ENOUGH:
            # Rows with more outliers than others, or with a component that the block does not have?
            mask = None if band.matrix.mask is None else band.matrix.mask[:, behind]
            part = DenseMatrix(band.matrix.array[:, behind], mask)
            left = structure_left(part, known, fit.coefficients[behind])
            if left > SUSPICIOUS:
                return f"{len(behind)} {name}s have structure that the sampled block does not have"
    return _held_out_trouble(run, cross, by_row, by_column, block, peak, in_block)


def _held_out_trouble(
    run: Run,
    cross: Cross,
    by_row: Fit,
    by_column: Fit,
    block: Factors,
    peak: Peak,
    in_block: Any,  # (m,) residuals of the block
) -> str | None:
    """Hold the answer against entries in none of the sampled rows and columns.

    Two numbers do: a component that a block of this size would show in their residuals raises σ by far more.
    """
    is_new = [np.ones(n, bool) for n in run.matrix.shape]
    is_new[0][cross.rows.indices] = is_new[1][cross.columns.indices] = False
    sample = run.sample.telling
    held_out = sample.only(is_new[0][sample.rows] & is_new[1][sample.columns])
    count = len(held_out.values)
    if count == 0:
        return "no entry outside the sampled rows and columns is observed"
    L, R = by_row.coefficients, by_column.coefficients
    found = _peak_of(run.matrix, held_out, L, R)
    if peak.is_noise:
        # The block's fit has taken up part of its noise, and new entries have the error of their row and column.
        m1, m2, r = len(block[0]), len(block[1]), block[0].shape[1]
        fitted = min(0.5, r * (m1 + m2 - r) / (max(peak.share, 0.1) * m1 * m2))
        limit = _LOUDER * peak.sigma * math.sqrt((1 + fitted) / (1 - fitted))
    else:
        limit = _LOUDER_ROUNDING * max(peak.sigma, peak.rounding)
    if found.sigma > limit:
        return f"held-out entries have residuals of {found.sigma:.2g}, the sampled block of {peak.sigma:.2g}"
    clean, expected = (float(np.mean(sizes <= _CLEAN * limit)) for sizes in (held_out.residuals(L, R), in_block))
    chance = math.sqrt(expected * (1 - expected) * (1 / count + 1 / len(in_block)))
    if clean < expected - _FEWER_CLEAN - _SURELY * chance:
        return f"{100 * clean:.0f}% of held-out entries are explained, {100 * expected:.0f}% of the sampled block"
    return None


def _polished(run: Run, answer: _Answer, iterations: Iterator[int], passes: int | None) -> Solution:
    """Record the sampled answer, and pass over Y while that pays."""
    polish = Polish(run, *answer.factors)
    stop = run.record(
        *polish.factors,
        threshold=answer.threshold,
        residual=answer.residual,
        change=answer.change,
        kept=answer.kept,
    )
    if stop is None and run.tol and polish.is_small(answer.error if answer.change is None else answer.change):
        stop = "tol"
    may_go_on = passes is None and len(run.history) < run.max_iter
    if stop is None and may_go_on and run.tol and answer.peak.is_noise and polish.rank < run.rank:
        # Weak components of the whole may be hidden in the noise of the block, and would be slow to grow from nothing.
        return _solve_fully(run)
    most = _MOST_PASSES if passes is None else passes
    while stop is None:
        if len(run.history) > most and (passes is not None or run.tol):
            if passes is None and len(run.history) < run.max_iter:
                return _solve_fully(run, polish.padded(run.rank))
            break
        if next(iterations, None) is None:
            break
        stop = polish.step()
    return polish.outcome(stop or "max_iter")


def _solve_fully(run: Run, start: Factors | None = None) -> Solution:
    """Return what the full method finds; its iterations are counted on."""
    before = list(run.history)
    callback = run.problem.callback

    def counted_on(state: State) -> object:
        assert callback is not None
        return callback(replace(state, iteration=len(before) + state.iteration))

    outcome = solve_adaptive(
        replace(
            run.problem,
            schedule=default_schedule(),
            max_iter=run.max_iter - len(before),
            callback=None if callback is None else counted_on,
            start=start,
        )
    )
    history = [replace(record, iteration=len(before) + record.iteration) for record in outcome.history]
    return replace(outcome, history=before + history)
