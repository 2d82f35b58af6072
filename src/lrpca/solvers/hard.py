"""``Y - S`` for a hard threshold, S = hard(Y - X, ζ), without S: the matrix X + C, known by its products.

Where the residual is kept, Y - S is Y, which is X + C; where it is not, S takes all of it and Y - S is X. Every product
is one pass over Y. Of missing entries, C is 0; with a share p observed, C counts 1 / p times: each entry also stands
for those that are missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.core.influence import everything, levels
from lrpca.core.passes import Pass
from lrpca.kernels.scale import residual_core
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import Sample
from lrpca.solvers.initialise import checked_counts
from lrpca.solvers.listed import ListedResidual
from lrpca.solvers.partial_svd import OVERSAMPLING, PartialSVD, half_pass, leading_svd, random_basis
from lrpca.solvers.run import Factors, Run

# Sampled entries that the spread of clean residuals is estimated from. The largest Gaussian one is beyond three σ.
_MOST_SAMPLED, _ONE_PEAK = 8192, 3.0

Data = DenseMatrix | ListedResidual


def thresholded_svd(
    data: Data, X: Factors, threshold: float, observed: float, basis: Any, *, steps: int = 1, rtol: float = 0.0
) -> tuple[PartialSVD, Pass]:
    """Return leading singular triplets of ``X + C / p`` as `leading_svd` does, and the last pass over Y.

    ``C = (Y - X) where |Y - X| <= ζ``, and p is the share `observed`.
    """
    (L, R), level = X, levels("hard", threshold)
    last = None

    def times(A: Any) -> Any:
        return L @ (R.T @ A) + half_pass(data, X, level, A=A).CA / observed

    def adjoint_times(B: Any) -> Any:
        nonlocal last
        last = half_pass(data, X, level, B=B.conj())
        return (R @ (L.T @ B.conj()) + last.CtB / observed).conj()

    svd = leading_svd(times, adjoint_times, basis, steps=steps, rtol=rtol)
    assert last is not None
    return svd, last


def clean_spread(sample: Sample, L: Any, R: Any) -> float:
    """Return the standard deviation of clean residuals, or 0 where outliers cannot be told from them."""
    few = sample.only(slice(0, _MOST_SAMPLED)).residuals(L, R)
    sigma = residual_core(few, is_complex=np.iscomplexobj(sample.values)).sigma
    # All residuals form one broad peak.
    return sigma if few.max() > _ONE_PEAK * sigma else 0.0


def first_svd(run: Run, rank: int, ratio: float) -> tuple[PartialSVD, float]:
    """Return the leading triplets of ``Y - hard(Y, ζ)`` with ``ζ = ratio σ_1(Y)``, some to spare, and ζ.

    Four reads: one step for σ_1 (its first product also counts observed entries), one from there for the triplets.
    """
    matrix, (n1, n2) = run.matrix, run.matrix.shape

    def first_product(A: Any) -> Any:
        result = half_pass(matrix, None, everything(), A=A, energy=True)
        run.take_counts(checked_counts(matrix, result))
        return result.CA

    def first_adjoint_product(B: Any) -> Any:
        return half_pass(matrix, None, everything(), B=B.conj()).CtB.conj()

    basis = random_basis(n2, min(rank + OVERSAMPLING, n1), run.rng)
    rough = leading_svd(first_product, first_adjoint_product, basis)
    threshold = ratio * float(rough.values[0])
    nothing = np.zeros((n1, 0)), np.zeros((n2, 0))
    return thresholded_svd(matrix, nothing, threshold, run.counts.observed, rough.V)[0], threshold
