"""A fitted table as it is used on rows: their scores, log-likelihood and outliers.

With three entries or more for every coefficient, the majority of a row tells its outliers from the others, and its
scores are a robust regression. A row of fewer entries is fitted on its leading axes first. Entries that these and the
usual size of the other scores cannot explain are outliers. The likeliest scores given the rest follow from the
variances along the axes: ``(V W Vᵀ + σ² Λ⁻¹) a = V W (y - mean)``, where W is 1 for the entries that are left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lrpca.core.factors import normal_form
from lrpca.decomposition.result import Decomposition, Diagnosis
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix, observed_entries
from lrpca.matrices.sample import draw_sample
from lrpca.solvers.rows import robust_coefficients
from lrpca.tables.bands import each_band

# Entries per coefficient that robust regression needs.
_ENTRIES = 3
# Entries beyond this many standard deviations of what the leading axes leave are outliers.
_OUTLYING = 4.0
# The noise is never taken below this part of the strongest axis' standard deviation: the system must be solvable.
_LEAST_NOISE = 1e-7
# From this many noise levels on, a residual costs a row's likelihood by its logarithm instead of its square.
_TAIL = 3.0
_BLOCK = 1 << 18
_TINY = float(np.finfo(float).tiny)
# Sizes for which the column of the centre is left at length 1.
_MODERATE = 1e6
# Where a row is this many times larger than the median row, factors are not brought to normal form.
_WILD = 1e8


@dataclass(frozen=True)
class RowModel:
    """Affine space of the clean rows, and the scales that tell outliers; all in units of `unit`, unlike the rows."""

    mean: Any  # (n2,)
    components: Any  # (k, n2) orthonormal rows
    variances: Any  # (k,) along the components
    noise_level: float
    noise_variance: float = 0.0
    threshold: float = math.inf  # larger residuals are outliers
    unit: float = 1.0

    def scores(self, matrix: DenseMatrix) -> Any:
        """Return the scores (m, k) of rows, in the precision of the rows."""
        return (self.exact_scores(matrix.in_units(self.unit)) * self.unit).astype(matrix.result)

    def exact_scores(self, matrix: DenseMatrix) -> Any:
        """Return the scores (m, k) of rows that are in the model's unit, in double precision, each row by itself."""
        k, n2 = self.components.shape
        if isinstance(matrix, ChunkedMatrix):
            return self._by_bands(matrix, self.exact_scores)
        block_rows = max(1, _BLOCK // n2)
        counts = np.concatenate([observed_entries(*part).sum(axis=1) for _, *part in matrix.blocks(block_rows)])
        few = counts < _ENTRIES * k
        robust = partial(robust_coefficients, R=self.components.T, noise=self.noise_level, offset=self.mean)
        if not few.any():
            return robust(matrix)
        scores = np.zeros((matrix.shape[0], k))
        if not few.all():
            scores[~few] = robust(matrix.take_rows(np.flatnonzero(~few)))
        leading = np.clip(counts // _ENTRIES, 1, k)
        for count in np.unique(leading[few]):
            rows = np.flatnonzero(few & (leading == count))
            for start in range(0, len(rows), block_rows):
                some = rows[start : start + block_rows]
                scores[some] = self._likeliest_scores(matrix.take_rows(some), int(count))
        return scores

    def log_likelihood(self, matrix: DenseMatrix) -> Any:
        """Return the log-likelihood (m,) of rows: that of probabilistic PCA where no residual is beyond three σ."""
        if isinstance(matrix, ChunkedMatrix):
            return self._by_bands(matrix, self.log_likelihood)
        matrix = matrix.in_units(self.unit)
        scores = self.exact_scores(matrix)
        k, n2 = self.components.shape
        # Without noise, what is left is rounding; taken from the fit, so that a row is rated by itself.
        largest = float(np.abs(self.mean).max(initial=0.0)) + math.sqrt(float(np.max(self.variances, initial=0.0)))
        rounding = float(np.finfo(float).eps) * largest
        variance = max(self.noise_variance, self.noise_level**2, rounding**2, _TINY)
        along = np.maximum(self.variances, variance)
        constant = n2 * math.log(2 * math.pi) + float(np.log(along).sum()) + (n2 - k) * math.log(variance)
        # A row beyond all squares is infinitely unlikely.
        with np.errstate(over="ignore"):
            distance = (scores**2 / along).sum(axis=1)
        for start, block, mask in matrix.blocks(max(1, _BLOCK // n2)):
            rows = slice(start, start + len(block))
            size = np.abs(block - self.mean - scores[rows] @ self.components) / math.sqrt(variance)
            observed = observed_entries(size, mask)
            size = np.where(observed, size, 0.0)
            tail = _TAIL**2 * (1 + 2 * np.log(np.maximum(size, _TAIL) / _TAIL))
            cost = np.where(size > _TAIL, tail, np.minimum(size, _TAIL) ** 2).sum(axis=1)
            count = observed.sum(axis=1)
            # Of a row without entries, the usual is expected.
            distance[rows] += np.where(count > 0, cost * n2 / np.maximum(count, 1), float(n2))
        # A density is one over the unit of every feature.
        return -0.5 * (constant + distance) - n2 * math.log(self.unit)

    def decompose(self, matrix: DenseMatrix) -> Decomposition:
        """Return rows as clean rows plus outliers."""
        rows = matrix.in_units(self.unit)
        found = self.decomposition(rows, self.exact_scores(rows))
        return found.in_units(1 / self.unit).with_data(matrix)

    def outliers(self, matrix: DenseMatrix) -> Any:
        """Return which entries of rows are outliers, (m, n2)."""
        return self.decompose(matrix).outliers

    def rows(self, scores: Any) -> Any:  # scores (m, k)
        """Return the clean rows (m, n2) of scores."""
        return scores @ self.components + self.mean * self.unit

    def decomposition(
        self, matrix: DenseMatrix, scores: Any, source: Decomposition | None = None, method: str = "lrpca"
    ) -> Decomposition:  # matrix (n1, n2); scores (n1, k)
        """Return rows ``mean + scores components`` as a decomposition; `source` is the fit that they come from."""
        n1, n2 = matrix.shape
        mean = self.mean
        # The column of the centre is about as long as those of the scores: a much shorter one would pass for rounding.
        typical = np.median(np.abs(scores).max(axis=1, initial=0.0))
        size = float(max(typical, np.abs(mean).max())) or 1.0
        size = 1.0 if 1 / _MODERATE < size < _MODERATE else 2.0 ** math.floor(math.log2(size))
        L, R = np.column_stack([scores, np.full(n1, size)]), np.column_stack([self.components.T, mean / size])
        if not mean.any():
            L, R = L[:, :-1], R[:, :-1]
        sizes = np.abs(L).max(axis=1)
        # Beside a row that is so much larger, turning all of them would leave nothing of the others.
        if sizes.max() <= _WILD * float(np.median(sizes)):
            L, R, _ = normal_form(L, R)
        sample = draw_sample(matrix, np.random.default_rng(0), allow_empty=True)
        fraction = float(np.mean(sample.residuals(L, R) > self.threshold)) if len(sample.values) else 0.0
        nothing = np.zeros(0, int)
        diagnosis = Diagnosis(np.full(n1, np.nan), np.full(n2, np.nan), nothing, nothing, len(self.components), [])
        if source is not None and len(source.diagnosis.kept_by_row) == n1:
            diagnosis = source.diagnosis
        return Decomposition(
            L.astype(matrix.result),
            R.astype(matrix.result),
            matrix=matrix,
            history=[] if source is None else source.history,
            reason="tol" if source is None else source.reason,
            noise_level=self.noise_level,
            outlier_threshold=self.threshold,
            outlier_fraction=fraction,
            n_reads=matrix.reads + (0 if source is None else source.n_reads),
            diagnosis=diagnosis,
            method=method,
            settings={} if source is None else source.settings,
            rank_choice=None if source is None else source.rank_choice,
        )

    @staticmethod
    def _by_bands(matrix: ChunkedMatrix, work: Any) -> Any:
        matrix.reads += 1
        return np.concatenate([part for _, part in each_band(matrix, work, rows=1)])

    def _likeliest_scores(self, part: DenseMatrix, leading: int) -> Any:
        """Return the likeliest scores (m, k) of rows with few entries."""
        V, noise = self.components.astype(np.float64), self.noise_level
        variances = np.asarray(self.variances, np.float64)
        rest = variances[leading:] @ V[leading:] ** 2
        spread = np.sqrt(noise**2 + rest)
        first = robust_coefficients(part, V[:leading].T, float(np.sqrt(np.mean(spread**2))), offset=self.mean)
        values = np.asarray(part.dense_rows(slice(0, part.shape[0])), np.float64) - self.mean
        observed = observed_entries(values, part.mask)
        values = np.where(observed, values, 0.0)
        kept = observed & (np.abs(values - first @ V[:leading]) <= _OUTLYING * spread)
        # A row that the leading axes do not explain at all is taken as it is.
        kept[kept.sum(axis=1) == 0] = observed[kept.sum(axis=1) == 0]
        scores = values @ V.T
        gaps = np.flatnonzero(~kept.all(axis=1))
        if len(gaps):
            weight = kept[gaps].astype(np.float64)
            largest = float(np.sqrt(variances.max(initial=0.0)))
            least = max(noise, _LEAST_NOISE * largest, _TINY**0.5)
            prior = least**2 / np.maximum(variances, least**2)
            grams = np.einsum("kn,mn,ln->mkl", V, weight, V, optimize=True) + np.diag(prior)
            sides = (weight * values[gaps]) @ V.T
            scores[gaps] = np.linalg.solve(grams, sides[:, :, None])[:, :, 0]
        return scores
