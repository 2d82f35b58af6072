"""Does another fit describe the data better? Several starts on a block of Y say so, by one score."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.passes import Kept
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import read_block
from lrpca.solvers.block import Block, Fit, best_fit, least_absolute_rows
from lrpca.solvers.initialise import Survey
from lrpca.solvers.rank.scan import block_of

# A fit is beyond suspicion if its noise is below this part of a typical entry, and it rejects next to nothing, or ...
_QUIET, _RARE = 0.12, 1e-3
# ... the numbers of kept entries in rows and columns vary as chance explains (χ² within so many standard errors), ...
_DISPERSED = 5.0
# ... and the leading singular value of the rejected entries is that of independent ones (Tracy and Widom's n^(-2/3)).
_ALIGNED = 4.0
# Another fit has to be shorter by this many nats for each entry of the block.
_CLEARLY = 1e-3
# That there is no low-rank part is asked of fits with fewer numbers than this part of the entries.
_PARSIMONIOUS = 0.25
# Entries of the block (300 x 300), and of pieces that are read to extend its fit to all of Y.
_BLOCK, _PIECE = 90_000, 1 << 22


class OtherFit(NamedTuple):
    """Factors for all of Y and the threshold to continue with."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    threshold: float


class OtherFits:
    """Other fits of a block of Y, which is read when first asked for."""

    def __init__(self, matrix: DenseMatrix, rng: np.random.Generator, weight: Any, least: float) -> None:
        self._matrix, self._rng, self._weight, self._least = matrix, rng, weight, least
        self._rows: Any = None
        self._columns: Any = None
        self._block: Block | None = None
        self.is_read = False

    @property
    def block(self) -> Block:
        """The block, all of Y where that is small."""
        if self._block is None:
            self._rows, self._columns = block_of(self._matrix, self._rng, self._weight, _BLOCK)
            values, observed = read_block(self._matrix, self._rows, self._columns)
            wide = np.promote_types(values.dtype, np.float64)
            self._block = Block(np.where(observed, values, 0).astype(wide), observed, self._least)
            # A resumed run reads it again, and counts it once.
            self._matrix.reads += 0 if self.is_read else math.ceil(values.size / math.prod(self._matrix.shape))
            self.is_read = True
        return self._block

    def score(self, L: Any, R: Any) -> Fit:
        """Return the present fit of the block with its score."""
        block = self.block
        wide = block.values.dtype
        return block.scored(np.asarray(L[self._rows], wide), np.asarray(R[self._columns], wide))

    def suspicious(self, L: Any, R: Any, kept: Kept, survey: Survey, sigma: float, cutoff: float) -> bool:
        """Tell whether the rejected entries or the noise are such as a wrong fit leaves."""
        if sigma > _QUIET * self.block.scale:
            return True
        by_row, by_column = _counts(kept, survey)
        if by_row[0].sum() > (1 - _RARE) * by_row[1].sum():
            return False
        if max(_dispersion(*by_row), _dispersion(*by_column)) > _DISPERSED:
            return True
        wide = self.block.values.dtype
        D = self.block.values - np.asarray(L[self._rows], wide) @ np.asarray(R[self._columns], wide).T
        D[~self.block.observed] = 0
        return _alignment(D, cutoff) > _ALIGNED

    def is_pointless(self, L: Any, R: Any) -> bool:
        """Tell whether no low-rank part at all describes the block at least as well."""
        n1, n2 = self.block.values.shape
        saturated = L.shape[1] * (n1 + n2) > _PARSIMONIOUS * n1 * n2
        fit = self.score(L, R)
        if saturated or not L.any() or fit.kept > 1 - _RARE:
            return False
        return self.block.description_length(np.abs(self.block.values), 0)[0] <= fit.score

    def better_than(self, L: Any, R: Any, *, stalled: bool) -> OtherFit | None:
        """Return a fit of all of Y that describes the block better than the present one, if there is one.

        A run that `stalled` may continue from one that is as good.
        """
        block, now = self.block, self.score(L, R)
        found = best_fit(block, L.shape[1])
        margin = _CLEARLY * block.values.size
        if found.score > now.score + (margin if stalled else -margin):
            return None
        return OtherFit(*self._extended(found.L, found.R), 5 * found.sigma)

    def _extended(self, L: Any, R: Any) -> tuple[Any, Any]:
        """Return factors for all rows and columns of Y."""
        n1, n2 = self._matrix.shape
        if len(self._rows) < n1:
            L = self._regressed(n1, self._columns, R, along_rows=True)
        if len(self._columns) < n2:
            R = self._regressed(n2, self._rows, L[self._rows], along_rows=False)
        return L, R

    def _regressed(self, n: int, others: Any, factor: Any, *, along_rows: bool) -> Any:
        """Return coefficients of all rows (or columns) on a factor of some columns (or rows)."""
        piece = max(1, _PIECE // len(others))
        parts = []
        for first in range(0, n, piece):
            mine = np.arange(first, min(n, first + piece))
            values, seen = read_block(self._matrix, *((mine, others) if along_rows else (others, mine)))
            if not along_rows:
                values, seen = values.T, seen.T
            parts.append(least_absolute_rows(np.where(seen, values, 0).astype(factor.dtype), seen, factor))
        self._matrix.reads += math.ceil(n * len(others) / math.prod(self._matrix.shape))
        return np.concatenate(parts)


def _counts(kept: Kept, survey: Survey) -> list[tuple[Any, Any]]:
    """Return kept and observed counts of rows and of columns."""
    observed = survey.observed_by_row, survey.observed_by_column
    return [(np.asarray(mine, float), np.asarray(all_of, float)) for mine, all_of in zip(kept, observed, strict=True)]


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


def _alignment(
    D: Any,  # (n1, n2), changed in place
    cutoff: float,
) -> float:
    """Return how far the leading singular value of the rejected entries' signs is above that of independent ones."""
    sizes = np.abs(D)
    rejected = sizes > cutoff
    if not rejected.any():
        return 0.0
    np.divide(D, sizes, out=D, where=rejected)
    D[~rejected] = 0
    D[rejected] -= np.mean(D[rejected])
    power = float(np.vdot(D, D).real) / D.size
    if power == 0:
        return 0.0
    n1, n2 = D.shape
    gram = D.T @ D.conj() if n1 > n2 else D @ D.conj().T
    leading = math.sqrt(float(np.linalg.eigvalsh(gram)[-1]))
    excess = leading / (math.sqrt(power) * (math.sqrt(n1) + math.sqrt(n2))) - 1
    return float(excess * min(n1, n2) ** (2 / 3))
