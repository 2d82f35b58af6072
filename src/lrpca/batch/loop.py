"""The default iteration, `lrpca.solvers.adaptive`, for many problems at once.

Every number that one problem has there is a vector here. Problems that have converged leave the loop. Those that a
check objects to, or that do not converge, leave it unsolved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from lrpca.batch import algebra, checks
from lrpca.batch.components import arranged, first_components, is_localised, is_present, noise_edges, updated
from lrpca.batch.initialise import exact_starts
from lrpca.batch.refit import refit_low_inlier
from lrpca.batch.scale import inlier_scales
from lrpca.batch.stack import Stack, StackPass, Table, run_pass
from lrpca.batch.stopping import GOING_ON, MAX_ITER, NOISE_FLOOR, RUNAWAY, STALLED, TOL, Changes, verdicts
from lrpca.core.influence import levels
from lrpca.kernels.scale import rounding_level
from lrpca.schedule import Schedule
from lrpca.solvers import thresholds
from lrpca.solvers.checks import convergence, low_inlier_rows

# Problems that have not converged after so many passes are left to the single solver.
_MOST_PASSES = 120
# Low-inlier rows can keep a run from converging: they are also refitted after every so many passes.
_REFIT_EVERY = 25
# Thresholds start anew from so many times what a dropped component contributed to an entry.
_ABOVE = 3.0
# Problems that are done stay in the arrays until they are this part of them.
_DONE_SHARE = 0.25
_TINY = 1e-300


@dataclass
class Problems(Table):
    """What each problem carries from pass to pass; the first axis counts the problems at work."""

    index: Any  # (b,) int: which of the slab
    L: Any  # (b, n1, r) float64, orthogonal columns: components that are present first
    R: Any  # (b, n2, r)
    present: Any  # (b,) int
    rounding: Any  # (b,)
    last: Any  # (b,) ζ of the last pass, inf before the first
    factor: Any  # (b,) of the thresholds
    refined_passes: Any  # (b,) since the cutoff was refined
    floor: Any  # (b,) σ when the cutoff was refined
    sigma: Any  # (b,) at the iterate entering the last pass
    low_inlier: Any  # (b,) bool: some row or column keeps far less than the median
    kept: Any  # (b,) share of observed entries
    by_row: Any  # (b, n1) kept
    by_column: Any  # (b, n2) kept
    change: Any  # (b,)
    refits: Any  # (b,) how often low-inlier rows were refitted
    at_work: Any  # (b,) bool


@dataclass
class Ends(Table):
    """Where problems have ended; the first axis counts all problems of a slab."""

    L: Any  # (b, n1, r) float64
    R: Any  # (b, n2, r) float64
    reason: Any  # (b,) int: GOING_ON for those left to the single solver
    n_iter: Any  # (b,) int
    change: Any  # (b,)
    present: Any  # (b,) int
    by_row: Any  # (b, n1) kept in the last pass
    by_column: Any  # (b, n2)


# Iteration k: which problems, and their threshold, step, residual, change and kept share, (5, m).
Records = list[tuple[Any, Any]]


class BatchLoop:
    """The loop of passes over one slab of problems, by an adaptive schedule with a tail whose ψ is not soft.

    No threshold is below `least`, the step of integers.
    """

    def __init__(self, stack: Stack, rank: int, schedule: Schedule, *, tol: float, max_iter: int, least: float) -> None:
        self._stack, self._schedule, self._tol, self._max_iter = stack, schedule, tol, max_iter
        self._least = max(least, torch.finfo(stack.Y.dtype).tiny)
        self.records: Records = []
        self._parts = self._begin(rank)
        self._changes = Changes.none(self._parts.sigma)
        # Zero as a reason is GOING_ON.
        alike = ("L", "R", "index", "index", "change", "present", "by_row", "by_column")
        self.ends = Ends(*(torch.zeros_like(getattr(self._parts, name)) for name in alike))

    def run(self) -> Ends:
        """Pass until every problem has ended or is left to the single solver."""
        for k in range(1, min(self._max_iter, _MOST_PASSES if self._tol else self._max_iter) + 1):
            if not self._still_at_work():
                return self.ends
            self._step(k)
            if self._tol:
                self._test(k)
        if self._max_iter <= _MOST_PASSES or not self._tol:
            self._end(self._parts.at_work, MAX_ITER, self._max_iter)
        return self.ends

    def _begin(self, rank: int) -> Problems:
        stack = self._stack
        typical = stack.typical
        clip = torch.where(typical > 0, self._schedule.thresholds[0] * typical, math.inf)
        L, R = exact_starts(stack, rank, clip)
        residuals, tells = stack.sampled(stack.residual(L, R))
        squares = torch.minimum(residuals.abs().double(), clip[:, None]) ** 2
        mean = squares.mean(dim=1)
        if tells is not None:
            mean = (squares * tells).sum(dim=1) / torch.clamp(tells.sum(dim=1), min=1)
        norm = torch.sqrt(mean * stack.share * math.prod(stack.shape))
        L, R, present = first_components(L, R, noise_edges(norm, stack.shape, stack.share))
        zero, b = torch.zeros_like(typical), len(typical)
        rounding = rounding_level(str(stack.Y.dtype).removeprefix("torch."), 1.0) * typical
        return Problems(
            torch.arange(b, device=typical.device),
            L,
            R,
            present,
            rounding,
            last=torch.full_like(typical, math.inf),
            factor=torch.ones_like(typical),
            refined_passes=zero,
            floor=zero,
            sigma=zero,
            low_inlier=torch.zeros_like(typical, dtype=torch.bool),
            kept=torch.ones_like(typical),
            by_row=stack.by_row,
            by_column=stack.by_column,
            change=torch.full_like(typical, math.inf),
            refits=torch.zeros_like(present),
            at_work=stack.is_in_range(),
        )

    def _still_at_work(self) -> bool:
        """Tell whether any problem is, and remove those that are done."""
        count = int(self._parts.at_work.sum())
        if count <= (1 - _DONE_SHARE) * len(self._parts.index):
            chosen = torch.nonzero(self._parts.at_work)[:, 0]
            self._stack, self._parts = self._stack.only(chosen), self._parts.only(chosen)
            self._changes = self._changes.only(chosen)
        return count > 0

    def _step(self, k: int) -> None:
        """Make pass k of all problems, and update their components."""
        stack, parts, schedule = self._stack, self._parts, self._schedule
        D = stack.residual(parts.L, parts.R)
        numbers = schedule.at(k)
        assert numbers is not None  # it has a tail
        ahead, settled = self._lower_thresholds(D, k, numbers[0])
        unit = levels(schedule.influence, 1.0, schedule.cutoff)
        wants = self._wants_grams()
        grams = bool(wants.any())
        result = run_pass(stack, D, parts.L, parts.R, parts.last * unit.clip, parts.last * unit.cutoff, grams=grams)
        del D
        share = result.kept_by_row.sum(dim=1) / math.prod(stack.shape)
        step, dL, dR = self._directions(result, share, wants, numbers[1])
        # The numbers of a problem that has diverged must not spoil a decomposition of all.
        dL, dR = (torch.nan_to_num(direction, nan=0.0, posinf=0.0, neginf=0.0) for direction in (dL, dR))
        new = algebra.retract(parts.L, parts.R, dL * step[:, None, None], dR * step[:, None, None])
        edge = noise_edges(result.norm_C, stack.shape, share)
        L, R, present, moved = updated(new, parts.present, edge, ahead)
        values = self._values(L, R, present)
        change = moved / torch.clamp(torch.linalg.vector_norm(values, dim=1), min=_TINY)
        parts.L, parts.R, parts.present, parts.change = L, R, present, change
        parts.by_row, parts.by_column = result.kept_by_row, result.kept_by_column
        parts.kept = result.kept_by_row.sum(dim=1) / torch.clamp(stack.by_row.sum(dim=1), min=1)
        parts.low_inlier = checks.any_low_inlier(stack, parts.by_row, parts.by_column)
        self._settled, self._strengths, self._edge = settled, values, edge
        norm = torch.where(stack.norm > 0, result.norm_C / torch.clamp(stack.norm, min=_TINY), 0.0)
        self.records.append((parts.index, torch.stack([parts.last, step, norm, change, parts.kept])))

    def _lower_thresholds(self, D: Any, k: int, multiplier: float) -> tuple[Any, Any]:
        """Set ζ_k; return by what factor it is above what σ calls for, and whether it has settled."""
        parts = self._parts
        residuals, tells = self._stack.sampled(D)
        parts.sigma = inlier_scales(residuals.abs(), tells, parts.rounding, None if k == 1 else parts.sigma)
        wanted = torch.clamp(parts.factor * multiplier * parts.sigma, min=self._least)
        decay = torch.where(parts.low_inlier, max(self._schedule.decay, thresholds.PATIENT_DECAY), self._schedule.decay)
        first = torch.isinf(parts.last)
        held = torch.maximum(decay * parts.last, torch.minimum(wanted, parts.last))
        threshold = torch.where(first, wanted, held)
        settled = ~first & (threshold > thresholds._SETTLED * parts.last)
        parts.last = threshold
        parts.refined_passes = parts.refined_passes + (parts.factor != 1)
        return threshold / wanted, settled

    def _wants_grams(self) -> Any:
        """Return which problems are to solve rows and columns by their own normal equations, (b,)."""
        stack, parts = self._stack, self._parts
        n1, n2 = stack.shape
        if self._schedule.update == "own_gram":
            return torch.ones_like(parts.at_work)
        numbers = low_inlier_rows.GRAM_COPIES * (n1 + n2) * parts.L.shape[2] ** 2
        if numbers > max(n1 * n2, low_inlier_rows.SMALL_GRAMS):
            return torch.zeros_like(parts.at_work)
        wants = parts.low_inlier | (parts.kept < low_inlier_rows.FEW_KEPT)
        for seen, length in ((stack.by_row, n2), (stack.by_column, n1)):
            least = torch.where(seen > 0, seen, length).amin(dim=1) / length
            wants = wants | (least < low_inlier_rows.MOSTLY_OBSERVED)
        return wants

    def _directions(self, result: StackPass, share: Any, wants: Any, factor: float) -> tuple[Any, Any, Any]:
        """Return the length of the step, and ΔL and ΔR of a step of length 1."""
        L, R = self._parts.L, self._parts.R
        dL, dR = algebra.scaled_direction(result.CA, R), algebra.scaled_direction(result.CtB, L)
        step = factor / torch.clamp(share, min=1e-6)
        if result.row_grams is not None:
            there, chosen = is_present(self._parts.present, L.shape[2]), wants[:, None, None]
            own_L = algebra.own_gram_direction(result.CA, result.row_grams, R, there, share)
            own_R = algebra.own_gram_direction(result.CtB, result.column_grams, L, there, share)
            dL, dR = torch.where(chosen, own_L, dL), torch.where(chosen, own_R, dR)
            step = torch.where(wants, factor, step)
        return step, algebra.without_double_counting(L, dL), algebra.without_double_counting(R, dR)

    @staticmethod
    def _values(L: Any, R: Any, present: Any) -> Any:
        """Return the singular values of present components, 0 for the others, (b, r)."""
        return algebra.lengths(L) * algebra.lengths(R) * is_present(present, L.shape[2])

    def _test(self, k: int) -> None:
        """End the problems that have converged, and leave those to the single solver that a check objects to."""
        stack, parts = self._stack, self._parts
        self._changes.add(parts.change, parts.sigma)
        verdict = verdicts(
            self._changes, stack=stack, parts=parts, values=self._strengths, settled=self._settled, tol=self._tol
        )
        refined = parts.refined_passes > 0
        done = (parts.refined_passes >= thresholds._REFINED_PASSES) & (verdict == GOING_ON)
        verdict = torch.where(done, NOISE_FLOOR, verdict)
        converged = parts.at_work & ((verdict == TOL) | (verdict == NOISE_FLOOR))
        collapsed = converged & refined & (parts.sigma < thresholds._COLLAPSED * parts.floor)
        unsolved = parts.at_work & ((verdict == RUNAWAY) | (verdict == STALLED)) | collapsed
        asked = converged & ~refined
        parts.at_work = parts.at_work & ~unsolved
        self._end(converged & refined & ~collapsed, verdict, k)
        if k % _REFIT_EVERY == 0:
            self._refit(parts.at_work & (verdict == GOING_ON), verdict)
        asked &= ~self._refit(asked, verdict)
        asked &= ~self._without_localised(asked)
        if bool(asked.any()):
            self._check(asked, verdict, k)

    def _cutoff(self, parts: Problems) -> Any:
        """Return the residuals beyond which the last pass rejected entries, (b,)."""
        return parts.last * levels(self._schedule.influence, 1.0, self._schedule.cutoff).keep

    def _refit(self, asked: Any, verdict: Any) -> Any:  # (b,) bool; (b,)
        """Refit low-inlier rows and columns of some problems; return which improved, (b,), and continue."""
        parts, better = self._parts, torch.zeros_like(asked)
        low = checks.low_inlier(self._stack, parts.by_row, parts.by_column, verdict == TOL)
        asked = asked & (low[0].any(dim=1) | low[1].any(dim=1)) & (parts.refits < convergence.REFITS)
        chosen = torch.nonzero(asked)[:, 0]
        if len(chosen) == 0:
            return better
        some = parts.only(chosen)
        there, low = is_present(some.present, some.L.shape[2]), (low[0][chosen], low[1][chosen])
        L, R, improved = refit_low_inlier(self._stack.only(chosen), some.L, some.R, there, low, self._cutoff(some))
        parts.L[chosen], parts.R[chosen] = L, R
        parts.refits[chosen] += 1
        better[chosen] = improved
        self._changes.forget(better)
        return better

    def _without_localised(self, asked: Any) -> Any:  # (b,) bool
        """Make probes of components in one row or column, which may be made of its outliers; return where, (b,).

        Rows that need such a component lose their inliers without it, and the problem is left to the single solver.
        """
        parts = self._parts
        there = is_present(parts.present, parts.L.shape[2])
        dropped = there & (is_localised(parts.L) | is_localised(parts.R)) & asked[:, None]
        some = dropped.any(dim=1)
        if not bool(some.any()):
            return some
        values = algebra.lengths(parts.L) * algebra.lengths(parts.R)
        L, R, present = arranged(parts.L, parts.R, values, ~there | dropped, self._edge)
        parts.L = torch.where(some[:, None, None], L, parts.L)
        parts.R = torch.where(some[:, None, None], R, parts.R)
        parts.present = torch.where(some, present, parts.present)
        # What the component contributed to an entry of its row is no reason to reject that entry.
        strength = (values * dropped).amax(dim=1) / math.sqrt(min(self._stack.shape))
        parts.last = torch.where(some, torch.clamp(_ABOVE * strength, min=self._least), parts.last)
        self._changes.forget(some)
        return some

    def _check(self, asked: Any, verdict: Any, k: int) -> None:  # (b,) bool; (b,)
        """Run the convergence checks: problems that pass them end, or refine their cutoff at the noise floor."""
        chosen = torch.nonzero(asked)[:, 0]
        stack, parts, verdict = self._stack.only(chosen), self._parts.only(chosen), verdict[chosen]
        L, R = _without_probes(parts.L, parts.R, parts.present)
        D = stack.residual(L, R)
        sigma = checks.measured(stack, D, parts.rounding, parts.sigma)
        limit = torch.maximum(
            convergence.ABOVE_ROUNDING * parts.rounding, convergence.MOVING * parts.change * stack.typical
        )
        exact = sigma <= torch.clamp(limit, min=self._least)
        unreliable = checks.unreliable(stack, parts.by_row, parts.by_column, D, sigma, exact, self._cutoff(parts))
        self._parts.at_work[chosen] &= ~unreliable
        ends = torch.zeros_like(asked)
        ends[chosen] = ~unreliable & (verdict == TOL)
        self._end(ends, TOL, k)
        refine = ~unreliable & (verdict == NOISE_FLOOR)
        if bool(refine.any()):
            again = chosen[refine]
            factor = checks.refined_cutoff(stack, D, parts.sigma, parts.present)[refine]
            self._parts.factor[again] = factor
            self._parts.last[again] = math.inf
            self._parts.floor = self._parts.floor.index_copy(0, again, parts.sigma[refine])
            begin = torch.zeros_like(asked)
            begin[again] = True
            self._changes.forget(begin)

    def _end(self, ended: Any, reason: Any, k: int) -> None:  # (b,) bool; (b,), or a number
        """Write down where some problems have ended."""
        chosen = torch.nonzero(ended)[:, 0]
        if len(chosen) == 0:
            return
        parts, ends = self._parts, self.ends
        at = parts.index[chosen]
        some = parts.only(chosen)
        ends.L[at], ends.R[at] = _without_probes(some.L, some.R, some.present)
        ends.reason[at], ends.n_iter[at] = reason[chosen] if torch.is_tensor(reason) else reason, k
        ends.change[at], ends.present[at] = some.change, some.present
        ends.by_row[at], ends.by_column[at] = some.by_row, some.by_column
        parts.at_work = parts.at_work & ~ended


def _without_probes(L: Any, R: Any, present: Any) -> tuple[Any, Any]:  # (b, n1, r); (b, n2, r); (b,)
    there = is_present(present, L.shape[2])[:, None, :]
    return L * there, R * there
