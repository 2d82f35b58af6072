"""LRPCA: the learned robust PCA iteration [1]_, and its adaptive, redescending, tangent form.

Each pass takes the influence ``C = ψ_ζ(Y - L Rᵀ)`` and steps along ``C R̄ (Rᵀ R̄)⁻¹`` and ``Cᵀ L̄ (Lᵀ L̄)⁻¹``. With
ψ = clip, an absolute schedule and the scaled update this is the paper's algorithm to the letter.

References
----------
.. [1] H. Cai, J. Liu, W. Yin, "Learned Robust PCA: A Scalable Deep Unfolding Approach for High-Dimensional Outlier
   Detection", NeurIPS 2021.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca import iteration
from lrpca.decomposition import Record, State
from lrpca.influence import levels
from lrpca.kernels.reference import Pass
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sampling import Sample
from lrpca.schedule import Schedule
from lrpca.solvers.lagging import needs_own_grams, rescue_lost
from lrpca.solvers.start import Survey, completed, spectral_start, survey
from lrpca.solvers.stopping import AbsoluteStopping, AdaptiveStopping
from lrpca.solvers.thresholds import AbsoluteThresholds, AdaptiveThresholds

# The paper starts from an exact SVD: its published models need this many power steps to show their own counts.
_ABSOLUTE_POWER_STEPS = 3
# Where reading is expensive the adaptive iteration makes up for a rougher start; small matrices afford a better one.
_POWER_STEPS, _SMALL_POWER_STEPS, _SMALL = 1, 2, 1 << 22
# How often lost rows and columns are fitted anew at most, and after how many passes that is tried unasked.
_RESCUES = 5
_RESCUE_EVERY = 25
DEFAULT_MAX_ITER = 100


@dataclass(frozen=True)
class Outcome:
    """What the loop leaves behind."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    history: list[Record]
    reason: str
    survey: Survey
    last_pass: Pass | None


def solve(
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
) -> Outcome:
    """Run the iteration: initialise, pass, update, stop."""
    adaptive = schedule.kind == "adaptive"
    thresholds = (AdaptiveThresholds if adaptive else AbsoluteThresholds)(schedule, sample, matrix)
    if start is None:
        steps = _default_power_steps(schedule, matrix) if power_steps is None else power_steps
        L, R, facts = spectral_start(matrix, rank, thresholds.initial, power_steps=steps, rng=rng, weight=row_weight)
    else:
        (L, R), facts = completed(*start, rng), survey(matrix)
    stopping = (AdaptiveStopping if adaptive else AbsoluteStopping)(tol, facts, rank, thresholds, matrix.result)
    history: list[Record] = []
    result: Pass | None = None
    reason = "max_iter"
    rescues = 0
    for k in range(1, max_iter + 1):
        began = time.perf_counter()
        numbers = thresholds.at(k, L, R, warm=start is not None)
        if numbers is None:
            reason = "schedule_end"
            break
        grams = _wants_grams(schedule, result, facts, rank)
        result = _pass(matrix, L, R, numbers[0], schedule, row_weight, grams)
        step = _step(numbers[1], result, schedule)
        dL, dR = _directions(L, R, result, schedule.update, row_weight)
        dL, dR = step * dL, step * dR
        size, moved = iteration.product_norm(L + dL, R + dR), iteration.change_of_product(L, R, dL, dR)
        if not np.isfinite(size + moved):
            reason = "runaway"
            break
        L, R = L + dL, R + dR
        record = _record(k, numbers[0], step, result, facts, moved / size if size else 0.0, began)
        history.append(record)
        if callback is not None and _asked_to_stop(callback(State.of(record, L.copy(), R.copy()))):
            reason = "callback"
            break
        verdict = stopping.verdict(history, size, iteration.smallest_singular_value(L, R))
        # Also now and then on the way: lost rows can keep a run from ever coming to rest.
        due = verdict in ("tol", "noise_floor", "stalled") or (tol > 0 and k % _RESCUE_EVERY == 0)
        if due and adaptive and rescues < _RESCUES:
            rescues += 1
            if rescue_lost(matrix, L, R, result, facts):
                continue
        if verdict is not None:
            reason = verdict
            break
    return Outcome(L, R, history, reason, facts, result)


def _default_power_steps(schedule: Schedule, matrix: DenseMatrix) -> int:
    if schedule.kind == "absolute":
        return _ABSOLUTE_POWER_STEPS
    return _SMALL_POWER_STEPS if matrix.shape[0] * matrix.shape[1] < _SMALL else _POWER_STEPS


def _wants_grams(schedule: Schedule, last: Pass | None, facts: Survey, rank: int) -> bool:
    if schedule.update == "own_gram":
        return True
    return schedule.kind == "adaptive" and schedule.update == "tangent" and needs_own_grams(last, facts, rank)


def _pass(matrix: DenseMatrix, L: Any, R: Any, threshold: float, schedule: Schedule, weight: Any, grams: bool) -> Pass:
    level = levels(schedule.influence, threshold, schedule.cutoff)
    A = R.conj() if np.iscomplexobj(R) else R
    B = L.conj() if weight is None else L.conj() * weight[:, None]
    return matrix.run_pass(L, R, level, A=A, B=B, grams=grams)


def _record(k: int, threshold: float, step: float, result: Pass, facts: Survey, change: float, began: float) -> Record:
    return Record(
        iteration=k,
        threshold=threshold,
        step=step,
        residual=result.norm_C / facts.norm if facts.norm else 0.0,
        change=change,
        kept=float(result.kept_by_row.sum()) / max(1.0, float(facts.observed_by_row.sum())),
        seconds=time.perf_counter() - began,
    )


def _asked_to_stop(answer: object) -> bool:
    return isinstance(answer, bool | np.bool_) and bool(answer)


def _step(factor: float, result: Pass, schedule: Schedule) -> float:
    """Return the step η: absolute schedules say it; adaptive ones divide by the share of entries the pass kept."""
    if schedule.kind == "absolute" or result.row_grams is not None:
        return factor
    return factor / max(iteration.kept_share(result), 1e-6)


def _directions(L: Any, R: Any, result: Pass, update: str, weight: Any) -> tuple[Any, Any]:
    if update == "scaled":
        return iteration.scaled_directions(L, R, result, weight)
    directions = iteration.scaled_directions if result.row_grams is None else iteration.own_gram_directions
    return iteration.without_double_counting(L, R, *directions(L, R, result, weight), weight)
