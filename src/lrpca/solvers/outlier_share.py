"""The share of outliers, for methods that need it: estimated by the default method on a random block of Y.

Methods with the operator T_α remove the α m largest entries of every row and column, so α is the largest share of any
row or column. Outliers that lie anywhere exceed the overall share in some rows by chance, by the factor `spread`.
"""

from __future__ import annotations

import math

import numpy as np

from lrpca.kernels.scale import outlier_threshold, residual_core, rounding_level
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import choose_block, draw_sample, observed_share, read_block
from lrpca.schedule import default_schedule
from lrpca.solvers.adaptive import solve_adaptive
from lrpca.solvers.problem import Problem
from lrpca.solvers.run import Run

# Side of the block; observed entries per row and component that it should have, and how long it may become for that.
_SIDE, _PER_COMPONENT, _LONGEST = 400, 10, 1500
_TOL, _PASSES = 1e-5, 60
# Where more are found, T_α would leave too little.
_MOST = 0.45
# A row or column may be fuller than expected once in so many problems; and no more than this is ever rejected.
_RARE = 20
_FULLEST = 0.9


def estimate_outlier_fraction(run: Run) -> float:
    """Return the share of outliers among the observed entries, between 1/n and 0.45, n the longer side of Y."""
    _, share = probe_block(run, run.rank)
    return min(max(share, 1.0 / max(run.matrix.shape)), _MOST)


def probe_block(run: Run, rank: int) -> tuple[float, float]:
    """Return the noise level and the share of outliers that the default finds in a block of about 400 x 400 entries.

    Entries count as outliers that exceed the outlier threshold of that solution.
    """
    matrix = run.matrix
    rng = np.random.default_rng(0)  # not the run's: the same estimate with or without a start
    block = _block(matrix, rank, rng)
    if block is None:
        return 0.0, 0.0
    rank = min(rank, *block.shape)
    sample = draw_sample(block, rng)
    block.fit_range_to(sample.values)
    rules = frozenset({"row_normal_equations", "patience", "low_inlier_rows", "significance"})
    try:
        problem = Problem(block, rank, default_schedule(), sample, _TOL, _PASSES, rng)
        found = solve_adaptive(problem, rules=rules)
    finally:
        block.close()
    matrix.reads += block.reads * math.prod(block.shape) / math.prod(matrix.shape)
    sizes = np.abs(block.array - found.L @ found.R.T)
    sizes = sizes[sizes == sizes] if block.mask is None else sizes[block.mask]
    scale = float(sample.typical or np.abs(sample.values).max(initial=0.0))
    rounding = rounding_level(matrix.result, scale)
    sigma = residual_core(sizes, rounding, is_complex=matrix.stored.kind == "c").sigma
    level = outlier_threshold(sigma, matrix.stored, rounding, found.change * scale)
    return sigma, float(np.mean(sizes > level))


def settle_share(run: Run, alpha: float | None, gamma: float | None, observed: float) -> tuple[float, float]:
    """Return the share α to reject at the start and γ α, that of the iteration; `observed` is the share that counts."""
    if alpha is None:
        alpha = estimate_outlier_fraction(run)
        run.settle(alpha=alpha, estimated=True)
    if gamma is None:
        gamma = spread(alpha, run.matrix.shape, observed)
        run.settle(gamma=gamma)
    return alpha, gamma * alpha


def spread(alpha: float, shape: tuple[int, int], observed: float = 1.0) -> float:
    """Return by what factor the fullest row or column has more outliers than the share `alpha`, if they lie anywhere.

    Its number of outliers is m α with a standard deviation of √(m α (1 - α)), m being the observed entries of a row or
    column. The largest of n such numbers lies about z = √(2 log n) of those above the mean, and where they are few,
    (z² - 1) (1 - 2α) / 6 beyond that for their skewness.

    Examples
    --------
    >>> round(spread(0.1, (1000, 1000)), 2), round(spread(0.1, (100, 100)), 2)
    (1.47, 2.53)
    """
    if alpha <= 0:
        return 1.0
    z = math.sqrt(2 * math.log(_RARE * sum(shape)))
    length = observed * min(shape)
    # The number of observed entries varies, too, and counts are rounded down.
    shortest = max(1.0, length - z * math.sqrt(length * (1 - observed)))
    skewness = (z**2 - 1) * (1 - 2 * alpha) / 6
    surplus = (z * math.sqrt(shortest * alpha * (1 - alpha)) + max(0.0, skewness) + 1) / (shortest * alpha)
    return min(1 + surplus, max(1.0, _FULLEST / alpha))


def _block(matrix: DenseMatrix, rank: int, rng: np.random.Generator) -> DenseMatrix | None:
    """Return some rows of some columns as a matrix of its own, or None if nothing in there is observed."""
    side = min(_LONGEST, max(_SIDE, math.ceil(_PER_COMPONENT * rank / observed_share(matrix, rng))))
    rows, columns = choose_block(matrix.shape, (min(side, matrix.shape[0]), min(side, matrix.shape[1])), rng)
    values, known = read_block(matrix, rows, columns)
    if not known.any():
        return None
    return DenseMatrix(values, None if known.all() else known)
