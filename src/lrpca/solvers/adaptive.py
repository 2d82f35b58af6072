"""The default: LRPCA without training. Thresholds follow the residual, steps the kept share, the rank what is there.

One loop of passes. Each takes the influence ``C = ψ_ζ(Y - L Rᵀ)`` of the present fit, with ζ a multiple of the width of
the peak of clean residuals; steps along the tangent space of the rank-r matrices, every row and column by its own Gram
where some lag behind; returns to rank r by a small SVD; and leaves out the components that noise alone would make.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lrpca import iteration
from lrpca.decomposition import Record, State
from lrpca.influence import levels
from lrpca.kernels.reference import Pass
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sampling import Sample
from lrpca.schedule import Schedule
from lrpca.solvers.components import Components, all_of, all_present, first_components, noise_edge, updated
from lrpca.solvers.lagging import lagging, needs_own_grams
from lrpca.solvers.outcome import Outcome, asked_to_stop, make_record
from lrpca.solvers.rules import RULES
from lrpca.solvers.second_looks import End, SecondLooks
from lrpca.solvers.standstill import Cut, Standstill
from lrpca.solvers.start import Survey, completed, first_factors, spectral_start, survey
from lrpca.solvers.step import directions, take_pass
from lrpca.solvers.stopping import AdaptiveStopping
from lrpca.solvers.thresholds import AdaptiveThresholds

# Where reading is expensive the iteration makes up for a rougher start; small matrices afford a better one.
_POWER_STEPS, _SMALL_POWER_STEPS, _SMALL = 1, 2, 1 << 22
# Least share of entries that a pass with ψ = clip is taken to keep.
LEAST_KEPT_SOFT = 0.5
_TINY = float(np.finfo(float).tiny)
# From this many entries on, passes over double-precision data are computed in single precision while residuals, and
# changes of X, are so many times above its rounding.
_LARGE, _FAR_ABOVE, _MOVING = 1 << 20, 300.0, 100.0
# Lost rows can keep a run from ever coming to rest: they are also looked for unasked, after so many passes.
_RESCUE_EVERY = 25


def solve_adaptive(
    matrix: DenseMatrix,
    rank: int,
    schedule: Schedule,
    sample: Sample,
    *,
    tol: float,
    max_iter: int,
    rng: np.random.Generator,
    callback: Callable[[State], object] | None = None,
    start: tuple[Any, Any] | None = None,
    row_weight: Any = None,  # (n1,)
    power_steps: int | None = None,
    rules: frozenset[str] = frozenset(RULES),
    standstill: Standstill | None = None,
) -> Outcome:
    """Run the iteration: initialise, pass, update, stop."""
    thresholds = AdaptiveThresholds(schedule, sample, matrix)
    parts, facts = _begin(matrix, rank, thresholds, start, rng, row_weight, power_steps, rules)
    stopping = AdaptiveStopping(tol, facts, matrix.result)
    looks = SecondLooks(matrix, facts, thresholds, rng, rules, row_weight)
    history: list[Record] = []
    reason = "max_iter"
    end: End | None = None
    result: Pass | None = None
    for k in range(1, max_iter + 1):
        began = time.perf_counter()
        behind = lagging(result, facts)
        numbers = thresholds.at(k, parts.L, parts.R, patient=behind and "patience" in rules)
        if numbers is None:
            reason = "schedule_end"
            break
        threshold, factor = numbers
        level = levels(schedule.influence, threshold, schedule.cutoff)
        grams = _wants_grams(schedule, result, facts, rank, behind, rules)
        _choose_precision(matrix, thresholds, history)
        result = take_pass(matrix, parts.L, parts.R, level, row_weight, grams=grams)
        step = _step(factor, result, facts, schedule)
        dL, dR = directions(parts.L, parts.R, result, schedule.update, row_weight, parts.present)
        if not (np.isfinite(dL).all() and np.isfinite(dR).all()):
            end, reason = end or End(parts, result, 0.0, "runaway"), "runaway"
            break
        new = iteration.retract(parts.L, parts.R, step * dL, step * dR, row_weight)
        edge = noise_edge(result.norm_C, matrix.shape, iteration.kept_share(result))
        before = (parts.L, parts.R)
        parts, moved = updated(parts, new, edge, thresholds.ahead) if "significance" in rules else all_of(new)
        values = parts.values[: parts.present]
        change = moved / max(float(np.linalg.norm(values)), _TINY)
        history.append(make_record(k, threshold, step, result, facts, change, began))
        end = End(parts, result, change, "max_iter")
        if callback is not None and asked_to_stop(callback(State.of(history[-1], parts.L.copy(), parts.R.copy()))):
            reason = "callback"
            break
        if standstill is not None and standstill.reached(before, Cut.of(level), (parts.L, parts.R)):
            reason = "tol"
            break
        if tol == 0:
            continue
        kept = history[-1].kept or 0.0
        verdict = stopping.verdict(change, kept, values, thresholds.core.sigma, settled=thresholds.settled)
        if verdict == "runaway":
            reason = verdict
            break
        if verdict is None and not thresholds.polished:
            if k % _RESCUE_EVERY == 0:
                looks.rescue(parts, result)
            continue
        end.verdict = verdict or "noise_floor"
        answer = looks.ask(end, edge)
        if isinstance(answer, End):
            end, reason = answer, answer.reason
            break
        parts = answer
        stopping.restart()
    assert end is not None  # every schedule has a first step
    if reason in ("max_iter", "runaway", "schedule_end"):
        end.verdict = reason
        end = looks.best(end)
        reason = end.reason
    L, R = end.parts.factors()
    return Outcome(L, R, history, reason, facts, end.result.kept, end.parts.present, end.change, end.structure)


def power_steps_for(shape: tuple[int, int]) -> int:
    """Return how many power steps the initialisation takes on matrices of a shape."""
    return _SMALL_POWER_STEPS if math.prod(shape) < _SMALL else _POWER_STEPS


def _begin(
    matrix: DenseMatrix,
    rank: int,
    thresholds: AdaptiveThresholds,
    start: tuple[Any, Any] | None,
    rng: np.random.Generator,
    weight: Any,
    power_steps: int | None,
    rules: frozenset[str],
) -> tuple[Components, Survey]:
    if start is not None:
        return all_present(*completed(*start, rng)), survey(matrix)
    # Power steps that were asked for are taken, however small the matrix.
    begin = first_factors if power_steps is None else spectral_start
    steps = power_steps_for(matrix.shape) if power_steps is None else power_steps
    matrix.compute_roughly(math.prod(matrix.shape) >= _LARGE)
    L, R, facts = begin(matrix, rank, thresholds.initial, power_steps=steps, rng=rng, weight=weight)
    matrix.compute_roughly(False)
    if "significance" not in rules:
        return all_present(L, R), facts
    residuals = np.minimum(thresholds.sample.residuals(L, R), thresholds.initial)
    norm = float(np.sqrt(np.mean(residuals**2))) * math.sqrt(math.prod(matrix.shape) * facts.observed)
    return first_components(L, R, noise_edge(norm, matrix.shape, facts.observed)), facts


def _choose_precision(matrix: DenseMatrix, thresholds: AdaptiveThresholds, history: list[Record]) -> None:
    """Compute in single precision as long as residuals and changes of X are far above its rounding."""
    rounding = float(np.finfo(np.float32).eps)
    far = thresholds.core.sigma > _FAR_ABOVE * rounding * thresholds.typical
    moving = not history or (history[-1].change or 0.0) > _MOVING * rounding
    matrix.compute_roughly(far and moving and math.prod(matrix.shape) >= _LARGE)


def _wants_grams(
    schedule: Schedule, last: Pass | None, facts: Survey, rank: int, behind: bool, rules: frozenset[str]
) -> bool:
    if schedule.update == "own_gram":
        return True
    # Clipped entries pull too, but are in no Gram: with ψ = clip, own Grams would make steps too long.
    wanted = "own_grams" in rules and schedule.update == "tangent" and schedule.influence != "soft"
    return wanted and needs_own_grams(last, facts, rank, behind=behind)


def _step(factor: float, result: Pass, facts: Survey, schedule: Schedule) -> float:
    """Return the step η: `factor` over the share of entries that the pass kept, which own Grams know by themselves."""
    if result.row_grams is not None:
        return factor
    share = iteration.kept_share(result)
    if schedule.influence == "soft":
        # Clipped entries pull as well: where most are clipped, few kept ones do not make long steps safe.
        share = max(share, LEAST_KEPT_SOFT * facts.observed)
    return factor / max(share, 1e-6)
