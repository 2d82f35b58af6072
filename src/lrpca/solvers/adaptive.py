"""The default: LRPCA without training. Thresholds follow the residual, steps the kept share, the rank what is there.

One loop of passes. Each takes the influence ``C = ψ_ζ(Y - L Rᵀ)`` of the present fit, with ζ a multiple of the inlier
scale; steps along the tangent space of the rank-r matrices, every row and column by its own normal equations where some
have few inliers; returns to rank r by a small SVD; and leaves out the components that noise alone would make.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from lrpca.core import factors as iteration
from lrpca.core.influence import levels
from lrpca.core.passes import Pass
from lrpca.matrices.dense import DenseMatrix
from lrpca.schedule import Schedule
from lrpca.solvers.base import Record, Solution, make_record
from lrpca.solvers.checkpoint import Checkpoint
from lrpca.solvers.checks.convergence import Candidate, Checks, counts_only
from lrpca.solvers.checks.low_inlier_rows import low_inlier_rows, needs_row_normal_equations
from lrpca.solvers.components import Components, all_of, all_present, first_components, noise_edge, updated
from lrpca.solvers.initialise import ObservationCounts, completed, count_observed, first_factors, spectral_start
from lrpca.solvers.loop import Loop, counts_state, run_loop
from lrpca.solvers.problem import Problem
from lrpca.solvers.rules import RULES
from lrpca.solvers.stationarity import Iterate, SparseThreshold, StationarityTest
from lrpca.solvers.step import Momentum, stepped, take_pass, without_sides
from lrpca.solvers.stopping import AdaptiveStopping, is_slow
from lrpca.solvers.thresholds import AdaptiveThresholds

# Of the initialisation's randomised SVD: the iteration makes up for a rough start.
POWER_STEPS = 1
# Least share of entries that a pass with ψ = clip is taken to keep.
LEAST_KEPT_SOFT = 0.5
_TINY = float(np.finfo(float).tiny)
# From this many entries on, passes over double-precision data are computed in single precision while residuals, and
# changes of X, are so many times above its rounding.
_LARGE, _FAR_ABOVE, _MOVING = 1 << 20, 300.0, 100.0
# Rows with few inliers can keep a run from coming to rest: they are also refitted after so many passes.
_REFIT_EVERY = 25
# A pass that changes X by so many times `tol` is one of the last.
_SOON = 1e3


def solve_adaptive(
    problem: Problem,
    *,
    power_steps: int | None = None,
    rules: frozenset[str] = frozenset(RULES),
    stationarity: StationarityTest | None = None,
    checkpoint: Checkpoint | None = None,
) -> Solution:
    """Run the iteration: initialise, pass, update, stop.

    Parameters
    ----------
    problem : Problem
    power_steps : int, optional
        Of the initialisation's randomised SVD.
    rules : set of str
        Those of the default to follow (`lrpca.solvers.rules.RULES`).
    stationarity : StationarityTest, optional
        One more rule to stop by.
    checkpoint : Checkpoint, optional
        Where to go on from, if it is there, and to save what was done.
    """
    loop = _Adaptive(problem, rules, stationarity, power_steps)
    return run_loop(loop, max_iter=problem.max_iter, callback=problem.callback, checkpoint=checkpoint)


class _Adaptive(Loop):
    """The loop of passes; arguments as of `solve_adaptive`."""

    def __init__(
        self, problem: Problem, rules: frozenset[str], stationarity: StationarityTest | None, power_steps: int | None
    ) -> None:
        matrix, weight = problem.matrix, problem.row_weight
        super().__init__(matrix, problem.rng)
        assert problem.rank is not None and problem.schedule is not None
        self._rank, self._schedule, self._tol = problem.rank, problem.schedule, problem.tol
        self._thresholds = AdaptiveThresholds(problem.schedule, problem.sample, matrix)
        self._weight = None if weight is None else matrix.place(weight)
        self._rules, self._stationarity, self._free_rank = rules, stationarity, problem.free_rank
        self._start, self._power_steps = problem.start, power_steps
        self._result: Pass | None = None
        self._end: Candidate | None = None
        self._edge = 0.0  # of noise, in the last pass
        self._momentum = Momentum()
        # Whether entries are exchanged after the next pass, and whether they were after the last.
        self._exchange_next = self._exchanged = False
        self._iterate: Iterate | None = None  # what the last pass found and cut
        self._values: Any = None  # (present,) singular values after the last step

    def begin(self) -> None:
        """Make the start."""
        thresholds, weight, rules = self._thresholds, self._weight, self._rules
        parts, counts = _begin(
            self.matrix, self._rank, thresholds, self._start, self.rng, weight, self._power_steps, rules
        )
        self._set_out(parts, counts)

    def _set_out(self, parts: Components, counts: ObservationCounts) -> None:
        self._parts, self._counts = parts, counts
        self._stopping = AdaptiveStopping(self._tol, counts, self.matrix.result)
        self._checks = Checks(
            self.matrix, counts, self._thresholds, self._rules, self._weight, free_rank=self._free_rank
        )

    def step(self, k: int) -> str | None:
        """Make pass k, update the components, and write it down."""
        began = time.perf_counter()
        matrix, schedule, counts, thresholds = self.matrix, self._schedule, self._counts, self._thresholds
        weight, rules, parts = self._weight, self._rules, self._parts
        low_inlier = low_inlier_rows(self._result, counts)
        numbers = thresholds.at(k, parts.L, parts.R, patient=low_inlier and "patience" in rules)
        if numbers is None:
            return "schedule_end"
        threshold, factor = numbers
        level = levels(schedule.influence, threshold, schedule.cutoff)
        grams = _wants_grams(schedule, self._result, counts, self._rank, low_inlier, rules) or self._exchange_next
        _choose_precision(matrix, thresholds, self.history)
        result = take_pass(matrix, parts.L, parts.R, level, weight, grams=grams)
        step = _step(factor, result, counts, schedule)
        # Where progress is slow, steps gain momentum.
        momentum = self._momentum if thresholds.settled and is_slow(self.history) else None
        new = stepped(parts.L, parts.R, result, schedule.update, weight, parts.present, step, momentum)
        if momentum is None:
            self._momentum.forget()
        self._momentum.remember(parts.L, parts.R, parts.present)
        if new is None:
            self._end = self._end or Candidate(parts, result, 0.0, "runaway")
            return "runaway"
        self._edge = noise_edge(result.norm_C, matrix.shape, iteration.kept_share(result))
        self._iterate = Iterate((parts.L, parts.R), SparseThreshold.of(level))
        seen = parts.L[:, : parts.present], parts.R[:, : parts.present]
        parts, moved = updated(parts, new, self._edge, thresholds.ahead) if "significance" in rules else all_of(new)
        self._values = parts.values[: parts.present]
        change = moved / max(float(np.linalg.norm(self._values)), _TINY)
        self.history.append(make_record(k, threshold, step, result, counts, change, began))
        self._parts, self._result = parts, without_sides(result)
        self._end = Candidate(parts, self._result, change, "max_iter")
        self._exchanged = self._exchange_next and self._checks.exchange(self._end, result, seen)
        self._exchange_next = False
        return None

    def verdict(self) -> str | None:
        """Return a reason to end, if the run is at rest and no check proposes how to continue."""
        end, iterate, parts, thresholds = self._end, self._iterate, self._parts, self._thresholds
        assert end is not None  # there was a step
        if self._stationarity is not None and iterate is not None:
            if self._stationarity.reached(*iterate, (parts.L, parts.R)):
                return "tol"
        if self._tol == 0:
            return None
        kept, sigma = self.history[-1].kept or 0.0, thresholds.core.sigma
        settled = thresholds.settled
        refined = thresholds.refined_passes > 0 or "refine_cutoff" not in self._rules
        verdict = self._stopping.verdict(end.change, kept, self._values, sigma, settled=settled, refined=refined)
        if verdict == "runaway":
            return verdict
        end.verdict = verdict or "noise_floor"
        if self._exchanged:
            # The following passes adapt the other rows.
            self._restart_stopping()
            return None
        if self._refined(verdict):
            self._restart_stopping()
            self._exchange_next = thresholds.is_refined and self._checks.wants_exchange(end)
            return None
        ends = verdict is not None or thresholds.polished
        if ends or len(self.history) % _REFIT_EVERY == 0:
            if self._checks.refit(end):
                self._momentum.forget()
                return None
        self._exchange_next = (ends or end.change <= _SOON * self._tol) and self._checks.wants_exchange(end)
        if not ends:
            return None
        if self._exchange_next:
            return None
        answer = self._checks(end, self._edge)
        if isinstance(answer, Candidate):
            self._end = answer
            return answer.reason
        self._parts = answer
        self._restart_stopping()
        return None

    def _restart_stopping(self) -> None:
        self._stopping.restart()
        self._momentum.forget()

    def _refined(self, verdict: str | None) -> bool:
        """Lower the cutoff at the noise floor, or raise it where that floor collapsed; tell whether either was done."""
        thresholds = self._thresholds
        if thresholds.refined_passes:
            if thresholds.floor_collapsed:
                thresholds.restart_once()
            return not thresholds.refined_passes
        if verdict != "noise_floor" or "refine_cutoff" not in self._rules:
            return False
        thresholds.refine_cutoff(*self._parts.factors(), self._counts.observed)
        return True

    def factors(self) -> tuple[Any, Any]:
        """Return L and R, probes and all."""
        return self._parts.L, self._parts.R

    def outcome(self, reason: str) -> Solution:
        """Return what the run leaves behind: the better of two ends, where a second start was cut short."""
        end = self._end
        assert end is not None  # every schedule has a first step
        if reason in ("max_iter", "runaway", "schedule_end"):
            end.verdict = reason
            end = self._checks.best(end)
            reason = end.reason
        L, R = end.parts.factors()
        kept, present = end.result.kept, end.parts.present
        return Solution(L, R, self.history, reason, self._counts, kept, present, end.change, end.structure)

    def inner_state(self) -> dict[str, Any]:
        """Return all that a step or a verdict needs, after a step or the start."""
        stationarity = self._stationarity if self._stationarity is not None and self._stationarity.is_asked else None
        return {
            "parts": self._parts.state(),
            "counts": counts_state(self._counts),
            "thresholds": self._thresholds.state(),
            "stopping": self._stopping.state(),
            "momentum": self._momentum.state(),
            "checks": self._checks.state(),
            "pass": None if self._end is None else {"kept": list(self._end.result.kept), "change": self._end.change},
            "edge": self._edge,
            "exchange": [self._exchange_next, self._exchanged],
            "iterate": None if stationarity is None or self._iterate is None else self._iterate.state(),
            "stationarity": None if stationarity is None else stationarity.state(),
        }

    def restore_inner(self, state: dict[str, Any]) -> None:
        """Go on after a step or the start."""
        self._set_out(Components.of_state(state["parts"]), ObservationCounts(*state["counts"]))
        for part, name in ((self._thresholds, "thresholds"), (self._stopping, "stopping"), (self._checks, "checks")):
            part.restore(state[name])
        self._momentum.restore(state["momentum"])
        self._edge, (self._exchange_next, self._exchanged) = state["edge"], state["exchange"]
        self._values = self._parts.values[: self._parts.present]
        if state["pass"] is not None:
            self._result = counts_only(*state["pass"]["kept"])
            self._end = Candidate(self._parts, self._result, state["pass"]["change"], "max_iter")
        if state["iterate"] is not None:
            self._iterate = Iterate.of_state(state["iterate"])
        if self._stationarity is not None:
            self._stationarity.restore(state["stationarity"])


def _begin(
    matrix: DenseMatrix,
    rank: int,
    thresholds: AdaptiveThresholds,
    start: tuple[Any, Any] | None,
    rng: np.random.Generator,
    weight: Any,
    power_steps: int | None,
    rules: frozenset[str],
) -> tuple[Components, ObservationCounts]:
    if start is not None:
        L, R = (matrix.place(factor) for factor in start)
        return all_present(*completed(L, R, rng)), count_observed(matrix)
    # Power steps that were asked for are taken, however small the matrix.
    begin = first_factors if power_steps is None else spectral_start
    steps = POWER_STEPS if power_steps is None else power_steps
    matrix.compute_roughly(math.prod(matrix.shape) >= _LARGE)
    L, R, counts = begin(matrix, rank, thresholds.initial, power_steps=steps, rng=rng, weight=weight)
    matrix.compute_roughly(False)
    if "significance" not in rules:
        return all_present(L, R), counts
    residuals = np.minimum(thresholds.sample.residuals(L, R), thresholds.initial)
    norm = float(np.sqrt(np.mean(residuals**2))) * math.sqrt(math.prod(matrix.shape) * counts.observed)
    return first_components(L, R, noise_edge(norm, matrix.shape, counts.observed)), counts


def _choose_precision(matrix: DenseMatrix, thresholds: AdaptiveThresholds, history: list[Record]) -> None:
    """Compute roughly as long as residuals and changes of X are far above the rounding that this brings."""
    rounding = matrix.rough_rounding
    far = thresholds.core.sigma > _FAR_ABOVE * rounding * thresholds.typical
    moving = not history or (history[-1].change or 0.0) > _MOVING * rounding
    matrix.compute_roughly(far and moving and math.prod(matrix.shape) >= _LARGE)


def _wants_grams(
    schedule: Schedule, last: Pass | None, counts: ObservationCounts, rank: int, low_inlier: bool, rules: frozenset[str]
) -> bool:
    if schedule.update == "own_gram":
        return True
    # Clipped entries pull too, but are in no Gram: with ψ = clip, per-row normal equations would make steps too long.
    wanted = "row_normal_equations" in rules and schedule.update == "tangent" and schedule.influence != "soft"
    return wanted and needs_row_normal_equations(last, counts, rank, low_inlier=low_inlier)


def _step(factor: float, result: Pass, counts: ObservationCounts, schedule: Schedule) -> float:
    """Return the step η: `factor` over the share of kept entries, which per-row normal equations contain."""
    if result.row_grams is not None:
        return factor
    share = iteration.kept_share(result)
    if schedule.influence == "soft":
        # Clipped entries pull as well: where most are clipped, few kept ones do not make long steps safe.
        share = max(share, LEAST_KEPT_SOFT * counts.observed)
    return factor / max(share, 1e-6)
