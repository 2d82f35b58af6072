"""About how many components there are: a rough solution of Y, or of a random block, with some to spare."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lrpca.kernels.scale import quantisation_step, residual_core, rounding_level
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import Sample, block_of, draw_sample, read_block
from lrpca.solvers.base import Solution, State, asked_to_stop
from lrpca.solvers.checks.other_fits import OtherFits
from lrpca.solvers.components import noise_edge
from lrpca.solvers.problem import Problem
from lrpca.solvers.rank.choice import RankTrial
from lrpca.solvers.rank.selection import most_components
from lrpca.solvers.run import Factors

# The rough solution is one of Y up to so many entries, then of a block of this many (600 x 600, longer if Y is narrow).
_WHOLE, BLOCK = 1 << 20, 360_000
# Components of the rough solution.
_WIDTH = 10
_TOL, _PASSES = 1e-4, 60
# A run in which no component is absent is ended after so many such passes.
_SATURATED, _BEFORE = 3, 4
# A probe is a thousand times weaker than the noise's edge, a component that is there above it.
_DROP = 300.0
# Without the rules that make sure: the solution has them.
_RULES = frozenset({"row_normal_equations", "patience", "low_inlier_rows", "significance"})


@dataclass
class Watch:
    """Callback that keeps the last factors, passes states on, and stops a run in which all so many are present."""

    most: int
    callback: Callable[[State], object] | None = None
    factors: Factors | None = None
    saturated: int = 0
    stopped: bool = False

    def __call__(self, state: State) -> bool:
        """Return whether to stop."""
        self.factors = (state.L, state.R)
        self.saturated = self.saturated + 1 if _all_there(state.L, state.R) else 0
        if self.callback is not None and asked_to_stop(self.callback(state)):
            return True
        # More are those of another fit, which were counted.
        saturated = state.L.shape[1] <= self.most and self.saturated >= _SATURATED
        self.stopped = saturated and state.iteration >= _BEFORE
        return self.stopped


def rough_solution(task: Problem, tried: list[RankTrial]) -> tuple[int, Factors | None] | None:
    """Return about how many components there are, and factors to start from where that saves something.

    A rough solution of Y, or of a random block, shows them if it has components to spare, otherwise None is returned.
    What was tried is added to the list.
    """
    from lrpca.solvers.adaptive import solve_adaptive

    matrix, weight = task.matrix, task.row_weight
    block, sample = _block(matrix, task)
    if block is not matrix:
        weight = None  # rows were drawn by their weights
    width = min(_WIDTH, most_components(block.shape))
    watch = Watch(width)
    rough = replace(task, matrix=block, rank=width, sample=sample, tol=_TOL, max_iter=_PASSES, row_weight=weight)
    try:
        outcome = solve_adaptive(replace(rough, callback=watch), rules=_RULES)
    finally:
        if block is not matrix:
            block.close()
            matrix.reads += block.reads * math.prod(block.shape) / math.prod(matrix.shape)
    there = count_components(outcome)
    tried.append(RankTrial(block.shape, width, there, "saturated" if watch.stopped else outcome.reason))
    if there < width and outcome.reason in ("tol", "noise_floor"):
        # At the noise floor thresholds have come to rest; elsewhere they would fall anew, and too fast.
        return there, watch.factors if block is matrix and outcome.reason == "noise_floor" else None
    return None


def compare_ranks(task: Problem, tried: list[RankTrial]) -> Factors:
    """Return the fit of Y, of any rank, that describes a block of it best; what was tried is added to the list."""
    matrix = task.matrix
    others = OtherFits(matrix, task.row_weight, quantisation_step(matrix.stored), free_rank=True)
    fit, shape = others.of_any_rank(), others.block.values.shape
    tried.append(RankTrial(shape, most_components(shape), fit.L.shape[1], "tol"))
    return fit.L, fit.R


def _block(matrix: DenseMatrix, task: Problem) -> tuple[DenseMatrix, Sample]:
    """Return a random block as a matrix of its own, with a sample; Y itself where that is not less."""
    if math.prod(matrix.shape) <= _WHOLE:
        return matrix, task.sample
    rows, columns = block_of(matrix, task.rng, BLOCK, task.row_weight)
    values, seen = read_block(matrix, rows, columns)
    if values.shape == matrix.shape or not seen.any():
        return matrix, task.sample
    block = DenseMatrix(values, None if seen.all() else seen)
    sample = draw_sample(block, task.rng, exact=True)
    block.fit_range_to(sample.values)
    return block, sample


def count_components(outcome: Solution) -> int:
    """Return how many components are there, and not zero."""
    there = int((outcome.L.any(axis=0) & outcome.R.any(axis=0)).sum())
    return there if outcome.components is None else min(there, outcome.components)


def measure_noise(matrix: DenseMatrix, sample: Sample, outcome: Solution) -> tuple[float, float]:
    """Return the noise level of a fit, and the edge of its singular values."""
    sample = sample.telling
    scale = sample.typical
    rounding, is_complex = rounding_level(matrix.result, scale), matrix.stored.kind == "c"
    core = residual_core(sample.residuals(outcome.L, outcome.R), rounding, is_complex=is_complex)
    kept = outcome.history[-1].kept if outcome.history else None
    observed = 1.0 if outcome.counts is None else outcome.counts.observed
    share = (core.share if kept is None else kept) * observed
    # Of the entries that count, each with σ.
    norm = core.sigma * math.sqrt(share * math.prod(matrix.shape))
    return core.sigma, noise_edge(norm, matrix.shape, share)


def _all_there(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
) -> bool:
    """Tell from the factors in a callback whether none of the components is a probe."""
    values = np.sort(np.linalg.norm(L, axis=0) * np.linalg.norm(R, axis=0))
    return bool(values[0] > 0 and (values[1:] <= _DROP * values[:-1]).all())
