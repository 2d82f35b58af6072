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
from lrpca.solvers.lagging import lagging, left_behind
from lrpca.solvers.options import integer, number, some_of
from lrpca.solvers.outcome import Outcome, asked_to_stop, make_record
from lrpca.solvers.rules import RULES
from lrpca.solvers.run import Run
from lrpca.solvers.standstill import Cut, Standstill
from lrpca.solvers.start import completed, spectral_start, survey
from lrpca.solvers.step import directions, take_pass
from lrpca.solvers.stopping import absolute_verdict
from lrpca.solvers.thresholds import AdaptiveThresholds, floored

# The paper starts from an exact SVD: its published models need this many power steps to show their own counts.
_POWER_STEPS = 3

OPTIONS = {
    "power_steps": integer(0),
    "sample_size": integer(100),
    "without": some_of(RULES, "rule of the default"),
    "change": number(least=1e-6, below=1),
}


def solve(
    run: Run,
    *,
    power_steps: int | None = None,
    sample_size: int | None = None,
    without: frozenset[str] = frozenset(),
    change: float | None = None,
) -> Outcome:
    """Run the schedule: absolute ones as in the paper, adaptive ones by the loop that needs no training.

    Parameters
    ----------
    run : Run
    power_steps : int, optional
        Power steps of the initialisation's randomised SVD; by size and kind of schedule if not given.
    sample_size : int, optional
        How many entries thresholds are read off; the sample is drawn before (`Run.sample`).
    without : set of str
        Rules of the default to leave out (`lrpca.solvers.rules.RULES`).
    change : float, optional
        Stop, too, when X and S have both changed by less than this part of themselves (`lrpca.solvers.standstill`),
        without second looks; with ``tol=0`` by nothing else.
    """
    from lrpca.solvers.adaptive import solve_adaptive

    assert run.schedule is not None
    common: dict[str, Any] = {
        "tol": run.tol,
        "max_iter": run.max_iter,
        "rng": run.rng,
        "callback": run.callback,
        "start": run.start,
        "row_weight": run.row_weight,
        "power_steps": power_steps,
        "standstill": Standstill(run.matrix, run.sample, change),
    }
    if run.schedule.kind == "absolute":
        return solve_absolute(run.matrix, run.rank, run.schedule, run.sample, **common)
    rules = frozenset(RULES) - without
    return solve_adaptive(run.matrix, run.rank, run.schedule, run.sample, rules=rules, **common)


def solve_absolute(
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
    standstill: Standstill | None = None,
) -> Outcome:
    """Run the iteration: initialise, pass, update, stop."""
    if start is None:
        steps = _POWER_STEPS if power_steps is None else power_steps
        L, R, facts = spectral_start(
            matrix, rank, schedule.thresholds[0], power_steps=steps, rng=rng, weight=row_weight
        )
    else:
        (L, R), facts = completed(*start, rng), survey(matrix)
    floor = None if schedule.floor is None else AdaptiveThresholds(schedule, sample, matrix)
    history: list[Record] = []
    result: Pass | None = None
    reason = "max_iter"
    for k in range(1, max_iter + 1):
        began = time.perf_counter()
        numbers = schedule.at(k)
        if numbers is None:
            reason = "schedule_end"
            break
        threshold, step = numbers
        if floor is not None and result is not None and k > schedule.layers:
            last, sigma = history[-1].threshold or 0.0, floor.measure(L, R).sigma
            threshold, step = floored(schedule, numbers, last, sigma, lagging(result, facts))
        level = levels(schedule.influence, threshold, schedule.cutoff)
        result = take_pass(matrix, L, R, level, row_weight, grams=schedule.update == "own_gram")
        dL, dR = (step * direction for direction in directions(L, R, result, schedule.update, row_weight))
        size, moved = iteration.product_norm(L + dL, R + dR), iteration.change_of_product(L, R, dL, dR)
        if not np.isfinite(size + moved):
            reason = "runaway"
            break
        before, (L, R) = (L, R), (L + dL, R + dR)
        record = make_record(k, threshold, step, result, facts, moved / size if size else 0.0, began)
        history.append(record)
        if callback is not None and asked_to_stop(callback(State.of(record, L.copy(), R.copy()))):
            reason = "callback"
            break
        if standstill is not None and standstill.reached(before, Cut.of(level), (L, R)):
            reason = "tol"
            break
        verdict = absolute_verdict(history, tol)
        if verdict is not None:
            # The residual of a row that was given up is as small as its threshold, whatever its error.
            lost = verdict == "tol" and left_behind(result.kept, facts)
            reason = "stalled" if lost else verdict
            break
    change = history[-1].change or 0.0 if history else 0.0
    return Outcome(L, R, history, reason, facts, result.kept if result else None, rank, change)
