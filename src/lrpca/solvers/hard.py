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
from lrpca.solvers.partial_svd import OVERSAMPLING, PartialSVD, leading_svd, random_basis
from lrpca.solvers.run import Run

# Sampled entries that the spread of clean residuals is estimated from. The largest Gaussian one is beyond three σ.
_MOST_SAMPLED, _ONE_PEAK = 8192, 3.0


class HardThresholded:
    """X + C / p of ``X = L Rᵀ`` and ``C = (Y - X) where |Y - X| <= ζ``, p being the share `observed`.

    `last` is the last pass: counts of kept entries and ‖C‖ = ‖Y - X - S‖.
    """

    def __init__(
        self, data: DenseMatrix | ListedResidual, L: Any, R: Any, threshold: float, observed: float = 1.0
    ) -> None:
        self._data, self._L, self._R, self._observed = data, L, R, observed
        self._level = levels("hard", threshold)
        self.last: Pass | None = None

    def times(self, A: Any) -> Any:
        """Return (X + C / p) A, (n1, k)."""
        none = np.zeros((self._data.shape[0], 0))
        self.last = self._data.run_pass(self._L, self._R, self._level, A=A, B=none)
        return self._L @ (self._R.T @ A) + self.last.CA / self._observed

    def adjoint_times(self, B: Any) -> Any:
        """Return (X + C / p)^H B, (n2, k)."""
        none = np.zeros((self._data.shape[1], 0))
        self.last = self._data.run_pass(self._L, self._R, self._level, A=none, B=B.conj())
        return (self._R @ (self._L.T @ B.conj()) + self.last.CtB / self._observed).conj()


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
    matrix = run.matrix
    n1, n2 = matrix.shape
    none_1, none_2 = np.zeros((n1, 0)), np.zeros((n2, 0))

    def first_product(A: Any) -> Any:
        result = matrix.run_pass(none_1, none_2, everything(), A=A, B=none_1, energy=True)
        run.take_survey(checked_survey(matrix, result))
        return result.CA

    whole = HardThresholded(matrix, none_1, none_2, np.inf)
    basis = random_basis(n2, min(rank + OVERSAMPLING, n1), run.rng)
    rough = leading_svd(first_product, whole.adjoint_times, basis)
    threshold = ratio * float(rough.values[0])
    clipped = HardThresholded(matrix, none_1, none_2, threshold, run.survey.observed)
    return leading_svd(clipped.times, clipped.adjoint_times, rough.V), threshold
