"""Does another fit describe the data better? Several starts and ranks on a block of Y say so, by one score."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.passes import Kept
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import block_of, read_block
from lrpca.solvers.block import ALIGNED, HALF_STARTS, Block, Fit, alignment, from_half, polished, widened
from lrpca.solvers.checks.low_inlier_rows import UNEXPLAINED
from lrpca.solvers.checks.residual_structure import LEAST_SIDE, STRUCTURED, structure_left
from lrpca.solvers.initialise import ObservationCounts
from lrpca.solvers.rank.selection import doubled, most_components, select_fit
from lrpca.solvers.refit import least_absolute_rows

# A fit is beyond suspicion if its noise is below this part of a typical entry, and it rejects next to nothing, or ...
QUIET, RARE = 0.12, 1e-3
# ... the numbers of kept entries in rows and columns vary as chance explains (χ² within so many standard errors), and
# the signs of the rejected entries form no pattern.
DISPERSED = 5.0
# Values that many entries have are codes if a fit without them explains so much more of the other entries.
_CLEARLY_MORE = 0.1
# A fit is confirmed if a random half of the block, one of six, leads to the same one. They are the same if the other
# one is not better by so many nats for each entry, as it may be at a lower threshold, and they differ by no more than
# this part of X, or this many times what noise leaves uncertain in X.
_BETTER, _SAME, _WITHIN = 0.1, 0.1, 3.0
# A fit is clearly better if it is shorter by this many nats for each entry of the block: a run continues from it.
_CLEARLY = 0.01
# That there is no low-rank part is asked of fits with fewer numbers than this part of the entries.
_PARSIMONIOUS = 0.25
# A rank may be too small by so many, or by half of what it should be.
_MORE = 8
# Entries of the block (245 x 245), and of pieces that are read to extend its fit to all of Y.
_BLOCK, _PIECE = 60_000, 1 << 18
# Of least absolute deviations, where passes over Y do the rest.
_FEW_ITERATIONS = 6


class OtherFit(NamedTuple):
    """Factors for all of Y and the threshold to continue with."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    threshold: float


class OtherFits:
    """Other fits of a block of Y, which is read when first asked for."""

    def __init__(self, matrix: DenseMatrix, weight: Any, least: float, *, free_rank: bool) -> None:
        self._matrix, self._weight, self._least, self._free_rank = matrix, weight, least, free_rank
        self._rows: Any = None
        self._columns: Any = None
        self._block: Block | None = None
        self.is_read = False
        self._without_codes = False
        self._thorough = True  # whether the present fit rejects entries

    def state(self) -> dict[str, Any]:
        """Return which block is in use."""
        return {"read": self.is_read, "without_codes": self._without_codes}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.is_read, self._without_codes = state["read"], state["without_codes"]

    @property
    def block(self) -> Block:
        """The block, all of Y where that is small."""
        if self._block is None:
            rows, self._columns = block_of(self._matrix, np.random.default_rng(0), _BLOCK, self._weight)
            self._rows = rows if self._weight is None else rows[np.asarray(self._weight)[rows] > 0]
            values, observed = read_block(self._matrix, self._rows, self._columns)
            read, there = values.size, observed & (values != 0)
            rows, columns = there.any(axis=1), there.any(axis=0)
            if min(rows.sum(), columns.sum()) >= LEAST_SIDE:
                # Rows and columns of zeros fit exactly, whatever the others are, and would hide their noise.
                self._rows, self._columns = self._rows[rows], self._columns[columns]
                values, observed = values[np.ix_(rows, columns)], observed[np.ix_(rows, columns)]
            wide = np.promote_types(values.dtype, np.float64)
            # All of Y has more entries for each number of a fit, so a rank that is given is not lowered by a part.
            part = self._parsimony(self._matrix.shape) / self._parsimony(values.shape)
            price = 1.0 if self._free_rank else part
            values = np.where(observed, values, 0).astype(wide)
            self._block = Block(values, observed, self._least, price, rank_is_given=not self._free_rank)
            # A resumed run reads it again, and counts it once.
            self._matrix.reads += 0 if self.is_read else read / math.prod(self._matrix.shape)
            self.is_read = True
            if self._without_codes:
                self._block = self._block.without_codes()
                assert self._block is not None
        return self._block

    @staticmethod
    def _parsimony(shape: tuple[int, ...]) -> float:
        """Return how many numbers a component has for each entry."""
        return sum(shape) / math.prod(shape)

    def _within(self, L: Any, R: Any) -> tuple[Any, Any]:
        """Return the factors of the block."""
        wide = self.block.values.dtype
        return np.asarray(L[self._rows], wide), np.asarray(R[self._columns], wide)

    def score(self, L: Any, R: Any) -> Fit:
        """Return the present fit of the block with its score."""
        return self.block.scored(*self._within(L, R))

    def structure(self, L: Any, R: Any) -> float:
        """Return how much structure the residual of the block has left, see `residual_structure`."""
        return structure_left(self.block.values, self.block.observed, *self._within(L, R))

    def suspicious(self, L: Any, R: Any, kept: Kept, counts: ObservationCounts, sigma: float, cutoff: float) -> bool:
        """Tell whether the rejected entries or the noise are such as a wrong fit leaves."""
        by_row, by_column = _kept_and_observed(kept, counts)
        self._thorough = by_row[0].sum() <= (1 - RARE) * by_row[1].sum()
        if sigma > QUIET * self.block.scale:
            return True
        if not self._thorough:
            return False
        if max(_dispersion(*by_row), _dispersion(*by_column)) > DISPERSED:
            return True
        L, R = self._within(L, R)
        D = self.block.values - L @ R.T
        sizes = np.abs(D)
        rejected = self.block.observed & (sizes > cutoff)
        return alignment(np.divide(D, sizes, where=rejected, out=np.zeros_like(D)), rejected) > ALIGNED

    def is_pointless(self, L: Any, R: Any) -> bool:
        """Tell whether no low-rank part at all describes the block at least as well."""
        (n1, n2), fit = self.block.values.shape, self.score(L, R)
        if L.shape[1] * (n1 + n2) > _PARSIMONIOUS * n1 * n2 or not L.any() or fit.kept > 1 - RARE:
            return False
        return self.block.scored(np.zeros((n1, 0)), np.zeros((n2, 0))).score <= fit.score

    def is_too_narrow(self, L: Any, R: Any) -> bool:
        """Tell whether a fit of more components explains more, and the spectrum ends with one of these."""
        L, R = self._within(L, R)
        block, rank = replace(self.block, rank_is_given=False, price=1.0), L.shape[1]
        most = min(rank + max(rank, _MORE), min(block.values.shape) // 2)
        if most <= rank:
            return False
        wide = widened(block, block.scored(L, R), most)
        wide_kept, kept = (
            np.mean((block.residuals(*fit) <= _WITHIN * wide.sigma)[block.observed]) for fit in (wide[:2], (L, R))
        )
        values = np.sort(np.linalg.norm(wide.L, axis=0) * np.linalg.norm(wide.R, axis=0))[::-1][rank - 1 :]
        gaps = values[:-1] / np.maximum(values[1:], 1e-300)
        # Of all gaps the largest is the end of the spectrum.
        ends_later = gaps[0] < gaps.max() and gaps.max() > STRUCTURED
        return bool(ends_later and wide_kept > kept + _CLEARLY_MORE and block.prefers(wide, block.scored(L, R)))

    def prefers(self, one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
        """Tell whether one fit is better than another."""
        return self.block.is_better(self.score(*one), self.score(*other))

    def is_longer(self, one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
        """Tell whether one fit has a clearly longer description than another."""
        return bool(self.score(*one).score > self.score(*other).score + _CLEARLY * self.block.values.size)

    def better_than(self, L: Any, R: Any, most: int, *, stalled: bool) -> OtherFit | None:
        """Return a fit of all of Y that describes the block better than the present one, if there is one.

        It has `most` components at most, or any number if the rank is free. A run that `stalled` may continue from one
        that is as good.
        """
        now, margin = self._at_rest(L, R), _CLEARLY * self.block.values.size
        found = self._selected(sorted({L.shape[1], most}), *([] if stalled else [now]))
        least = now.score + (margin if stalled else -margin)
        if found is now or (found.L.shape == now.L.shape and found.score > least):
            return None
        return self._extended(found)

    def from_halves(self, L: Any, R: Any, seed: int) -> tuple[OtherFit | None, bool]:
        """Return a better fit, if random halves of the block lead to one, and whether one of them leads to this one."""
        best = now = self._at_rest(L, R)
        rng = np.random.default_rng(seed)
        for start, of_rows in itertools.product(HALF_STARTS, (True, False)):
            other = from_half(self.block, L.shape[1], rng, start, of_rows=of_rows)
            if _agree(self.block, now, other):
                return None, True
            best = other if other.score < min(best.score, now.score - _BETTER * self.block.values.size) else best
        return None if best is now else self._extended(best), False

    def _at_rest(self, L: Any, R: Any) -> Fit:
        """Return the present fit of the block, at rest where that is the same fit: so are those it is compared with."""
        now = self.score(L, R)
        rested = polished(self.block, now)
        return rested if _agree(self.block, now, rested) else now

    def of_any_rank(self) -> OtherFit:
        """Return the best fit of all of Y that a block leads to."""
        return self._extended(self._selected([]))

    def _selected(self, ranks: list[int], *now: Fit) -> Fit:
        block = self.block
        ranks = doubled(most_components(block.values.shape)) if self._free_rank else ranks
        found = select_fit(block, ranks, *now, thorough=self._thorough)
        uncoded = block.without_codes()
        explained = 1.0 if uncoded is None else uncoded.scored(found.L, found.R).kept
        if uncoded is None or explained > 1 - _CLEARLY_MORE:
            return found
        other = select_fit(uncoded, ranks)
        if other.kept > explained + _CLEARLY_MORE:
            self._block, self._without_codes = uncoded, True
            return other
        return select_fit(block, [other.L.shape[1]], found, block.scored(other.L, other.R))

    def _extended(self, fit: Fit) -> OtherFit:
        """Return a fit of the block as one of all rows and columns of Y."""
        (n1, n2), L, R = self._matrix.shape, fit.L, fit.R
        if len(self._rows) < n1:
            L = self._regressed(n1, self._columns, R, along_rows=True)
        if len(self._columns) < n2:
            R = self._regressed(n2, self._rows, L[self._rows], along_rows=False)
        return OtherFit(L, R, 5 * fit.sigma)

    def _regressed(self, n: int, others: Any, factor: Any, *, along_rows: bool) -> Any:
        """Return coefficients of all rows (or columns) on a factor of some columns (or rows)."""
        piece = max(1, _PIECE // len(others))
        parts = []
        for first in range(0, n, piece):
            mine = np.arange(first, min(n, first + piece))
            values, seen = read_block(self._matrix, *((mine, others) if along_rows else (others, mine)))
            if not along_rows:
                values, seen = values.T, seen.T
            parts.append(
                least_absolute_rows(np.where(seen, values, 0).astype(factor.dtype), seen, factor, _FEW_ITERATIONS)
            )
        self._matrix.reads += n * len(others) / math.prod(self._matrix.shape)
        return np.concatenate(parts)


def structure_of(matrix: DenseMatrix, L: Any, R: Any) -> float:
    """Return how much structure the residual of a random block of a matrix has left."""
    return OtherFits(matrix, None, 0.0, free_rank=False).structure(L, R)


def _agree(block: Block, one: Fit, other: Fit) -> bool:
    """Tell whether another fit is the same as one, in the rows and columns that this one explains."""
    kept = block.observed & (block.residuals(one.L, one.R) <= block.limit(one.sigma))
    shares = (kept.sum(axis) / np.maximum(block.observed.sum(axis), 1) for axis in (1, 0))
    rows, columns = (share >= UNEXPLAINED * np.median(share) for share in shares)
    X = one.L[rows] @ one.R[columns].T
    distance = float(np.linalg.norm(other.L[rows] @ other.R[columns].T - X))
    # What the noise leaves uncertain in X.
    noise = one.sigma * math.sqrt(one.L.shape[1] * sum(X.shape) / max(one.kept, 1e-3))
    is_near = distance <= max(_SAME * float(np.linalg.norm(X)), _WITHIN * noise)
    return is_near and other.score >= one.score - _BETTER * block.values.size


def _kept_and_observed(kept: Kept, counts: ObservationCounts) -> list[tuple[Any, Any]]:
    """Return kept and observed counts of rows and of columns; of rows without weight neither."""
    observed = [np.asarray(numbers, float) for numbers in (counts.observed_by_row, counts.observed_by_column)]
    return [(np.minimum(np.asarray(mine, float), seen), seen) for mine, seen in zip(kept, observed, strict=True)]


def _dispersion(
    kept: Any,  # (n,)
    observed: Any,  # (n,)
) -> float:
    """Return by how many standard errors kept counts vary more than binomial ones."""
    total = observed.sum()
    share = kept.sum() / total if total else 1.0
    if share >= 1.0 - 1e-9:
        return 0.0
    variance = observed * share * (1 - share)
    seen = variance > 0
    if not seen.any():
        return 0.0
    excess = float(np.mean((kept - share * observed)[seen] ** 2 / variance[seen])) - 1
    return excess / math.sqrt(2 / np.count_nonzero(seen))
