"""The two steps of following a stream of rows: clean them, and merge them with a summary of the past.

A row is cleaned by fitting it to the present components. The summary is a mean and diag(s) Vᵀ about it, as in
incremental PCA.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.linalg import eigh, svd
from lrpca.core.weights import as_weights
from lrpca.kernels.scale import residual_core
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.rows import row_quantile
from lrpca.tables.row_model import RowModel

_KEEP_SIGMAS = 5.0
# 35% of |N(0, 1)| lie below 0.4538; a low quantile, since outliers may fill the upper half.
_QUANTILE, _NORMAL_QUANTILE = 0.35, 0.4538
# A row's own noise level may exceed the typical one this many times; a wilder row is cut down to that.
_WILDEST = 4.0
# Kept entries of a column never count more than the reciprocal of this.
LEAST_SHARE = 0.1
# Components this much weaker than the strongest are not there.
ABSENT = 1e-6
# Misfits below this part of the rows are no reason to forget.
_EXACT = 1e-5
_ROUNDING = 64 * float(np.finfo(float).eps)
_TINY = float(np.finfo(float).tiny)


def check_rows(rows: Any, weight: Any, n_features: int) -> tuple[Any, Any]:
    """Return rows and weights as float64, without rows of no weight or no observed entry; raise ValueError if wrong."""
    rows = np.asarray(rows)
    if rows.dtype.kind not in "biuf":
        raise ValueError(f"rows.dtype={rows.dtype} is not real; convert them, e.g. rows.astype(float)")
    rows = rows.astype(np.float64)
    if rows.ndim != 2 or rows.shape[1] != n_features:
        raise ValueError(f"rows.shape={rows.shape} does not fit; pass (m, {n_features})")
    if len(rows) == 0:
        raise ValueError(f"rows.shape={rows.shape} has no rows; pass at least one")
    if np.isinf(rows).any():
        raise ValueError("rows contains inf; mark missing entries with NaN")
    weight = np.ones(len(rows)) if weight is None else np.asarray(weight, np.float64)
    if weight.shape != (len(rows),):
        raise ValueError(f"weight.shape={weight.shape} does not fit; pass one number for each of {len(rows)} rows")
    weight = as_weights("weight", weight)
    useful = (rows == rows).any(axis=1) & (weight > 0)
    return rows[useful], weight[useful]


class Rows(NamedTuple):
    """Rows without outliers and gaps, and which of their entries were kept."""

    values: Any  # (m, n2)
    kept: Any  # (m, n2) bool


@dataclass(frozen=True)
class Summary:
    """Summary of cleaned rows: their weight, mean, and leading singular values and vectors about it."""

    mean: Any  # (n2,)
    values: Any  # (q,)
    V: Any  # (q, n2) orthonormal rows
    weight: float
    share: Any  # (n2,) of the entries of each column that were neither missing nor outliers
    rank: int | None = None  # number of components, where it was chosen from the data

    @classmethod
    def empty(cls, n2: int) -> Summary:
        """Return the summary of no rows."""
        return cls(np.zeros(n2), np.zeros(0), np.zeros((0, n2)), 0.0, np.ones(n2))

    def fold(self, cleaned: Rows, weight: Any, factor: float, *, center: bool, size: int) -> Summary:
        """Return the summary with more rows, the past forgotten by `factor` per row, cut to `size` directions."""
        rows, kept = cleaned
        past = factor ** len(rows)
        weight = weight * factor ** np.arange(len(rows) - 1, -1, -1)
        added, old = float(weight.sum()), past * self.weight
        total = old + added
        share = (old * self.share + weight @ kept) / total
        parts = [math.sqrt(past) * self.values[:, None] * self.V]
        mean = self.mean
        if center:
            centre = weight @ rows / added
            rows = rows - centre
            mean = self.mean + added / total * (centre - self.mean)
            parts.append(math.sqrt(old * added / total) * (centre - self.mean)[None])
        parts.append(np.sqrt(weight)[:, None] * rows)
        # The first rows have a direction less than there are rows.
        values, V = _leading(np.concatenate(parts), min(size, len(self.V) + len(rows) - (center and not self.weight)))
        return Summary(mean, values, V, total, share, self.rank)

    def noise_edge(self, noise: float) -> float:
        """Return the singular value that noise alone would make; residuals were divided by the share of a column."""
        spread = noise / math.sqrt(max(float(self.share.mean()), LEAST_SHARE))
        return spread * (math.sqrt(self.weight) + math.sqrt(len(self.mean)))

    def shortened(self, rows: float) -> Summary:
        """Return the summary with at most the weight of that many rows."""
        part = min(1.0, rows / self.weight) if self.weight else 1.0
        return replace(self, values=math.sqrt(part) * self.values, weight=part * self.weight)


def _leading(A: Any, size: int) -> tuple[Any, Any]:
    """Return the leading singular values (q,) and right singular vectors (q, n2) of A (m, n2)."""
    if A.shape[1] <= 2 * len(A):
        _, values, V = svd(A, full_matrices=False)
        return values[:size], V[:size]
    # Long rows: the Gram finds the subspace, the small matrix of coefficients in it the accurate values.
    _, U = eigh(A @ A.T)
    Q, _ = np.linalg.qr((U[:, ::-1][:, :size].T @ A).T)
    _, values, W = svd(A @ Q, full_matrices=False)
    return values, W @ Q.T


class Typical(NamedTuple):
    """What a block was like: level of the rows' residuals, how far above it columns are, share of kept entries."""

    level: float
    columns: Any  # (n2,), at least 1
    share: Any  # (n2,)


@dataclass(frozen=True)
class Cleaned:
    """Cleaned rows, and how they were found."""

    rows: Rows
    residual: Any  # (m, n2), inf where missing
    levels: Any  # (m,) noise level of each row
    limits: Any  # (m, n2), beyond them are outliers
    typical: Typical
    rounding: float
    fitted: int

    def noise(self) -> float:
        """Return the robust standard deviation of the residuals."""
        sizes = np.abs(self.residual[np.isfinite(self.residual)])
        freedom = 1 - self.fitted * len(self.residual) / len(sizes)
        return residual_core(sizes, self.rounding).sigma / math.sqrt(max(freedom, 0.1))


def clean(rows: Any, summary: Summary, noise: float, rank: int, typical: Typical | None = None) -> Cleaned:
    """Replace outliers and missing entries of rows (m, n2) by what the components make of the others.

    Entries that are kept depart from the fit by D; those replaced do not, and would hold the components where they are.
    So D is divided by the share of entries that are kept in a column: the sum over rows is then what it would be if
    all were there. With `typical` given, every row is on its own; else the rows themselves tell what is typical.
    """
    there = summary.values[:rank] > max(ABSENT * summary.values.max(initial=0.0), summary.noise_edge(noise))
    V = summary.V[:rank][there]
    fit = np.zeros(rows.shape)
    centred = rows - summary.mean
    if len(V):
        variances = summary.values[:rank][there] ** 2 / max(summary.weight, 1.0)
        fit = RowModel(summary.mean, V, variances, noise).exact_scores(DenseMatrix(rows)) @ V
    observed = rows == rows
    residual = np.where(observed, centred - fit, np.inf)
    sizes = np.where(observed, np.abs(residual), np.nan)
    rounding = _ROUNDING * row_quantile(np.abs(rows), 0.5)
    levels = np.maximum(row_levels(sizes, len(V)), np.maximum(noise, rounding))
    level = float(np.median(levels)) if typical is None else max(noise, typical.level)
    tamed = np.minimum(levels, _WILDEST * max(level, _TINY))
    # Without this, a column that changes faster than the others would always be rejected.
    if typical is None:
        columns = np.maximum(1.0, row_levels((sizes / np.maximum(tamed, _TINY)[:, None]).T, 0))
    else:
        columns = typical.columns
    limits = _KEEP_SIGMAS * tamed[:, None] * columns
    kept = np.abs(residual) <= limits
    here = kept.mean(axis=0) if typical is None else typical.share
    # Where more is kept now than before, what was rejected then is no reason to count it more.
    share = np.maximum(np.maximum(summary.share, here), LEAST_SHARE)
    values = summary.mean + fit + np.where(kept, residual, 0.0) / share
    typical = Typical(level, columns, here)
    return Cleaned(Rows(values, kept), residual, levels, limits, typical, float(np.median(rounding)), len(V))


def row_levels(sizes: Any, fitted: int) -> Any:
    """Return the noise level of rows with `fitted` coefficients, from a low quantile of |D| (m, n2), NaN: missing."""
    count = np.sum(sizes == sizes, axis=1)
    freedom = np.maximum(count - fitted, 1) / np.maximum(count, 1)
    return row_quantile(sizes, _QUANTILE) / _NORMAL_QUANTILE / np.sqrt(freedom)


def compare(first: Cleaned, second: Cleaned, size: float) -> Any:
    """Return by row how much more a first prediction leaves than a second: the logarithm of the ratio of mean squares.

    Entries that are outliers to both do not count, and misfits far below the `size` of the rows make no difference.
    """
    limits = np.minimum(first.limits, second.limits)
    sizes = [np.minimum(np.abs(cleaned.residual), limits) for cleaned in (first, second)]
    either = (sizes[0] < limits) | (sizes[1] < limits)
    floor = (_EXACT * size) ** 2 + _TINY
    count = np.maximum(either.sum(axis=1), 1)
    squares = [np.sum(part**2, axis=1, where=either) / count + floor for part in sizes]
    return np.log(squares[0] / squares[1])


def clean_first(rows: Any, low_rank: Any, threshold: Any) -> Rows:
    """Return rows (m, n2) that were solved as a batch, cleaned as `clean` does."""
    residual = np.where(rows == rows, rows - low_rank, np.inf)
    kept = np.abs(residual) <= threshold
    share = np.maximum(kept.mean(axis=0), LEAST_SHARE)
    return Rows(low_rank + np.where(kept, residual, 0.0) / share, kept)


def fill_gaps(rows: Any, weight: Any) -> Rows:
    """Return rows (m, n2) that are too few to tell outliers, with column means for missing entries."""
    there = rows == rows
    total = weight @ there
    means = weight @ np.where(there, rows, 0.0) / np.where(total > 0, total, 1.0)
    return Rows(np.where(there, rows, means), there)
