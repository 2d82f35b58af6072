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
from lrpca.solvers.initialise import checked_survey
from lrpca.solvers.listed import ListedResidual
from lrpca.solvers.partial_svd import OVERSAMPLING, PartialSVD, half_pass, leading_svd, random_basis
from lrpca.solvers.run import Run

# Sampled entries that the spread of clean residuals is estimated from. The largest Gaussian one is beyond three σ.
_MOST_SAMPLED, _ONE_PEAK = 8192, 3.0


class HardThresholded:
    """X + C / p of ``X = L Rᵀ`` and ``C = (Y - X) where |Y - X| <= ζ``, p being the share `observed`."""

    def __init__(self, data: DenseMatrix | ListedResidual, L: Any, R: Any, threshold: float, observed: float) -> None:
        self._data, self._factors, self._observed = data, (L, R), observed
        self._level = levels("hard", threshold)

    def svd(self, basis: Any, *, steps: int = 1, rtol: float = 0.0) -> tuple[PartialSVD, Pass]:
        """Return leading singular triplets as `leading_svd` does, and the last pass: kept entries and ‖Y - X - S‖."""
        svd = leading_svd(self._times, self._adjoint_times, basis, steps=steps, rtol=rtol)
        return svd, self._last

    def _times(self, A: Any) -> Any:
        L, R = self._factors
        self._last = half_pass(self._data, self._factors, self._level, A=A)
        return L @ (R.T @ A) + self._last.CA / self._observed

    def _adjoint_times(self, B: Any) -> Any:
        L, R = self._factors
        self._last = half_pass(self._data, self._factors, self._level, B=B.conj())
        return (R @ (L.T @ B.conj()) + self._last.CtB / self._observed).conj()


def clean_spread(sample: Sample, L: Any, R: Any) -> float:
    """Return the standard deviation of clean residuals, or 0 where outliers cannot be told from them."""
    few = sample.only(slice(0, _MOST_SAMPLED)).residuals(L, R)
    sigma = residual_core(few, is_complex=np.iscomplexobj(sample.values)).sigma
    # All residuals form one broad peak.
    return sigma if few.max() > _ONE_PEAK * sigma else 0.0


def first_svd(run: Run, rank: int, ratio: float) -> tuple[PartialSVD, float]:
    """Return the leading triplets of ``Y - hard(Y, ζ)`` with ``ζ = ratio σ_1(Y)``, some to spare, and ζ.

    Four reads: one step for σ_1 (the first of its products also takes the survey), one from there for the triplets.
    """
    matrix, (n1, n2) = run.matrix, run.matrix.shape

    def first_product(A: Any) -> Any:
        result = half_pass(matrix, None, everything(), A=A, energy=True)
        run.take_survey(checked_survey(matrix, result))
        return result.CA

    def first_adjoint_product(B: Any) -> Any:
        return half_pass(matrix, None, everything(), B=B.conj()).CtB.conj()

    basis = random_basis(n2, min(rank + OVERSAMPLING, n1), run.rng)
    rough = leading_svd(first_product, first_adjoint_product, basis)
    threshold = ratio * float(rough.values[0])
    clean = HardThresholded(matrix, np.zeros((n1, 0)), np.zeros((n2, 0)), threshold, run.survey.observed)
    return clean.svd(rough.V)[0], threshold
