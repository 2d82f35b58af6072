"""The default iteration, `lrpca.solvers.adaptive`, for many problems at once.

Every number that one problem has there is a vector here. Problems that have come to rest leave the loop; those that
need a second look (lost rows, components of one row, structure in the residual, two fits in one, no rest) leave it
unsolved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from lrpca.batch import algebra
from lrpca.batch import checks as looks
from lrpca.batch.components import arranged, first_components, is_present, localised, updated
from lrpca.batch.initialise import exact_starts, noise_edges
from lrpca.batch.refit import rescue_lost
from lrpca.batch.scale import residual_cores
from lrpca.batch.stack import Stack, StackPass, Table, run_pass
from lrpca.batch.stopping import GOING_ON, MAX_ITER, NOISE_FLOOR, RUNAWAY, STALLED, TOL, Changes, verdicts
from lrpca.core.influence import levels
from lrpca.kernels.scale import rounding_level
from lrpca.schedule import Schedule
from lrpca.solvers import thresholds
from lrpca.solvers.checks import convergence as second_looks
from lrpca.solvers.checks import low_inlier_rows as lagging

# Whoever has not come to rest after so many passes is looked at one by one.
_MOST_PASSES = 120
# Lost rows can keep a run from ever coming to rest: they are also looked for unasked, after so many passes.
_RESCUE_EVERY = 25
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
    sharp: Any  # (b,) factor of the thresholds
    sharp_passes: Any  # (b,)
    floor: Any  # (b,) σ when they were sharpened
    sigma: Any  # (b,) at the iterate entering the last pass
    behind: Any  # (b,) bool
    kept: Any  # (b,) share of observed entries
    by_row: Any  # (b, n1) kept
    by_column: Any  # (b, n2) kept
    change: Any  # (b,)
    rescues: Any  # (b,) how often rows were fitted anew
    trials: Any  # (b,) how often components of one row or column were left out
    explained_before: Any  # (b,) entries that were kept before the last of these, and the length of that row or column
    length_before: Any  # (b,)
    at_work: Any  # (b,) bool


@dataclass
class Ends(Table):
    """Where problems have ended; the first axis counts all problems of a slab."""

    L: Any  # (b, n1, r) float64
    R: Any  # (b, n2, r) float64
    reason: Any  # (b,) int: GOING_ON for those to be solved one by one
    n_iter: Any  # (b,) int
    change: Any  # (b,)
    present: Any  # (b,) int
    by_row: Any  # (b, n1) kept in the last pass
    by_column: Any  # (b, n2)


# Iteration k: which problems, and their threshold, step, residual, change and kept share, (5, m).
Records = list[tuple[Any, Any]]


class BatchLoop:
    """The loop of passes over one slab of problems.

    Parameters
    ----------
    stack : Stack
    rank : int
    schedule : Schedule
        An adaptive one, with a tail; ψ not soft.
    tol : float
    max_iter : int
    least : float
        No threshold is below this: the step of integers.
    """

    def __init__(self, stack: Stack, rank: int, schedule: Schedule, *, tol: float, max_iter: int, least: float) -> None:
        self._stack, self._schedule, self._tol, self._max_iter = stack, schedule, tol, max_iter
        self._eps = torch.finfo(stack.Y.dtype).eps
        self._least = max(least, torch.finfo(stack.Y.dtype).tiny)
        self.records: Records = []
        self._parts = self._begin(rank)
        self._changes = Changes.none(self._parts.sigma)
        blank = self._parts
        self.ends = Ends(
            torch.zeros_like(blank.L),
            torch.zeros_like(blank.R),
            torch.full_like(blank.index, GOING_ON),
            torch.zeros_like(blank.index),
            torch.zeros_like(blank.sigma),
            torch.ones_like(blank.present),
            torch.zeros_like(blank.by_row),
            torch.zeros_like(blank.by_column),
        )

    def run(self) -> Ends:
        """Pass until every problem has ended or been given up."""
        for k in range(1, min(self._max_iter, _MOST_PASSES if self._tol else self._max_iter) + 1):
            if not self._still_at_work():
                return self.ends
            self._step(k)
            if self._tol:
                self._judge(k)
        if self._max_iter <= _MOST_PASSES or not self._tol:
            self._end(self._parts.at_work, torch.full_like(self._parts.index, MAX_ITER), self._max_iter)
        return self.ends

    def _begin(self, rank: int) -> Problems:
        stack = self._stack
        typical = stack.typical
        clip = torch.where(typical > 0, self._schedule.thresholds[0] * typical, math.inf)
        L, R = exact_starts(stack, rank, clip)
        residuals, tells = stack.sampled(stack.residual(L, R))
        squares = torch.minimum(residuals.abs().double(), clip[:, None]) ** 2
        if tells is None:
            mean = squares.mean(dim=1)
        else:
            mean = (squares * tells).sum(dim=1) / torch.clamp(tells.sum(dim=1), min=1)
        norm = torch.sqrt(mean * stack.share * math.prod(stack.shape))
        L, R, present = first_components(L, R, noise_edges(norm, stack.shape, stack.share))
        zero, b = torch.zeros_like(typical), len(typical)
        rounding = rounding_level(_numpy_dtype(stack.Y.dtype), 1.0) * typical
        return Problems(
            torch.arange(b, device=typical.device),
            L,
            R,
            present,
            rounding,
            last=torch.full_like(typical, math.inf),
            sharp=torch.ones_like(typical),
            sharp_passes=zero,
            floor=zero,
            sigma=zero,
            behind=torch.zeros_like(typical, dtype=torch.bool),
            kept=torch.ones_like(typical),
            by_row=stack.by_row,
            by_column=stack.by_column,
            change=torch.full_like(typical, math.inf),
            rescues=torch.zeros_like(present),
            trials=torch.zeros_like(present),
            explained_before=zero,
            length_before=zero,
            at_work=stack.is_in_range(),
        )

    def _still_at_work(self) -> bool:
        """Tell whether anyone is, and let those go that are done."""
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
        # A problem that has run away is given up: its numbers must not spoil a decomposition of all.
        dL, dR = (torch.nan_to_num(direction, nan=0.0, posinf=0.0, neginf=0.0) for direction in (dL, dR))
        new = algebra.retract(parts.L, parts.R, dL * step[:, None, None], dR * step[:, None, None])
        edge = noise_edges(result.norm_C, stack.shape, share)
        L, R, present, moved = updated(new, parts.present, edge, ahead)
        values = self._values(L, R, present)
        change = moved / torch.clamp(torch.linalg.vector_norm(values, dim=1), min=_TINY)
        parts.L, parts.R, parts.present, parts.change = L, R, present, change
        parts.by_row, parts.by_column = result.kept_by_row, result.kept_by_column
        parts.kept = result.kept_by_row.sum(dim=1) / torch.clamp(stack.by_row.sum(dim=1), min=1)
        parts.behind = looks.lagging(stack, parts.by_row, parts.by_column)
        self._settled, self._strengths, self._edge = settled, values, edge
        norm = torch.where(stack.norm > 0, result.norm_C / torch.clamp(stack.norm, min=_TINY), 0.0)
        self.records.append((parts.index, torch.stack([parts.last, step, norm, change, parts.kept])))

    def _lower_thresholds(self, D: Any, k: int, multiplier: float) -> tuple[Any, Any]:
        """Set ζ_k; return by what factor it is above what σ calls for, and whether it has settled."""
        parts = self._parts
        residuals, tells = self._stack.sampled(D)
        parts.sigma = residual_cores(residuals.abs(), tells, parts.rounding, None if k == 1 else parts.sigma).sigma
        wanted = torch.clamp(parts.sharp * multiplier * parts.sigma, min=self._least)
        decay = torch.where(parts.behind, max(self._schedule.decay, thresholds.PATIENT_DECAY), self._schedule.decay)
        first = torch.isinf(parts.last)
        held = torch.maximum(decay * parts.last, torch.minimum(wanted, parts.last))
        threshold = torch.where(first, wanted, held)
        settled = ~first & (threshold > thresholds._SETTLED * parts.last)
        parts.last = threshold
        parts.sharp_passes = parts.sharp_passes + (parts.sharp != 1)
        return threshold / wanted, settled

    def _wants_grams(self) -> Any:
        """Return which problems are to solve rows and columns by their own Grams, (b,)."""
        stack, parts = self._stack, self._parts
        n1, n2 = stack.shape
        if self._schedule.update == "own_gram":
            return torch.ones_like(parts.at_work)
        if lagging._GRAM_COPIES * (n1 + n2) * parts.L.shape[2] ** 2 > max(n1 * n2, lagging._SMALL_GRAMS):
            return torch.zeros_like(parts.at_work)
        wants = parts.behind | (parts.kept < lagging._FEW_KEPT)
        for seen, length in ((stack.by_row, n2), (stack.by_column, n1)):
            least = torch.where(seen > 0, seen, length).amin(dim=1) / length
            wants = wants | (least < lagging._MOSTLY_OBSERVED)
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

    def _judge(self, k: int) -> None:
        """Let those problems end that have come to rest, and give those up that need a second look."""
        stack, parts = self._stack, self._parts
        self._changes.add(parts.change, parts.sigma)
        verdict = verdicts(
            self._changes,
            tol=self._tol,
            eps=self._eps,
            kept=parts.kept,
            observed=stack.share,
            values=self._strengths,
            present=parts.present,
            sigma=parts.sigma,
            settled=self._settled,
            lengths=sum(stack.shape),
            norm=stack.norm,
        )
        sharp = parts.sharp_passes > 0
        polished = (parts.sharp_passes >= thresholds._SHARP_PASSES) & (verdict == GOING_ON)
        verdict = torch.where(polished, NOISE_FLOOR, verdict)
        at_rest = parts.at_work & ((verdict == TOL) | (verdict == NOISE_FLOOR))
        gave_way = at_rest & sharp & (parts.sigma < thresholds._GAVE_WAY * parts.floor)
        given_up = parts.at_work & ((verdict == RUNAWAY) | (verdict == STALLED)) | gave_way
        asked = at_rest & ~sharp
        parts.at_work = parts.at_work & ~given_up
        self._end(at_rest & sharp & ~gave_way, verdict, k)
        if k % _RESCUE_EVERY == 0:
            self._rescue(parts.at_work & (verdict == GOING_ON), verdict)
        asked &= ~self._rescue(asked, verdict)
        asked &= ~self._try_without(asked)
        if bool(asked.any()):
            self._ask(asked, verdict, k)

    def _cutoff(self, parts: Problems) -> Any:
        """Return the residuals beyond which the last pass rejected entries, (b,)."""
        return parts.last * levels(self._schedule.influence, 1.0, self._schedule.cutoff).keep

    def _rescue(
        self,
        asked: Any,  # (b,) bool
        verdict: Any,  # (b,)
    ) -> Any:
        """Fit lost rows and columns of some problems anew; return who got better, (b,), and goes on."""
        parts, better = self._parts, torch.zeros_like(asked)
        rows, columns = looks.lost(self._stack, parts.by_row, parts.by_column, verdict == TOL)
        asked = asked & (rows.any(dim=1) | columns.any(dim=1)) & (parts.rescues < second_looks._RESCUES)
        chosen = torch.nonzero(asked)[:, 0]
        if len(chosen) == 0:
            return better
        some = parts.only(chosen)
        there = is_present(some.present, some.L.shape[2])
        lost = rows[chosen], columns[chosen]
        L, R, improved = rescue_lost(self._stack.only(chosen), some.L, some.R, there, lost, self._cutoff(some))
        parts.L[chosen], parts.R[chosen] = L, R
        parts.rescues[chosen] += 1
        better[chosen] = improved
        self._changes.forget(better)
        return better

    def _try_without(
        self,
        asked: Any,  # (b,) bool
    ) -> Any:
        """Leave out components that live in one row or column, to see whether they are needed.

        Return who is not to be asked further, (b,): whoever tries, and whoever is given up since the last trial has
        cost more than outliers fill of the row or column.
        """
        stack, parts = self._stack, self._parts
        n1, n2 = stack.shape
        in_rows, in_columns = localised(parts.L, parts.R, parts.present)
        dropped, explained = in_rows | in_columns, parts.by_row.sum(dim=1)
        missed = asked & (explained < parts.explained_before - second_looks._WORTH * parts.length_before)
        parts.at_work = parts.at_work & ~missed
        count = dropped.sum(dim=1)
        tries = asked & ~missed & (count > 0) & (count < parts.present) & (parts.trials < second_looks._TRIALS)
        if not bool(tries.any()):
            return missed
        absent = ~is_present(parts.present, dropped.shape[1]) | dropped
        values = algebra.lengths(parts.L) * algebra.lengths(parts.R)
        L, R, present = arranged(parts.L, parts.R, values, absent, self._edge)
        parts.L = torch.where(tries[:, None, None], L, parts.L)
        parts.R = torch.where(tries[:, None, None], R, parts.R)
        parts.present = torch.where(tries, present, parts.present)
        strength = (values * dropped).amax(dim=1) / math.sqrt(min(n1, n2))
        restart = torch.clamp(second_looks._TRIAL_THRESHOLD * strength, min=self._least)
        parts.last = torch.where(tries, restart, parts.last)
        length = torch.maximum(n2 * in_rows.any(dim=1), n1 * in_columns.any(dim=1)).double()
        parts.length_before = torch.where(tries, length, parts.length_before)
        parts.explained_before = torch.where(tries, explained, parts.explained_before)
        parts.trials = parts.trials + tries
        self._changes.forget(tries)
        return tries | missed

    def _ask(
        self,
        asked: Any,  # (b,) bool
        verdict: Any,  # (b,)
        k: int,
    ) -> None:
        """Ask the questions of `looks`: who passes them ends, or is polished at the noise floor."""
        chosen = torch.nonzero(asked)[:, 0]
        stack, parts, verdict = self._stack.only(chosen), self._parts.only(chosen), verdict[chosen]
        L, R = _without_probes(parts.L, parts.R, parts.present)
        D = stack.residual(L, R)
        sigma = looks.measured(stack, D, parts.rounding, parts.sigma)
        doubtful = looks.in_doubt(
            stack, parts.by_row, parts.by_column, D, sigma, parts.change, parts.rounding, self._least
        )
        there = is_present(parts.present, L.shape[2])
        doubtful |= looks.divided(stack, L, R, there, D, parts.kept, self._cutoff(parts))
        self._parts.at_work[chosen] &= ~doubtful
        ends = torch.zeros_like(asked)
        ends[chosen] = ~doubtful & (verdict == TOL)
        whole = torch.full_like(self._parts.index, TOL)
        self._end(ends, whole, k)
        polish = ~doubtful & (verdict == NOISE_FLOOR)
        if bool(polish.any()):
            again, sharp = chosen[polish], looks.sharpened(stack, D, parts.sigma, parts.present)[polish]
            self._parts.sharp[again] = sharp
            self._parts.last[again] = math.inf
            self._parts.floor = self._parts.floor.index_copy(0, again, parts.sigma[polish])
            begin = torch.zeros_like(asked)
            begin[again] = True
            self._changes.forget(begin)

    def _end(
        self,
        ended: Any,  # (b,) bool
        reason: Any,  # (b,)
        k: int,
    ) -> None:
        """Write down where some problems have ended."""
        chosen = torch.nonzero(ended)[:, 0]
        if len(chosen) == 0:
            return
        parts, ends = self._parts, self.ends
        at = parts.index[chosen]
        some = parts.only(chosen)
        ends.L[at], ends.R[at] = _without_probes(some.L, some.R, some.present)
        ends.reason[at], ends.n_iter[at] = reason[chosen], k
        ends.change[at], ends.present[at] = some.change, some.present
        ends.by_row[at], ends.by_column[at] = some.by_row, some.by_column
        parts.at_work = parts.at_work & ~ended


def _without_probes(
    L: Any,  # (b, n1, r)
    R: Any,  # (b, n2, r)
    present: Any,  # (b,)
) -> tuple[Any, Any]:
    there = is_present(present, L.shape[2])[:, None, :]
    return L * there, R * there


def _numpy_dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
