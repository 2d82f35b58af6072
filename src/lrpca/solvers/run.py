"""One run of a solver on a problem: its history, its settings, and when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from lrpca.core.factors import change_of_product, product_distance, product_norm
from lrpca.core.passes import Kept
from lrpca.solvers.base import Record, Solution, State, asked_to_stop
from lrpca.solvers.checks.low_inlier_rows import unexplained_by_more_than
from lrpca.solvers.checks.other_fits import structure_of
from lrpca.solvers.checks.residual_structure import STRUCTURED
from lrpca.solvers.components import all_present
from lrpca.solvers.initialise import ObservationCounts, count_observed
from lrpca.solvers.methods import able_to

if TYPE_CHECKING:
    from lrpca.solvers.problem import Problem

# With more than four fifths of the entries in S, a small residual says nothing about X.
_MOSTLY_REJECTED = 0.2
# X is stationary if it has moved less than this part of `tol` for so many iterations, at a constant threshold.
_REST, _RESTING = 0.1, 3
_CONSTANT = 0.99
_NEXT_TO_NOTHING = 1e-5
# A row is unexplained if its median residual is above this part of the median entry.
_ACCURATE = 1e-4
_ROUNDINGS = 4.0

Factors = tuple[Any, Any]


class Run:
    """One call of a solver: the problem, its parts as attributes, and the history so far.

    Attributes
    ----------
    problem : Problem
    settings : dict
        The method's options, defaults included; `settle` adds those that were found from the data.
    estimated : list of str
        Names of settings that were found from the data.
    history : list of Record
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.matrix, self.method, self.sample, self.rng = problem.matrix, problem.method, problem.sample, problem.rng
        self.tol, self.max_iter, self.start = problem.tol, problem.max_iter, problem.start
        limits = {"tol": problem.tol, "max_iter": problem.max_iter}
        self.settings: dict[str, Any] = problem.method.defaults() | problem.options | limits
        self.estimated: list[str] = []
        self.history: list[Record] = []
        self._counts: ObservationCounts | None = None
        self._before: Factors | None = None
        self._began = 0.0
        self._resting = 0
        self._rounding = _ROUNDINGS * float(np.finfo(problem.matrix.result).eps)

    @property
    def rank(self) -> int:
        """The rank asked for."""
        assert self.problem.rank is not None  # `decompose` requires it where the method needs it
        return self.problem.rank

    @property
    def counts(self) -> ObservationCounts:
        """Norm and counts of observed entries, all of them finite: one read of Y, at the first use."""
        if self._counts is None:
            self.take_counts(count_observed(self.matrix))
        assert self._counts is not None
        return self._counts

    def take_counts(self, counts: ObservationCounts) -> None:
        """Store the counts of a first read of Y; raise where the method does not take missing entries."""
        if counts.observed < 1 and not self.method.missing:
            raise ValueError(
                f"Y has missing entries ({100 * (1 - counts.observed):.2g}%), which method={self.method.name!r} does "
                f"not take; use one of {able_to('missing')}"
            )
        self._counts = counts

    def settle(self, *, estimated: bool = False, **values: Any) -> None:
        """Store parameters as used; `estimated` ones were found from the data."""
        self.settings.update(values)
        if estimated:
            self.estimated += [name for name in values if name not in self.estimated]

    def refuse(self, because: str, **options: Any) -> None:
        """Raise if options are given that would not be used; remove them from the settings otherwise."""
        for name, value in options.items():
            if value is not None:
                raise ValueError(f"options[{name!r}]={value!r} is not used {because}; leave it out")
            self.settings.pop(name, None)

    def iterations(self) -> Iterator[int]:
        """Yield 1, 2, ... up to `max_iter`, and start the clock of each iteration."""
        for k in range(1, self.max_iter + 1):
            self._began = time.perf_counter()
            yield k

    def record(
        self,
        L: Any,
        R: Any,
        *,
        threshold: float | None = None,
        step: float | None = None,
        residual: float | None = None,
        change: float | None = None,
        kept: float | None = None,
        signal: float | None = None,
    ) -> str | None:
        """Record an iteration that led to L Rᵀ, call the callback, and return a reason to stop or None.

        `residual` is ``‖Y - X - S‖ / ‖Y‖`` over observed entries, `kept` the share of them not in S. The relative
        change of X is computed from the factors unless given, and so is the `signal`, ‖X‖ / ‖Y‖.
        """
        if not math.isfinite(product_norm(L, R)):
            return "runaway"
        if change is None:
            change = self._change(L, R)
        # The callback and the solver may change their arrays in place.
        self._before = (L.copy(), R.copy())
        seconds = time.perf_counter() - self._began
        self.history.append(Record(len(self.history) + 1, threshold, step, residual, change, kept, seconds))
        if self.problem.callback is not None:
            state = State.of(self.history[-1], *(factor.astype(self.matrix.result) for factor in (L, R)))
            if asked_to_stop(self.problem.callback(state)):
                return "callback"
        if signal is None and self.method.measure == "residual":
            signal = self._signal(L, R)
        return self._verdict(signal)

    def end(self, L: Any, R: Any, reason: str, kept: Kept | None = None) -> Solution:
        """Return the solution; factors may have fewer columns than the rank asked for, or more.

        `kept` counts the entries that are not in S, where known. A run with low-inlier rows, or with a component that
        lives in one row or column, has not converged.
        """
        if not math.isfinite(product_norm(L, R)):
            return self.overflow()
        if reason == "tol" and kept is not None:
            unexplained = unexplained_by_more_than(
                self.matrix, L, R, kept, self.counts, _ACCURATE * self.sample.typical
            )
            # A component of a rank too large ends as the outliers of one row or column.
            reason = "stalled" if unexplained or all_present(L, R).localised().any() else "tol"
        wide = np.promote_types(self.matrix.arithmetic, np.float64)
        L, R = np.asarray(L, wide), np.asarray(R, wide)
        width = self.problem.rank or max(1, L.shape[1])
        L, R = padded(L, R, width)
        change = self.history[-1].change or 0.0 if self.history else 0.0
        return Solution(L, R, self.history, reason, self._counts, kept, None, change, rank=width)

    def overflow(self) -> Solution:
        """Return the solution of a run whose numbers overflowed: its last finite iterate."""
        n1, n2 = self.matrix.shape
        L, R = self._before or (np.zeros((n1, 1)), np.zeros((n2, 1)))
        return self.end(L, R, "runaway")

    def _change(self, L: Any, R: Any) -> float | None:
        if self._before is None:
            return None
        before_L, before_R = self._before
        if before_L.shape == L.shape:
            moved = change_of_product(before_L, before_R, L - before_L, R - before_R)
        else:
            moved = product_distance(L, R, before_L, before_R)
        size = product_norm(L, R)
        return moved / size if size else None if moved else 0.0

    def _signal(self, L: Any, R: Any) -> float:
        """Return ‖X‖ / ‖Y‖; 1 if Y is zero except for outliers."""
        counts, values = self._counts, np.abs(self.sample.values)
        if not np.median(values):
            return 1.0
        size = product_norm(L, R)
        if counts is None:
            # Y is not read as a whole.
            return size / (math.sqrt(math.prod(self.matrix.shape)) * float(np.sqrt(np.mean(values**2))))
        return size * math.sqrt(counts.observed) / counts.norm

    def _verdict(self, signal: float | None) -> str | None:
        last = self.history[-1]
        measured = getattr(last, self.method.measure)
        if measured is not None and not np.isfinite(measured):
            return "runaway"
        if self.tol == 0:
            return None
        # Gross outliers decide ‖Y‖, and make nearly every residual small relative to it.
        share = 1.0 if signal is None else min(1.0, signal)
        if measured is not None and measured <= max(self.tol * share, self._rounding):
            return "runaway" if last.kept is not None and last.kept < _MOSTLY_REJECTED else "tol"
        return None if self.method.exact or self.method.measure != "residual" else self._verdict_at_rest(share)

    def _verdict_at_rest(self, share: float) -> str | None:
        """Return "noise_floor" or, for a wrong X, "stalled" if X is stationary while the residual is above `tol`."""
        last = self.history[-1]
        before = self.history[-2] if len(self.history) > 1 else None
        limit = max(_REST * self.tol, self._rounding)
        # A slow method in single precision moves by roundings and still converges.
        falling = before is None or _falls(before.threshold, last.threshold) or _falls(before.residual, last.residual)
        still = last.change is not None and last.change <= limit and not falling
        self._resting = self._resting + 1 if still else 0
        if self._resting < _RESTING:
            return None
        assert self._before is not None and last.residual is not None
        # The residual of an exact fit has the structure of the last steps.
        exact = last.residual <= _NEXT_TO_NOTHING * share
        wrong = not exact and structure_of(self.matrix, *self._before) > STRUCTURED
        return "stalled" if wrong else "noise_floor"


def padded(L: Any, R: Any, width: int) -> Factors:
    """Return the factors with zeros for components that are not there."""
    more = ((0, 0), (0, max(0, width - L.shape[1])))
    return np.pad(L, more), np.pad(R, more)


def _falls(before: float | None, now: float | None) -> bool:
    return now is not None and (before is None or now < _CONSTANT * before)
