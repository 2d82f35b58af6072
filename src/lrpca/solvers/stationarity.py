"""The paper's rule for video: X and S have both come to rest.

    max(‖X_k - X_{k-1}‖ / ‖X_{k-1}‖, ‖S_k - S_{k-1}‖ / ‖S_{k-1}‖) < limit

S_k is what iteration k left out of its step, so it belongs to X_{k-1}. No S is kept: that of the last iteration is made
again from its factors and thresholds, both at once, in one more read of Y. That read is saved where X alone, or a
sample of the entries, shows that the rule is not met.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.factors import product_norm
from lrpca.core.influence import Levels
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import Sample

# A sample that shows S to move by more than this many times the limit is believed; if wrongly, it costs an iteration.
_SURELY = 1.2
# Levels that are entries of D itself are lowered by so many roundings of the largest entry of Y: D is computed anew.
_ROUNDINGS = 8.0

Factors = tuple[Any, Any]


class Cut(NamedTuple):
    """How S was cut out of D: an entry is left out of S where |D| is at most its row's or its column's level.

    What is left in is clipped: ``S = D - D min(1, clip / |D|)`` there, ``S = D`` elsewhere.
    """

    clip: float
    rows: Any  # (n1,) or a number
    columns: Any  # (n2,) or a number

    @classmethod
    def of(cls, level: Levels) -> Cut:
        """Return the cut of an influence function, S = D - ψ(D)."""
        return cls(level.clip, level.cutoff, 0.0)


class Split(NamedTuple):
    """X as an iteration found it, and how it cut S out of Y - X."""

    factors: Factors
    cut: Cut

    def state(self) -> dict[str, Any]:
        """Return the numbers and arrays that it is made of."""
        return {"factors": list(self.factors), "cut": list(self.cut)}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Split:
        """Return the split of a state."""
        L, R = state["factors"]
        return cls((L, R), Cut(*state["cut"]))


class Standstill:
    """Whether X and S have come to rest, iteration by iteration.

    Parameters
    ----------
    matrix : DenseMatrix
    sample : Sample
        Random observed entries.
    limit : float, optional
        Part of themselves that X and S may still change by; the rule is never met if not given.
    """

    def __init__(self, matrix: DenseMatrix, sample: Sample, limit: float | None) -> None:
        self._matrix, self._sample, self._limit = matrix, sample, limit
        self._last: Split | None = None

    @property
    def is_asked(self) -> bool:
        """Whether there is a rule to be met."""
        return self._limit is not None

    def state(self) -> dict[str, Any] | None:
        """Return the last iteration's split, if there is one."""
        return None if self._last is None else self._last.state()

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from a state."""
        self._last = None if state is None else Split.of_state(state)

    def reached(self, before: Factors, cut: Cut, after: Factors) -> bool:
        """Tell whether the rule is met by an iteration from X = L Rᵀ `before` to `after`, which cut S out of Y - X.

        Factors must not be changed in place from one iteration to the next.
        """
        if self._limit is None:
            return False
        last, self._last = self._last, Split(before, cut)
        if last is None or not _distance(before, after) < self._limit * product_norm(*before):
            return False
        old, new = (self._sampled(*split) for split in (last, self._last))
        if float(np.linalg.norm(new - old)) > _SURELY * self._limit * float(np.linalg.norm(old)):
            return False
        return self._change(last, self._last) < self._limit

    def _sampled(self, factors: Factors, cut: Cut) -> Any:
        """Return S at the sampled entries."""
        D = self._sample.signed_residuals(*factors)
        size = np.abs(D)
        row, column = (
            level if np.isscalar(level) else level[where]
            for level, where in ((cut.rows, self._sample.rows), (cut.columns, self._sample.columns))
        )
        shrink = np.divide(cut.clip, size, out=np.ones_like(size), where=size > cut.clip)
        return np.where(size <= np.maximum(row, column), D - D * shrink, D)

    def _change(self, last: Split, now: Split) -> float:
        """Return ‖S_k - S_{k-1}‖ / ‖S_{k-1}‖; NaN where S was empty, which is no standstill."""
        matrix = self._matrix
        if hasattr(matrix, "sparse_change"):
            # On another device, where all entries have the same levels.
            old, new = ((*factors, Levels(cut.clip, cut.rows, cut.rows)) for factors, cut in (last, now))
            moved, size = matrix.sparse_change(old, new)
            return math.sqrt(moved / size) if size else math.nan
        from lrpca.kernels.sparse_change import block_change

        n1, n2 = matrix.shape
        real = np.zeros(0, matrix.arithmetic).real.dtype
        sides = []
        for (L, R), cut in (last, now):
            with np.errstate(over="ignore"):
                rows = np.array(np.broadcast_to(np.asarray(cut.rows, real), n1))
                columns = np.array(np.broadcast_to(np.asarray(cut.columns, real), n2))
            L, Rt = np.ascontiguousarray(L, matrix.arithmetic), np.ascontiguousarray(R.T, matrix.arithmetic)
            sides.append((L, Rt, real.type(cut.clip), rows, columns))

        def work(part: slice, block: Any, observed: Any) -> tuple[float, float]:
            if observed is not None and not observed.all():
                block = np.where(observed, block, np.nan)
            room = np.empty((2, n2), matrix.arithmetic)
            cuts = [x for L, Rt, clip, rows, columns in sides for x in (L[part], Rt, clip, rows[part], columns)]
            moved, size = block_change(block, *cuts, *room)
            return moved, size

        whole = not matrix.is_masked and matrix.stored.kind in "iub"
        sums = matrix.map_rows(work, missing=not whole)
        moved, size = (math.fsum(column) for column in zip(*sums, strict=True))
        return math.sqrt(moved / size) if size else math.nan


def below(
    levels: Any,  # (n,) the least |D| that are in S
    largest: float,
    arithmetic: Any,
) -> Any:
    """Return levels that D stays above when it is computed once more: those that are entries of D are met exactly."""
    real = np.zeros(0, arithmetic).real.dtype
    return np.maximum(levels - _ROUNDINGS * float(np.finfo(real).eps) * largest, 0.0)


def _distance(before: Factors, after: Factors) -> float:
    """Return ‖X' - X‖ of two products, which may differ in width."""
    (L, R), (L_new, R_new) = before, after
    return product_norm(np.concatenate([L_new, -L], axis=1), np.concatenate([R_new, R], axis=1))
