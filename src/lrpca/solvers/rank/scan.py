"""A look at Y, to see about how many components there are: rough solutions of it, or of a random block, with room."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lrpca.kernels.scale import residual_core, rounding_level
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import Sample, choose_block, draw_sample, is_large, observed_share, read_block
from lrpca.schedule import Schedule
from lrpca.solvers.base import Solution, State, asked_to_stop
from lrpca.solvers.components import noise_edge
from lrpca.solvers.initialise import resistant_start
from lrpca.solvers.problem import Problem
from lrpca.solvers.rank.choice import RankTrial
from lrpca.solvers.run import Factors

# Y is looked at whole up to so many entries, then by a block of this many (600 x 600, longer where Y is narrow).
_WHOLE, _BLOCK = 1 << 20, 360_000
# A row of the block should have this many observed entries; sparsely observed data make it longer, to this length.
_OBSERVED, _LONGEST = 300, 3000
# Room of the first look, by what factor it grows (a little more rather than twice), and the most of it; in a small
# matrix as parts of the shorter side: beyond, surplus components may settle on outliers.
_FIRST_ROOM, _FIRST_PART, _MOST_PART = 10, 6, 4
_MORE_ROOM, _A_LITTLE = 3, 1.2
_TOL, _PASSES = 1e-4, 60
# A run with a component in every place is given up after so many such passes.
_CROWDED, _BEFORE = 3, 4
# A probe is a thousand times weaker than the noise's edge, a component that is there above it.
_DROP = 300.0
# Without the rules that make sure: the solution has them.
_RULES = frozenset({"own_grams", "patience", "low_inlier_rows", "significance", "spurious_components"})
# What is left is as loud as the data and not shaped like noise (skewness, and Sarle's coefficient, of residuals within
# 5 σ): outliers on one side may pass for noise, and hide everything else.
_LOUD, _WITHIN, _LEANS, _TWO_PEAKS = 0.3, 5.0, 0.25, 0.5
# A more resistant start then shows by a gap in its singular values how many there are.
_GAP, _CUTS = 1.2, 3


@dataclass
class Watch:
    """Callback that keeps the last factors, passes states on, and stops a crowded run: all components are there."""

    may_stop: bool
    callback: Callable[[State], object] | None = None
    factors: Factors | None = None
    crowded: int = 0
    stopped: bool = False

    def __call__(self, state: State) -> bool:
        """Return whether to stop."""
        self.factors = (state.L, state.R)
        self.crowded = self.crowded + 1 if _all_there(state.L, state.R) else 0
        if self.callback is not None and asked_to_stop(self.callback(state)):
            return True
        self.stopped = self.may_stop and state.iteration >= _BEFORE and self.crowded >= _CROWDED
        return self.stopped


def most_components(shape: tuple[int, int]) -> int:
    """Return how many components are looked for at most."""
    return max(1, min(shape) // _MOST_PART)


def look(task: Problem, tried: list[RankTrial]) -> tuple[int, Factors | None]:
    """Return about how many components there are, and factors to start from if Y was looked at whole and it pays.

    What was tried is added to the list.
    """
    matrix = task.matrix
    assert task.schedule is not None  # of a task that prunes
    block, weight = matrix, task.row_weight
    if math.prod(matrix.shape) > _WHOLE:
        block, weight = _block(matrix, task.rng, weight)
    if block is matrix:
        return _Look(matrix, task.schedule, task.sample, task.rng, weight, tried).components()
    sample = draw_sample(block, task.rng, row_weight=weight, exact=True)
    block.fit_range_to(sample.values)
    try:
        there, _ = _Look(block, task.schedule, sample, task.rng, weight, tried).components()
    finally:
        block.close()
    matrix.reads += math.ceil(block.reads * math.prod(block.shape) / math.prod(matrix.shape))
    return there, None


@dataclass
class _Look:
    """Rough solutions of a matrix."""

    matrix: DenseMatrix
    schedule: Schedule
    sample: Sample
    rng: np.random.Generator
    weight: Any  # (n1,)
    tried: list[RankTrial]

    def components(self) -> tuple[int, Factors | None]:
        """Return about how many there are, and factors to start from where that saves something."""
        most = most_components(self.matrix.shape)
        room = max(1, min(_FIRST_ROOM, min(self.matrix.shape) // _FIRST_PART))
        while True:
            outcome, watch = self._solve(room, None, may_stop=True)
            there = count_components(outcome)
            if there < room or room == most:
                break
            room = _MORE_ROOM * room
            room = most if most < _A_LITTLE * room else room
        if self._hides_something(outcome):
            found = self._beneath(most)
            if found is not None:
                return found
        # At the noise floor thresholds have come to rest; elsewhere they would fall anew, and too fast.
        return there, watch.factors if outcome.reason == "noise_floor" and there < room else None

    def _beneath(self, most: int) -> tuple[int, Factors | None] | None:
        """Return the components that one-sided outliers hide, if a gap in the resistant start's spectrum shows them."""
        room, widths = min(_FIRST_ROOM, most), set[int]()
        while True:
            L, R = self._cut_at_gap(room)
            width = L.shape[1]
            if width < room and width not in widths:
                outcome, watch = self._solve(width, (L, R), may_stop=False)
                if not self._hides_something(outcome):
                    return count_components(outcome), watch.factors
                widths.add(width)
            if room == most:
                return None
            # The gap closes where there is twice the room.
            room = min(room + room // 2, most)

    def _cut_at_gap(self, room: int) -> Factors:
        """Return a resistant start of as many components as stand above the last gap in its singular values."""
        width = room
        for _ in range(_CUTS):
            L, R = resistant_start(self.matrix, width, self.sample, rng=self.rng, weight=self.weight)
            values = np.linalg.norm(L, axis=0) * np.linalg.norm(R, axis=0)
            gaps = np.flatnonzero(values[:-1] > _GAP * values[1:])
            if len(gaps) == 0:
                break
            width = int(gaps[-1]) + 1
        return L[:, :width], R[:, :width]

    def _solve(self, room: int, start: Factors | None, *, may_stop: bool) -> tuple[Solution, Watch]:
        from lrpca.solvers.adaptive import solve_adaptive

        watch = Watch(may_stop)
        problem = Problem(self.matrix, room, self.schedule, self.sample, _TOL, _PASSES, self.rng)
        problem = replace(problem, callback=watch, start=start, row_weight=self.weight)
        outcome = solve_adaptive(problem, rules=_RULES)
        reason = "crowded" if watch.stopped else outcome.reason
        self.tried.append(RankTrial(self.matrix.shape, room, count_components(outcome), reason))
        return outcome, watch

    def _hides_something(self, outcome: Solution) -> bool:
        """Tell whether what is left is as loud as the data and leans to one side or has two peaks."""
        sample = self.sample.telling
        sigma, _ = measure_noise(self.matrix, sample, outcome)
        if sigma <= _LOUD * sample.typical or self.matrix.stored.kind == "c":
            return False
        residuals = sample.signed_residuals(outcome.L, outcome.R)
        core = residuals[np.abs(residuals) <= _WITHIN * sigma]
        standard = (core - core.mean()) / (np.std(core) or 1.0)
        skewness, kurtosis = abs(float(np.mean(standard**3))), float(np.mean(standard**4))
        return skewness > _LEANS or skewness**2 + 1 > _TWO_PEAKS * kurtosis


def _block(
    matrix: DenseMatrix,
    rng: np.random.Generator,
    weight: Any,  # (n1,)
) -> tuple[DenseMatrix, Any]:
    """Return a random block as a matrix of its own, and the weights of its rows; Y itself where that is not less."""
    rows, columns = block_of(matrix, rng, weight)
    shape = len(rows), len(columns)
    if shape == matrix.shape:
        return matrix, weight
    values, seen = read_block(matrix, rows, columns)
    if not seen.any():
        return matrix, weight
    # Rows were drawn by their weights.
    return DenseMatrix(values, None if seen.all() else seen), None


def block_of(
    matrix: DenseMatrix,
    rng: np.random.Generator,
    weight: Any = None,  # (n1,)
    entries: int | None = None,
) -> tuple[Any, Any]:
    """Return the rows and columns of a random block, in order; all of them where that is not much more."""
    side = max(math.isqrt(entries or _BLOCK), math.ceil(_OBSERVED / observed_share(matrix, rng)))
    side = min(_LONGEST, side)
    short = min(side, *matrix.shape)
    # The short side whole if need be, the other one as long as the block allows.
    lengths = [min(n, short if n == min(matrix.shape) else side * side // short) for n in matrix.shape]
    if 2 * math.prod(lengths) > math.prod(matrix.shape):
        return np.arange(matrix.shape[0]), np.arange(matrix.shape[1])
    if weight is None and is_large(matrix.shape):
        return choose_block(matrix.shape, (lengths[0], lengths[1]), rng)
    probability = None if weight is None else weight / weight.sum()
    count = lengths[0] if weight is None else min(lengths[0], int(np.count_nonzero(weight)))
    rows = rng.choice(matrix.shape[0], count, replace=False, p=probability)
    return np.sort(rows), np.sort(rng.choice(matrix.shape[1], lengths[1], replace=False))


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
    observed = 1.0 if outcome.survey is None else outcome.survey.observed
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
