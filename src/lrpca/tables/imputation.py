"""Missing entries: the posterior mean of the low-rank part, which is shrunk where little was observed.

A least-squares fit of many components to few entries of a row fits their noise, and predicts the other entries badly.
So rows and columns get priors that are learned from all of them, and noise levels of their own, by variational Bayes
(Bishop 1999; Lim and Teh 2007). Outliers are left out:

    y_ij = l_i · r_j + noise,   l_i ~ N(μ_L, I),   r_j ~ N(μ_R, diag(γ)),   noise ~ N(0, σ² a_i b_j)

Each half of a sweep is one pass over Y. It solves every row (or column) by the Gram matrix of its own kept entries, and
takes its noise level from what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from lrpca.core.factors import normal_form, product_norm
from lrpca.core.linalg import eigh, upper_triangle
from lrpca.decomposition.result import Decomposition
from lrpca.kernels.scale import residual_core, rounding_level
from lrpca.kernels.threads import Threads
from lrpca.matrices.dense import DenseMatrix, observed_entries
from lrpca.matrices.sample import Sample, draw_sample
from lrpca.solvers.rows import row_quantile

# Gaps of tables with fewer entries are filled by the posterior mean: it reads them up to forty times.
_FILLED_BELOW = 1 << 22
# Sweeps at most, and the change of X, in units of the noise, at which they end.
_SWEEPS = 20
_AT_REST = 0.01
# Noise below this part of the signal is the accuracy of the solver: there is nothing to shrink.
_NO_NOISE = 1e-6
# Entries of a block of rows, which one thread takes.
_PIECE = 1 << 17
# A prior variance of a component is never taken below this, in units of the noise: the component is gone by then.
_GONE = 1e-6
# A component this much smaller than the largest is not there (a rank that was too large).
_ABSENT = 1e-10
# First noise levels are read off a low quantile of residuals, since outliers may fill the rest of a row; a variance
# found so is as good as one of so many times the squares. No row is taken to be fitted more freely than this.
_LOW, _WORTH = 0.2, 0.12
_FREEST = 0.9
# Spread of log variances below which all noise levels are the same, and the fewest entries of a row that counts for it.
_SAME = 1e-3
_FEW = 3
# Rows that are fitted exactly are taken to have this part of the common noise variance.
_FITTED = 1e-4

Take = Callable[[Any], DenseMatrix]


@dataclass
class _Side:
    """What is known of the rows of one factor: a Gaussian for each, their common prior, and their noise levels."""

    mean: Any  # (n, r)
    covariance: Any  # (n, r, r)
    prior_mean: Any  # (r,)
    prior_variance: Any  # (r,)
    variance: Any  # (n,) of the noise, in units of the common one


@dataclass(frozen=True)
class _Noise:
    """The common noise level, and what is known of outliers."""

    sigma: float
    least: float  # no entry has less noise
    ratio: float  # threshold of outliers, in units of the noise
    outliers: float  # how many lie between one and two thresholds for each entry within

    @classmethod
    def of(cls, sizes: Any, sigma: float, least: float, ratio: float) -> _Noise:
        """Count outliers among some residuals (m,), in units of the noise of their rows and columns: at least one."""
        inside = np.sum(sizes <= ratio * sigma)
        beyond = np.sum(sizes <= 2 * ratio * sigma) - inside
        return cls(sigma, least, ratio, max(1.0, float(beyond)) / max(1.0, float(inside)))

    def clean(self, squares: Any) -> Any:
        """Return how likely each entry is clean, given squared residuals (m, n2) in units of the noise, inf: missing.

        The densities are a half-normal one and one of outliers that are spread evenly, row by row.
        """
        kept = squares <= self.ratio**2
        inside = np.count_nonzero(kept, axis=1)
        beyond = np.count_nonzero(squares <= 4 * self.ratio**2, axis=1) - inside
        # Rows may have outliers of their own; the common share counts as one entry more.
        density = (beyond + self.outliers) / ((inside + 1) * self.ratio)
        peak = math.sqrt(2 / math.pi) * np.exp(-0.5 * np.where(kept, squares, 0.0))
        return np.where(kept, peak / (peak + density[:, None]), 0.0)


def with_filled_gaps(matrix: DenseMatrix, plain: Decomposition) -> Decomposition:
    """Return the decomposition with the posterior mean as its low-rank part, where a small table has gaps."""
    if math.prod(matrix.shape) >= _FILLED_BELOW:
        return plain
    blocks = matrix.blocks(max(1, _PIECE // matrix.shape[1]))
    if not any((block != block).any() or (mask is not None and not mask.all()) for _, block, mask in blocks):
        return plain
    L, R = posterior_mean(matrix, plain.L, plain.R, plain.noise_level, float(plain.outlier_threshold))
    L, R = (factor.astype(matrix.result) for factor in normal_form(L, R)[:2])
    return replace(plain, L=L, R=R)


def posterior_mean(
    matrix: DenseMatrix, L: Any, R: Any, noise: float, threshold: float
) -> tuple[Any, Any]:  # matrix (n1, n2) real
    """Return factors of the posterior mean of the low-rank part, given what was observed and is no outlier.

    A centre is one of the components: its prior variance is large, and rows without any entry get the mean row. The
    threshold of outliers follows the noise levels of rows and columns. With noise at rounding, the factors come back as
    they are. Otherwise they are in double precision, components in no particular order.

    A sweep is two passes over Y; at most twenty are made. A covariance matrix (r, r) is held for every row and column.

    References
    ----------
    .. [1] Y. J. Lim and Y. W. Teh, "Variational Bayesian approach to movie rating prediction", KDD Cup 2007.
    .. [2] G. K. Smyth, "Linear models and empirical Bayes methods...", Stat. Appl. Genet. Mol. Biol. 3, 2004: variances
       that are pooled by as much as they have in common.
    """
    n1, n2 = matrix.shape
    scale = product_norm(L, R) / math.sqrt(n1 * n2)
    least = max(_NO_NOISE * scale, 2 * rounding_level(matrix.result, scale))
    if scale == 0 or noise <= least:
        return L, R
    rows, columns = _start(L, R, noise)
    sample = draw_sample(matrix, np.random.default_rng(0))
    threads = Threads()
    try:
        _measure_quantiles(matrix.take_rows, rows, columns, threads)
        _measure_quantiles(matrix.take_columns, columns, rows, threads)
        sigma = residual_core(_sizes(sample, rows, columns), least).sigma
        for _ in range(_SWEEPS):
            before = rows.mean, columns.mean
            for take, side, other in ((matrix.take_rows, rows, columns), (matrix.take_columns, columns, rows)):
                level = _Noise.of(_sizes(sample, rows, columns), sigma, least, threshold / noise)
                sigma = max(least, _update(take, side, other, level, threads))
            change = product_norm(np.hstack([rows.mean, before[0]]), np.hstack([columns.mean, -before[1]]))
            _learn_priors(rows, columns, sigma)
            if change <= _AT_REST * sigma * math.sqrt(n1 * n2):
                break
    finally:
        threads.close()
    absent = ((0, 0), (0, L.shape[1] - rows.mean.shape[1]))
    return np.pad(rows.mean, absent), np.pad(columns.mean, absent)


def _start(L: Any, R: Any, noise: float) -> tuple[_Side, _Side]:
    """Return both sides as fitted, in coordinates where rows have unit variances and components are orthogonal."""
    left, right, values = normal_form(L.astype(np.float64), R.astype(np.float64))
    there = values > _ABSENT * values[0]
    left, right, values = left[:, there], right[:, there], values[there]
    (n1, r), n2 = left.shape, len(right)
    root = np.sqrt(n1 / values)
    variances = np.maximum(values**2 / (n1 * n2), _GONE * noise**2)
    return (
        _Side(left * root, np.zeros((n1, r, r)), np.zeros(r), np.ones(r), np.ones(n1)),
        _Side(right / root, np.zeros((n2, r, r)), np.zeros(r), variances, np.ones(n2)),
    )


def _measure_quantiles(take: Take, side: _Side, other: _Side, threads: Threads) -> None:
    """Set first noise variances of rows by low quantiles of their residuals, which outliers cannot move."""
    n = len(side.mean)
    quantiles, counts = np.empty(n), np.empty(n)
    # A row that has a component almost to itself is fitted exactly in many entries, whatever its noise: a share of them
    # that is its leverage says nothing. Columns of the factors are orthogonal at the start.
    leverage = np.minimum(_FREEST, np.sum(side.mean**2 / np.sum(side.mean**2, axis=0), axis=1))
    share = leverage + (1 - leverage) * _LOW

    def work(rows: Any) -> None:
        values, observed = _read(take(rows))
        sizes = np.abs(values - side.mean[rows] @ other.mean.T) / np.sqrt(other.variance)
        quantiles[rows] = row_quantile(np.where(observed, sizes, np.nan), share[rows])
        counts[rows] = np.count_nonzero(observed, axis=1)

    threads.map(work, _parts(side, other), work=float(n) * other.mean.size)
    normal = np.array([NormalDist().inv_cdf(0.5 + 0.5 * part) for part in share])
    side.variance, _ = _noise_variances((quantiles / normal) ** 2 / (1 - leverage), _WORTH * counts)


def _update(take: Take, side: _Side, other: _Side, noise: _Noise, threads: Threads) -> float:
    """Solve all rows of one factor, the other fixed, and measure their noise; return the common noise level."""
    n, r = side.mean.shape
    upper = upper_triangle(r)
    # E[r_j r_jᵀ], the upper triangle.
    pairs = other.mean[:, upper[0]] * other.mean[:, upper[1]] + other.covariance[:, upper[0], upper[1]]
    mean, covariance = np.empty((n, r)), np.empty((n, r, r))
    squares, counts = np.empty(n), np.empty(n)

    def work(rows: Any) -> None:
        values, observed = _read(take(rows))
        level = np.maximum(noise.least**2, noise.sigma**2 * side.variance[rows, None] * other.variance)
        residuals = values - side.mean[rows] @ other.mean.T
        clean = noise.clean(np.where(observed, residuals**2 / level, np.inf))
        weight = clean / level
        grams = np.empty((len(rows), r, r))
        grams[:, upper[0], upper[1]] = grams[:, upper[1], upper[0]] = weight @ pairs
        weighted = weight * values
        sides = weighted @ other.mean
        A, C = _solve(grams, sides, side)
        # E Σ_j w_ij (y_ij - l_i · r_j)²: one for each clean entry, if the noise level is right.
        squares[rows] = np.sum(weighted * values, axis=1) - 2 * np.sum(A * sides, axis=1)
        squares[rows] += np.sum(grams * (A[:, :, None] * A[:, None, :] + C), axis=(1, 2))
        counts[rows] = clean.sum(axis=1)
        mean[rows], covariance[rows] = A, C

    threads.map(work, _parts(side, other), work=float(n) * len(other.mean) * len(upper[0]))
    side.mean, side.covariance = mean, covariance
    side.variance, unit = _noise_variances(side.variance * squares / np.maximum(counts, 1.0), counts)
    return noise.sigma * math.sqrt(unit)


def _parts(side: _Side, other: _Side) -> list[Any]:
    n, count = len(side.mean), max(1, _PIECE // len(other.mean))
    return [np.arange(first, min(n, first + count)) for first in range(0, n, count)]


def _sizes(sample: Sample, rows: _Side, columns: _Side) -> Any:
    """Return |Y - L Rᵀ| at sampled entries, in units of the noise of their row and column."""
    own = np.sqrt(rows.variance[sample.rows] * columns.variance[sample.columns])
    return sample.residuals(rows.mean, columns.mean) / own


def _read(block: DenseMatrix) -> tuple[Any, Any]:
    """Return a block in double precision, 0 where missing, and where it was observed."""
    values = np.asarray(block.array, np.float64)
    observed = observed_entries(values, block.mask)
    return np.where(observed, values, 0.0), observed


def _solve(grams: Any, sides: Any, side: _Side) -> tuple[Any, Any]:
    """Return the posterior means (m, r) and covariances (m, r, r) of rows with Grams (m, r, r) and sides (m, r)."""
    precision = grams + np.diag(1.0 / side.prior_variance)
    # Strong and weak components differ by many powers of ten; in units of their own nothing is lost.
    unit = 1.0 / np.sqrt(np.einsum("mkk->mk", precision))
    units = unit[:, :, None] * unit[:, None, :]
    covariance = np.linalg.inv(precision * units) * units
    return np.einsum("mkl,ml->mk", covariance, sides + side.prior_mean / side.prior_variance), covariance


def _noise_variances(variances: Any, freedom: Any) -> tuple[Any, float]:
    """Return the noise variances of rows (n,), pooled, in units of a typical one, and that.

    Rows of little `freedom` (n,), worth few entries, are pooled with the others, the more the less these differ [2 of
    `posterior_mean`]. The spread of log variances beyond chance gives the degrees of freedom of the prior.
    """
    common = float(np.sum(freedom * variances) / max(1.0, freedom.sum()))
    telling = freedom >= _FEW
    if telling.sum() < _FEW or not common > 0:
        return np.ones(len(freedom)), common if common > 0 else 1.0
    variances = np.maximum(variances, _FITTED * common)
    # log χ²_m / m has the mean -1 / m and the variance 2 / m.
    logs = np.log(variances[telling]) + 1.0 / freedom[telling]
    spread = float(np.var(logs, ddof=1) - np.mean(2.0 / freedom[telling]))
    if spread <= _SAME:
        return np.ones(len(freedom)), common
    prior, typical = 2.0 / spread, math.exp(float(np.mean(logs)))
    return (freedom * variances / typical + prior) / (freedom + prior), typical


def _learn_priors(rows: _Side, columns: _Side, sigma: float) -> None:
    """Set the priors to the moments of the sides, in coordinates that make them N(μ, I) and N(μ, diag(γ))."""
    # The coordinates are free, X = (L B⁻ᵀ)(R B)ᵀ; at their best, components that are not needed vanish in a few sweeps.
    left, right = _spread(rows), _spread(columns)
    values, vectors = eigh(left)
    root = np.sqrt(np.maximum(values, _ABSENT**2 * values[-1]))
    half = vectors * root
    variances, turn = eigh(half.T @ right @ half)
    _change_coordinates(rows, (vectors / root) @ turn)
    _change_coordinates(columns, half @ turn)
    rows.prior_variance = np.ones(len(root))
    columns.prior_variance = np.maximum(variances, _GONE * sigma**2)


def _spread(side: _Side) -> Any:
    """Return the covariance matrix (r, r) of the rows of one factor about their mean."""
    centred = side.mean - side.mean.mean(axis=0)
    return centred.T @ centred / len(centred) + side.covariance.mean(axis=0)


def _change_coordinates(side: _Side, change: Any) -> None:
    side.mean = side.mean @ change
    side.covariance = change.T @ side.covariance @ change
    side.prior_mean = side.mean.mean(axis=0)
