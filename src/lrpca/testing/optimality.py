"""The optimality conditions of principal component pursuit.

(X, S) minimises ``‖X‖_* + λ ‖S‖_1`` subject to ``X + S = Y`` if and only if there is a dual Λ that is a subgradient of
both terms [1]_:

    Λ = λ sign(S) on the support of S, |Λ| <= λ elsewhere;      Λ = U V^H + W,   U^H W = 0,   W V = 0,   ‖W‖₂ <= 1,

X = U Σ V^H. Where an entry is missing, Λ is 0. Both sets are convex, and how far they are apart is the violation.

References
----------
.. [1] E. J. Candès, X. Li, Y. Ma, J. Wright, "Robust Principal Component Analysis?", Journal of the ACM 58, 2011.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.core.linalg import svd

# The distance of the two sets has been found when it falls by less than this part over so many steps.
_SETTLED, _OVER = 1e-3, 20


def pcp_violation(
    Y: Any,
    X: Any,
    weight: float | None = None,
    S: Any = None,
    *,
    tolerance: float = 1e-5,
    max_iter: int = 500,
) -> float:
    """Return how far (X, S) is from the optimality conditions of principal component pursuit, relative to ‖Λ‖.

    The dual Λ is searched by alternating projections between the two sets it has to be in.

    Parameters
    ----------
    Y : array-like (n1, n2)
        The data; NaN is missing.
    X : array-like (n1, n2)
        The low-rank part.
    weight : float, optional
        λ; ``1/√(p max(n1, n2))`` if not given, p being the observed share.
    S : array-like (n1, n2), optional
        The sparse part; Y - X if not given.
    tolerance : float
        Entries of S below this part of the largest |Y|, and singular values of X below this part of the largest, count
        as zero.
    max_iter : int
        Maximal number of projections on each set.

    Returns
    -------
    float
        ‖Λ_1 - Λ_2‖ / ‖Λ_1‖ of the two closest points found, plus ‖Y - X - S‖ / ‖Y‖ if S is given: 0 at a solution.

    Examples
    --------
    >>> import lrpca
    >>> problem = lrpca.testing.planted((80, 60), rank=2, outlier_fraction=0.05, outlier_size=5)
    >>> pcp_violation(problem.Y, problem.X) < 1e-3 < pcp_violation(problem.Y, 1.01 * problem.X)
    True
    """
    Y, X = np.asarray(Y), np.asarray(X)
    if Y.ndim != 2 or X.shape != Y.shape:
        raise ValueError(f"X.shape={X.shape} is not Y.shape={Y.shape}; pass two matrices of one shape")
    seen = Y == Y
    scale = float(np.abs(Y[seen]).max(initial=0.0))
    lacking = 0.0
    if S is None:
        S = np.where(seen, Y, 0) - X
    else:
        lacking = float(np.linalg.norm((Y - X - S)[seen])) / max(float(np.linalg.norm(Y[seen])), math.ulp(0.0))
    weight = 1 / math.sqrt(float(seen.mean()) * max(Y.shape)) if weight is None else weight
    size = np.abs(S)
    support = seen & (size > tolerance * scale)
    signs = np.where(support, S, 0) / np.where(support, size, 1)
    U, values, Vh = svd(X, full_matrices=False)
    there = values > tolerance * max(float(values[0]), tolerance * scale)
    U, Vh = U[:, there], Vh[there]
    dual = _of_sparse(U @ Vh, signs, support, seen, weight)
    distances: list[float] = []
    for _ in range(max_iter):
        other = _of_low_rank(dual, U, Vh)
        distances.append(float(np.linalg.norm(dual - other)))
        if _settled(distances):
            break
        dual = _of_sparse(other, signs, support, seen, weight)
    size_of_dual = float(np.linalg.norm(dual))
    return lacking + (distances[-1] / size_of_dual if size_of_dual else distances[-1])


def _settled(distances: list[float]) -> bool:
    last = distances[-1]
    return last == 0 or (len(distances) > _OVER and last > (1 - _SETTLED) * distances[-1 - _OVER])


def _of_sparse(dual: Any, signs: Any, support: Any, seen: Any, weight: float) -> Any:
    """Return the nearest subgradient of λ ‖S‖_1, from the signs of S on its support."""
    size = np.abs(dual)
    clipped = dual * np.minimum(1.0, weight / np.where(size > 0, size, 1.0))
    return np.where(support, weight * signs, np.where(seen, clipped, 0))


def _of_low_rank(dual: Any, U: Any, Vh: Any) -> Any:
    """Return the nearest subgradient of ‖X‖_*."""
    rest = dual - U @ (U.conj().T @ dual)
    rest = rest - (rest @ Vh.conj().T) @ Vh
    left, values, right = svd(rest, full_matrices=False)
    return U @ Vh + (left * np.minimum(values, 1.0)) @ right
