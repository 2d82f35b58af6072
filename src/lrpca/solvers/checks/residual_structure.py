"""Does the residual still hold low-rank structure? Asked of a block of it, by our own solver."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.core.factors import orthonormal
from lrpca.kernels.scale import residual_core
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import choose_block, draw_sample, read_block
from lrpca.schedule import default_schedule
from lrpca.solvers.components import noise_edge

# Entries of the block (256 x 256, longer where Y is narrow), the least side worth asking, and the number of components
# to look for.
_BLOCK, LEAST_SIDE = 1 << 16, 10
_MORE = 2
_PASSES = 60
# Residuals that count as noise, in σ.
CORE = 4.0
# Power iteration for the largest singular value of a residual.
_VECTORS, _POWERS = 4, 12
# From this ratio on, the rank is called too small: planted problems of rank r solved with r - 1 give 4.3 and more, but
# for a few, with the right rank at most 1.1; videos and traffic, which always have some structure left, at most 3.6.
STRUCTURED = 3.9
# Enough to try another start: one-sided outliers of one size take the place of a component at 3.2.
SUSPICIOUS = 2.0


def structure_left(
    matrix: DenseMatrix,
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
) -> float:
    """Return by what factor two more components would lower the leading singular value of the residual.

    The residual's outliers are not part of that: the two components are found robustly, in a random block.
    """
    # The solver asks this question itself: its own looks, which would ask again, are left out below.
    from lrpca.solvers.adaptive import solve_adaptive
    from lrpca.solvers.problem import Problem

    rng = np.random.default_rng(0)  # not the run's: asking must not change what comes after
    side = min(math.isqrt(_BLOCK), *matrix.shape)
    if side < LEAST_SIDE:
        return 0.0
    # The short side whole or 256, the other one as long as the block allows.
    lengths = [side if n == min(matrix.shape) else _BLOCK // side for n in matrix.shape]
    rows, columns = choose_block(matrix.shape, (lengths[0], lengths[1]), rng)
    values, observed = read_block(matrix, rows, columns)
    i, j = (grid.ravel() for grid in np.meshgrid(rows, columns, indexing="ij"))
    block = np.where(observed, values, np.nan).ravel() - np.asarray(np.einsum("mk,mk->m", L[i], R[j]))
    if not observed.any():
        return 0.0
    residual = DenseMatrix(block.reshape(len(rows), len(columns)))
    sample = draw_sample(residual, rng)
    # In double precision, however small: Y was found to be within the range of numbers.
    residual.compute_exactly()
    rules = frozenset({"own_grams", "patience", "rescue"})
    schedule = default_schedule()
    try:
        outcome = solve_adaptive(Problem(residual, _MORE, schedule, sample, 1e-4, _PASSES, rng), rules=rules)
    finally:
        residual.close()
    # What the question costs, in reads of Y.
    matrix.reads += math.ceil(residual.reads * block.size / math.prod(matrix.shape))
    refitted = residual.array - outcome.L @ outcome.R.T
    before, after = _leading_value(residual.array), _leading_value(refitted)
    return before / after if after else 0.0


def leading_over_edge(
    residual: Any,  # (m, n), 0 where it does not count
    share: float,
    rng: np.random.Generator,
) -> float:
    """Return the leading singular value of a residual of which a `share` counts, in units of the noise's edge.

    Gaussian noise gives 1; by power iteration, which is quick.
    """
    size = float(np.linalg.norm(residual))
    basis = rng.standard_normal((residual.shape[1], _VECTORS))
    for _ in range(_POWERS):
        basis = orthonormal(residual.conj().T @ orthonormal(residual @ basis))
    leading = float(np.linalg.norm(residual @ basis, 2))
    # Both as seen with these entries missing, so that their share cancels but for a root.
    return leading / (noise_edge(size, residual.shape, share) * share) if size else 0.0


def _leading_value(
    residual: Any,  # (m, n), NaN where missing
) -> float:
    """Return the leading singular value of a residual without its outliers."""
    sizes = np.abs(residual)
    sigma = residual_core(sizes[sizes == sizes], is_complex=np.iscomplexobj(residual)).sigma
    with np.errstate(invalid="ignore"):
        kept = np.where(sizes <= CORE * sigma, residual, 0.0)
    return float(np.linalg.norm(kept, 2))
