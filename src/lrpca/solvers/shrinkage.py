"""Shrinking the singular values of a dense matrix, of which few exceed the level: the costly half of convex methods.

Only the triplets above the level are needed. How many those are is predicted from the last time [1]_, and the SVD is a
subspace iteration that starts from the last right singular vectors. Where too many exceed the level for that to pay,
a full SVD is computed.

References
----------
.. [1] Z. Lin, M. Chen, Y. Ma, "The Augmented Lagrange Multiplier Method for Exact Recovery of Corrupted Low-Rank
   Matrices", arXiv:1009.5055, 2010.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.core.factors import thin_svd
from lrpca.core.linalg import svd
from lrpca.solvers.partial_svd import OVERSAMPLING, PartialSVD, leading_svd, random_basis, widened

# Beyond this share of all singular values, or if there are few of them, a partial SVD costs more than a full one.
_MANY, _FEW = 0.2, 100
# After a prediction that was too small, the next allows for a part of it more.
_GROWTH = 4
_FIRST = 10
# A matrix this many times longer than wide is solved by products with its short side.
_NARROW = 8
# Vectors that have not converged after so many steps lie in a dense part of the spectrum, just above the level. With at
# most so many singular values the matrix is then decomposed in full; in a larger one they are neglected.
_MOST_STEPS, _AFFORDABLE = 5, 500
_LARGEST_RTOL = 1e-6


class Shrinkage:
    """Singular value shrinkage of a sequence of matrices that change little from one to the next."""

    def __init__(self, shape: tuple[int, int], rng: np.random.Generator) -> None:
        self._shape, self._rng = shape, rng
        self._predicted = min(_FIRST, *shape)
        self._basis = random_basis(shape[1], self._predicted + OVERSAMPLING, rng)

    def largest(self, M: Any) -> float:  # M (n1, n2)
        """Return the largest singular value of M, and remember its neighbourhood."""
        svd, value = _step(M, self._basis), 0.0
        while abs(svd.values[0] - value) > _LARGEST_RTOL * value:
            value, svd = float(svd.values[0]), _step(M, svd.V)
        self._basis = svd.V
        return value

    def apply(self, M: Any, level: float, tolerance: float) -> PartialSVD:  # M (n1, n2)
        """Return the triplets of M above the level, their values less the level.

        The product is accurate to about `tolerance`. Values just above the level, where the spectrum is dense and
        vectors converge slowly, hardly count in it.
        """
        svd = self._above(M, level, tolerance)
        count = int(np.count_nonzero(svd.values > level))
        self._predicted = count + 1 + (0 if count < self._predicted else count // _GROWTH)
        self._basis = svd.V[:, : self._predicted + OVERSAMPLING]
        return PartialSVD(svd.U[:, :count], svd.values[:count] - level, svd.V[:, :count])

    def _above(self, M: Any, level: float, tolerance: float) -> PartialSVD:
        """Return at least the triplets above the level."""
        most, width = min(self._shape), self._predicted + OVERSAMPLING
        basis = self._basis
        while width <= _MANY * most and most > _FEW:
            svd = _step(M, widened(basis, width, self._rng))
            done = False
            # Values only grow from step to step: the last of them may come to lie above the level, and others with it.
            for _ in range(_MOST_STEPS):
                if done or svd.values[-1] > level:
                    break
                before, svd = svd, _step(M, svd.V)
                done = _error(before, svd, level) <= tolerance
            if svd.values[-1] <= level:
                if done or most > _AFFORDABLE:
                    return svd
                break
            basis, width = svd.V, 2 * width
        return _full(M)


def _error(before: PartialSVD, svd: PartialSVD, level: float) -> float:
    """Return about how wrong the shrunk product of the triplets above the level still is."""
    count = max(1, int(np.count_nonzero(svd.values > level)))
    leading, values = svd.V[:, :count], np.maximum(svd.values[:count], np.finfo(float).tiny)
    turned = np.linalg.norm(leading - before.V @ (before.V.conj().T @ leading), axis=0)
    # A step lowers the error by the square of the ratio of values, and has just done so.
    return float((np.maximum(values - level, 0) * turned * (svd.values[-1] / values) ** 2).max())


def _step(M: Any, basis: Any) -> PartialSVD:
    """Take one step of subspace iteration: large products in the type of M, small matrices in double precision."""
    adjoint, wide = M.conj().T, _wide(M)
    return leading_svd(
        lambda A: (M @ A.astype(M.dtype)).astype(wide), lambda B: (adjoint @ B.astype(M.dtype)).astype(wide), basis
    )


def _full(M: Any) -> PartialSVD:
    n1, n2 = M.shape
    if n1 >= _NARROW * n2:
        U, values, Vh = thin_svd(M.astype(_wide(M)))
    elif n2 >= _NARROW * n1:
        V, values, Uh = thin_svd(M.conj().T.astype(_wide(M)))
        U, Vh = Uh.conj().T, V.conj().T
    else:
        U, values, Vh = svd(M, full_matrices=False)
    return PartialSVD(U.astype(_wide(M)), values.astype(float), Vh.conj().T.astype(_wide(M)))


def _wide(M: Any) -> Any:
    return np.complex128 if np.iscomplexobj(M) else np.float64
