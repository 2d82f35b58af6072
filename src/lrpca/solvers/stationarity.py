"""The stationarity test of the paper's video experiments: neither X nor S changes any more.

    max(‖X_k - X_{k-1}‖ / ‖X_{k-1}‖, ‖S_k - S_{k-1}‖ / ‖S_{k-1}‖) < limit

S_k is what iteration k left out of its step, so it belongs to X_{k-1}. S is not stored: one more pass over the data
computes both from their factors and thresholds. The pass is skipped where X alone, or a sample of the entries, fails
the test.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.factors import product_distance, product_norm
from lrpca.core.influence import Levels
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import Sample

# The test fails if S moves by more than this many times the limit on a sample; an error costs one more iteration.
_SURELY = 1.2

Factors = tuple[Any, Any]


class SparseThreshold(NamedTuple):
    """The threshold that S was computed with.

    ``S = D`` where |D| exceeds the level of its row and that of its column, ``S = D - D min(1, clip / |D|)`` elsewhere.
    """

    clip: float
    rows: Any  # (n1,) or a number
    columns: Any  # (n2,) or a number

    @classmethod
    def of(cls, level: Levels) -> SparseThreshold:
        """Return the threshold of an influence function, S = D - ψ(D)."""
        return cls(level.clip, level.cutoff, 0.0)


class Iterate(NamedTuple):
    """The factors of X before an iteration, and the threshold of its S."""

    factors: Factors
    threshold: SparseThreshold

    def state(self) -> dict[str, Any]:
        """Return numbers and arrays for a checkpoint."""
        return {"factors": list(self.factors), "threshold": list(self.threshold)}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Iterate:
        """Return the iterate of a state."""
        L, R = state["factors"]
        return cls((L, R), SparseThreshold(*state["threshold"]))


class StationarityTest:
    """Test in each iteration whether X and S are stationary: both change by less than `limit`, relatively.

    Without a limit, the test always fails.
    """

    def __init__(self, matrix: DenseMatrix, sample: Sample, limit: float | None) -> None:
        self._matrix, self._sample, self._limit = matrix, sample, limit
        self._last: Iterate | None = None

    @property
    def is_asked(self) -> bool:
        """Whether there is a limit."""
        return self._limit is not None

    def state(self) -> dict[str, Any] | None:
        """Return the state of the last iterate, if there is one."""
        return None if self._last is None else self._last.state()

    def restore(self, state: dict[str, Any] | None) -> None:
        """Resume from a state."""
        self._last = None if state is None else Iterate.of_state(state)

    def reached(self, before: Factors, threshold: SparseThreshold, after: Factors) -> bool:
        """Test an iteration from X = L Rᵀ `before` to `after`, with the `threshold` of its S.

        Factors must not be changed in place from one iteration to the next.
        """
        if self._limit is None:
            return False
        last, self._last = self._last, Iterate(before, threshold)
        if last is None or not product_distance(*after, *before) < self._limit * product_norm(*before):
            return False
        old, new = (self._sampled(*iterate) for iterate in (last, self._last))
        if float(np.linalg.norm(new - old)) > _SURELY * self._limit * float(np.linalg.norm(old)):
            return False
        return self._change(last, self._last) < self._limit

    def _sampled(self, factors: Factors, threshold: SparseThreshold) -> Any:
        """Return S at the sampled entries."""
        D = self._sample.signed_residuals(*factors)
        size = np.abs(D)
        row, column = (
            level if np.isscalar(level) else level[where]
            for level, where in ((threshold.rows, self._sample.rows), (threshold.columns, self._sample.columns))
        )
        shrink = np.divide(threshold.clip, size, out=np.ones_like(size), where=size > threshold.clip)
        return np.where(size <= np.maximum(row, column), D - D * shrink, D)

    def _change(self, last: Iterate, now: Iterate) -> float:
        """Return ‖S_k - S_{k-1}‖ / ‖S_{k-1}‖; NaN, which fails the test, if S was empty."""
        matrix = self._matrix
        if hasattr(matrix, "sparse_change"):
            # On another device, where all entries have the same levels.
            old, new = ((*factors, Levels(level.clip, level.rows, level.rows)) for factors, level in (last, now))
            moved, size = matrix.sparse_change(old, new)
            return math.sqrt(moved / size) if size else math.nan
        from lrpca.kernels.sparse_change import block_change

        n1, n2 = matrix.shape
        real = np.zeros(0, matrix.arithmetic).real.dtype
        sides = []
        for (L, R), level in (last, now):
            with np.errstate(over="ignore"):
                rows, columns = np.full(n1, level.rows, real), np.full(n2, level.columns, real)
            L, Rt = np.ascontiguousarray(L, matrix.arithmetic), np.ascontiguousarray(R.T, matrix.arithmetic)
            sides.append((L, Rt, real.type(level.clip), rows, columns))

        def work(part: slice, block: Any, observed: Any) -> tuple[float, float]:
            if observed is not None and not observed.all():
                block = np.where(observed, block, np.nan)
            buffers = np.empty((2, n2), matrix.arithmetic)
            both = [x for L, Rt, clip, rows, columns in sides for x in (L[part], Rt, clip, rows[part], columns)]
            moved, size = block_change(block, *both, *buffers)
            return moved, size

        whole = not matrix.is_masked and matrix.stored.kind in "iub"
        sums = matrix.map_rows(work, missing=not whole)
        moved, size = (math.fsum(column) for column in zip(*sums, strict=True))
        return math.sqrt(moved / size) if size else math.nan
