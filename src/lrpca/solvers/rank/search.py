"""Choosing the rank: over-specify, prune, confirm.

The default solver leaves out of X the components that noise alone would make, and keeps them as probes which follow the
leading singular vectors of the residual (`lrpca.solvers.components`). So a rank too large costs time and little else,
and the components present at the end are the rank. A rough solution, or fits of several ranks, tell about how many
there are (`lrpca.solvers.rank.scan`). The solution of Y itself then has a spare component or two: a block shows less of
a weak component than the whole matrix does. Where the spare ones are present too, and also those of another solution
with twice as many, the spectrum has no clear end, and fits of all ranks are compared by their description length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import EXACT_BELOW, Sample, block_of, draw_sample, grouped, observed_share, read_block
from lrpca.solvers.base import Solution, State
from lrpca.solvers.checks.residual_structure import leading_over_edge
from lrpca.solvers.cross import cross_sides
from lrpca.solvers.problem import Problem
from lrpca.solvers.rank.choice import RankChoice, RankTrial
from lrpca.solvers.rank.scan import BLOCK, Watch, compare_ranks, count_components, measure_noise, rough_solution
from lrpca.solvers.rank.selection import most_components
from lrpca.solvers.run import Factors, Run

# One in so many components is spare in the solution, and at least one.
_SPARE = 8
# Solutions with spare components, before fits of all ranks are compared.
_SOLUTIONS = 2
# Residuals within so many σ are no outliers.
_CORE = 4.0
# A component this many times above the edge is above whatever is left: spare ones have found nothing.
_FAR_ABOVE = 20.0


class Found(NamedTuple):
    """A solution whose rank was found, and how."""

    run: Run
    outcome: Solution
    choice: RankChoice


def solve_unknown_rank(
    task: Problem,
    asked: str | float,
    start: Factors | None = None,
    callback: Callable[[State], object] | None = None,
) -> Found:
    """Find the rank and solve: by the method itself if it prunes, else by the default first.

    Parameters
    ----------
    task : Problem
    asked : "auto" or float
        All components, or as many as explain this share of the energy.
    start : (L, R), optional
        Factors whose width takes the place of the rough solution.
    callback : callable, optional
        Sees the solution only.
    """
    if task.prunes:
        return _find(task, asked, start, callback)
    by_sample = _choice_by_sample(task, asked) if task.method.name == "sampled" else None
    if by_sample is not None:
        # All components are solved for, as the default does, and the rest is cut off.
        run, outcome = task.solve(by_sample.components, None, callback)
        return Found(run, replace(outcome, rank=by_sample.found), by_sample)
    choice = _find(task.by_default(), asked, None, None).choice
    return Found(*task.solve(choice.found, None, callback), choice)


def _choice_by_sample(task: Problem, asked: str | float) -> RankChoice | None:
    """Return the choice that a sampled block leads to, or None where Y is too small for one.

    Components count that exceed the block's noise; without noise these are all.
    """
    matrix, rank = task.matrix, 1
    observed = observed_share(matrix, task.rng)
    while True:
        sides = cross_sides(matrix.shape, rank, observed, task.options.get("side"))
        if sides is None:
            return None
        rows, columns = (grouped(n, m, task.rng) for n, m in zip(matrix.shape, sides, strict=True))
        values, seen = read_block(matrix, rows, columns)
        block = DenseMatrix(values, None if seen.all() else seen)
        block.arithmetic = matrix.arithmetic
        matrix.reads += math.prod(sides) / math.prod(matrix.shape)
        sample = draw_sample(block, task.rng, exact=True)
        block.fit_range_to(sample.values)
        try:
            choice = _find(replace(task.by_default(), matrix=block, sample=sample), asked, None, None).choice
        finally:
            block.close()
        # A larger block for more components; one that finds fewer in it has the last word.
        if choice.components <= rank or task.options.get("side") is not None:
            return choice
        larger = cross_sides(matrix.shape, choice.components, observed)
        if larger == sides:
            return choice
        rank = choice.components


def _find(
    task: Problem, asked: str | float, start: Factors | None, callback: Callable[[State], object] | None
) -> Found:
    matrix = task.matrix
    tried: list[RankTrial] = []
    found = rough_solution(task, tried) if start is None else (start[0].shape[1], start)
    for _ in range(_SOLUTIONS):
        if found is None:
            break
        width, start = found
        rank = min(_with_spares(width, matrix.shape), max(width, most_components(matrix.shape)))
        watch = Watch(rank if rank > width else 0, callback)
        run, outcome = replace(task, free_rank=True).solve(rank, _fitted(start, rank), watch)
        there = count_components(outcome)
        tried.append(RankTrial(matrix.shape, rank, there, "saturated" if watch.stopped else outcome.reason))
        if not watch.stopped and (there != rank or rank == width or outcome.reason == "callback"):
            return _with_choice(run, outcome, asked, tried)
        # Small matrices start from an exact SVD, with nothing random in it.
        found = 2 * rank, watch.factors if math.prod(matrix.shape) >= EXACT_BELOW else None
    start = compare_ranks(task, tried)
    rank = start[0].shape[1]
    run, outcome = task.solve(rank, _fitted(start, rank), Watch(0, callback))
    tried.append(RankTrial(matrix.shape, rank, count_components(outcome), outcome.reason))
    return _with_choice(run, outcome, asked, tried)


def _fitted(start: Factors | None, rank: int) -> Factors | None:
    """Return factors with so many columns: the first ones, or zeros added, which the solver fills."""
    # Nothing can be added to nothing.
    if start is None or not (start[0].any() and start[1].any()):
        return None
    L, R = (factor[:, :rank] for factor in start)
    more = ((0, 0), (0, rank - L.shape[1]))
    return np.pad(L, more), np.pad(R, more)


def _with_spares(width: int, shape: tuple[int, int]) -> int:
    rank = width + max(1, width // _SPARE)
    # The kernels take components by fives; a rest of two is their slowest.
    return rank + (rank % 5 == 2 and math.prod(shape) >= EXACT_BELOW)


def _with_choice(run: Run, outcome: Solution, asked: str | float, tried: list[RankTrial]) -> Found:
    """Return the solution cut to the components that were found, with the record of how."""
    there = max(1, count_components(outcome))
    sigma, edge = measure_noise(run.matrix, run.sample, outcome)
    values = np.sort(np.linalg.norm(outcome.L, axis=0) * np.linalg.norm(outcome.R, axis=0))[::-1][:there]
    energy, noise = np.cumsum(values**2), sigma**2 * math.prod(run.matrix.shape)
    total = float(energy[-1]) + noise
    shares = energy / total if total else np.zeros(there)
    rank = there
    if not isinstance(asked, str) and shares[-1] >= asked:
        rank = int(np.searchsorted(shares, asked)) + 1
    far_above = values[-1] > _FAR_ABOVE * edge
    choice = RankChoice(
        asked=asked,
        found=rank,
        components=there,
        singular_values=tuple(float(value) for value in values),
        edge=edge,
        next_value=edge * (1.0 if far_above else _leading_of_residual(run, outcome, sigma)),
        explained=float(shares[rank - 1]),
        tried=tuple(tried),
    )
    return Found(run, replace(outcome, rank=rank), choice)


def _leading_of_residual(run: Run, outcome: Solution, sigma: float) -> float:
    """Return the leading singular value of what is left, without outliers, in units of the noise's edge.

    Of a block, where Y is large: that shows less structure than there is, never more. Gaussian noise gives 1.
    """
    rng = np.random.default_rng(0)  # not the run's: asking must not change what comes after
    rows, columns = block_of(run.matrix, rng, BLOCK)
    values, seen = read_block(run.matrix, rows, columns)
    entries, observed = values.ravel(), seen.ravel()
    i, j = (grid.ravel() for grid in np.meshgrid(rows, columns, indexing="ij"))
    residual = Sample(i, j, np.where(observed, entries, 0)).signed_residuals(outcome.L, outcome.R)
    with np.errstate(invalid="ignore"):
        kept = observed & (np.abs(residual) <= _CORE * sigma)
    share = float(np.mean(kept))
    size = float(np.linalg.norm(residual[kept]))
    run.matrix.reads += len(i) / math.prod(run.matrix.shape)
    return leading_over_edge(np.where(kept, residual, 0.0).reshape(values.shape), share, rng) if size else 0.0
