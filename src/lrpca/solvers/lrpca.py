"""LRPCA: the learned robust PCA iteration [1]_, to the letter of the paper.

Each pass takes the influence ``C = ψ_ζ(Y - L Rᵀ)`` and steps along ``C R̄ (Rᵀ R̄)⁻¹`` and ``Cᵀ L̄ (Lᵀ L̄)⁻¹``, with
thresholds and steps that were learned. Adaptive schedules, the default among them, run in `lrpca.solvers.adaptive`.

References
----------
.. [1] H. Cai, J. Liu, W. Yin, "Learned Robust PCA: A Scalable Deep Unfolding Approach for High-Dimensional Outlier
   Detection", NeurIPS 2021.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from lrpca.core import factors as iteration
from lrpca.core.influence import levels
from lrpca.core.passes import Pass
from lrpca.solvers.base import Solution, make_record
from lrpca.solvers.checkpoint import Checkpoint, check_path, checkpoint_of
from lrpca.solvers.checks.convergence import counts_only
from lrpca.solvers.checks.low_inlier_rows import low_inlier_rows, unexplained_rows
from lrpca.solvers.initialise import ObservationCounts, completed, count_observed, spectral_start
from lrpca.solvers.loop import Loop, counts_state, run_loop
from lrpca.solvers.options import integer, number, some_of
from lrpca.solvers.problem import Problem
from lrpca.solvers.rules import RULES
from lrpca.solvers.run import Run
from lrpca.solvers.stationarity import Iterate, SparseThreshold, StationarityTest
from lrpca.solvers.step import directions, take_pass, without_sides
from lrpca.solvers.stopping import absolute_verdict
from lrpca.solvers.thresholds import AdaptiveThresholds, floored

# The paper starts from an exact SVD: its published models need this many power steps to show their own counts.
_POWER_STEPS = 3

OPTIONS = {
    "power_steps": integer(0),
    "sample_size": integer(100),
    "without": some_of(RULES, "rule of the default"),
    "change": number(least=1e-6, below=1),
    "checkpoint": check_path,
}


def solve(
    run: Run,
    *,
    power_steps: int | None = None,
    sample_size: int | None = None,
    without: frozenset[str] = frozenset(),
    change: float | None = None,
    checkpoint: str | None = None,
) -> Solution:
    """Run the schedule: absolute ones as in the paper, adaptive ones by the loop that needs no training.

    Parameters
    ----------
    run : Run
    power_steps : int, optional
        Power steps of the initialisation's randomised SVD; by size and kind of schedule if not given.
    sample_size : int, optional
        How many entries thresholds are read off; the sample is drawn before (`Problem.sample`).
    without : set of str
        Rules of the default to leave out (`lrpca.solvers.rules.RULES`).
    change : float, optional
        Stop, too, when X and S have both changed by less than this part of themselves (`lrpca.solvers.stationarity`),
        without convergence checks; with ``tol=0`` by nothing else.
    checkpoint : str or Path, optional
        File from which the run goes on if it was interrupted, and where it saves every iteration (fast ones once a
        second). It is deleted at the end, unless `max_iter` or the callback was that: the run can go on then, too.
    """
    from lrpca.solvers.adaptive import solve_adaptive

    problem = run.problem
    assert problem.schedule is not None
    options = {"power_steps": power_steps, "sample_size": sample_size, "without": without, "change": change}
    common: dict[str, Any] = {
        "power_steps": power_steps,
        "stationarity": StationarityTest(run.matrix, run.sample, change),
        "checkpoint": checkpoint_of(problem, checkpoint, options),
    }
    if problem.schedule.kind == "absolute":
        return solve_absolute(problem, **common)
    return solve_adaptive(problem, rules=frozenset(RULES) - without, **common)


def solve_absolute(
    problem: Problem,
    *,
    power_steps: int | None = None,
    stationarity: StationarityTest | None = None,
    checkpoint: Checkpoint | None = None,
) -> Solution:
    """Run the iteration: initialise, pass, update, stop; arguments as of `lrpca.solvers.adaptive.solve_adaptive`."""
    loop = _Absolute(problem, stationarity, _POWER_STEPS if power_steps is None else power_steps)
    return run_loop(loop, max_iter=problem.max_iter, callback=problem.callback, checkpoint=checkpoint)


class _Absolute(Loop):
    """The paper's loop; arguments as of `solve_absolute`."""

    def __init__(self, problem: Problem, stationarity: StationarityTest | None, power_steps: int) -> None:
        matrix, schedule, weight = problem.matrix, problem.schedule, problem.row_weight
        super().__init__(matrix, problem.rng)
        assert problem.rank is not None and schedule is not None
        self._rank, self._schedule, self._tol = problem.rank, schedule, problem.tol
        # Measures the residual for a schedule with a floor.
        self._floor = None if schedule.floor is None else AdaptiveThresholds(schedule, problem.sample, matrix)
        self._weight = None if weight is None else matrix.place(weight)
        self._stationarity, self._start, self._power_steps = stationarity, problem.start, power_steps
        self._result: Pass | None = None
        self._iterate: Iterate | None = None  # what the last pass found and cut

    def begin(self) -> None:
        """Make the start."""
        matrix, rng = self.matrix, self.rng
        if self._start is not None:
            L, R = (matrix.place(factor) for factor in self._start)
            (self._L, self._R), self._counts = completed(L, R, rng), count_observed(matrix)
            return
        clip, steps, weight = self._schedule.thresholds[0], self._power_steps, self._weight
        found = spectral_start(matrix, self._rank, clip, power_steps=steps, rng=rng, weight=weight)
        self._L, self._R, self._counts = found

    def step(self, k: int) -> str | None:
        """Make pass k, step, and write it down."""
        began = time.perf_counter()
        schedule, counts, weight, L, R = self._schedule, self._counts, self._weight, self._L, self._R
        numbers = schedule.at(k)
        if numbers is None:
            return "schedule_end"
        threshold, step = numbers
        if self._floor is not None and self._result is not None and k > schedule.layers:
            last, sigma = self.history[-1].threshold or 0.0, self._floor.measure(L, R).sigma
            threshold, step = floored(schedule, numbers, last, sigma, low_inlier_rows(self._result, counts))
        level = levels(schedule.influence, threshold, schedule.cutoff)
        self._result = take_pass(self.matrix, L, R, level, weight, grams=schedule.update == "own_gram")
        dL, dR = (step * direction for direction in directions(L, R, self._result, schedule.update, weight))
        self._result = without_sides(self._result)
        size, moved = iteration.product_norm(L + dL, R + dR), iteration.change_of_product(L, R, dL, dR)
        if not np.isfinite(size + moved):
            return "runaway"
        self._iterate = Iterate((L, R), SparseThreshold.of(level))
        self._L, self._R = L + dL, R + dR
        change = moved / size if size else 0.0
        self.history.append(make_record(k, threshold, step, self._result, counts, change, began))
        return None

    def verdict(self) -> str | None:
        """Return a reason to end."""
        assert self._result is not None  # there was a step
        if self._stationarity is not None and self._iterate is not None:
            if self._stationarity.reached(*self._iterate, self.factors()):
                return "tol"
        verdict = absolute_verdict(self.history, self._tol)
        # The residual of a low-inlier row is as small as its threshold, whatever its error.
        unexplained = verdict == "tol" and unexplained_rows(self._result.kept, self._counts)
        return "stalled" if unexplained else verdict

    def factors(self) -> tuple[Any, Any]:
        """Return L and R."""
        return self._L, self._R

    def outcome(self, reason: str) -> Solution:
        """Return the solution of the run."""
        change = self.history[-1].change or 0.0 if self.history else 0.0
        kept = self._result.kept if self._result else None
        return Solution(self._L, self._R, self.history, reason, self._counts, kept, self._rank, change)

    def inner_state(self) -> dict[str, Any]:
        """Return all that a step or a verdict needs, after a step or the start; steps make new arrays."""
        asked = self._stationarity is not None and self._stationarity.is_asked
        return {
            "factors": [self._L, self._R],
            "counts": counts_state(self._counts),
            "kept": None if self._result is None else list(self._result.kept),
            "iterate": self._iterate.state() if asked and self._iterate is not None else None,
            "stationarity": self._stationarity.state() if self._stationarity is not None else None,
        }

    def restore_inner(self, state: dict[str, Any]) -> None:
        """Go on after a step or the start."""
        self._L, self._R = state["factors"]
        self._counts = ObservationCounts(*state["counts"])
        self._result = None if state["kept"] is None else counts_only(*state["kept"])
        self._iterate = None if state["iterate"] is None else Iterate.of_state(state["iterate"])
        if self._stationarity is not None:
            self._stationarity.restore(state["stationarity"])
